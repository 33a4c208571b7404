"""PromptPool and FlyPrompt on timm's models: against blocks called by hand, positions, pooling, refusals.

timm comes with another torch than the rest of the tests: `make test-timm` runs these in an environment of their own.
"""

import pytest
import torch
from torch import nn

from flyk.nn import FlyPrompt, PromptPool
from flyk.nn._families import find
from flyk.ops import masked_cross_entropy

pytest.importorskip("timm.models")  # this folder's own name is importable as timm
import timm

WIDTH, LENGTH, LAYERS, ROWS = 32, 5, (0, 1, 3), 3
SMALL = {"embed_dim": WIDTH, "depth": 4, "num_heads": 4, "num_classes": 7, "pretrained": False}
IDS = torch.tensor([2, 0, 2])
END = {  # prompts go to the end; the row of the position table that CLS has, where it has one
    "vit_tiny_patch16_224": True,
    "vit_base_patch16_clip_224": True,
    "deit_tiny_patch16_224": True,
    "deit_tiny_distilled_patch16_224": True,
    "deit3_small_patch16_224": False,
    "vit_small_patch14_dinov2": True,
    "vit_small_patch14_reg4_dinov2": False,
    "vit_base_patch16_siglip_224": False,
    "vit_base_patch16_rpn_224": False,
    "flexivit_small": False,
}
ROTARY = {  # prompts go in after the prefix
    "eva02_tiny_patch14_224": True,
    "eva_large_patch14_196": True,
    "vit_small_patch16_dinov3": False,
    "vit_small_patch16_rope_224": False,
    "vit_small_patch16_rope_mixed_224": False,
}


def make(name):
    torch.manual_seed(0)
    patch = 14 if "patch14" in name else 16
    model = timm.create_model(name, img_size=3 * patch, **SMALL).eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.2)
    return model, torch.randn(ROWS, 3, 3 * patch, 3 * patch)


def pool_of():
    torch.manual_seed(2)
    return PromptPool(3, LENGTH, WIDTH, LAYERS)


def identity_rows(rope):
    """The rotary table with a row for each prompt that turns by no angle: sines of 0 and cosines of 1."""
    half = rope.shape[-1] // 2
    rows = torch.cat([torch.zeros(LENGTH, half), torch.ones(LENGTH, half)], dim=-1)
    return torch.cat([rope, rows.expand(*rope.shape[:-2], -1, -1)], dim=-2)


def by_hand(model, pool, x, cls_in_table):
    """What the model's `forward_features` gives when its blocks are called with prompts appended at the end."""
    rotary = type(model).__name__ == "Eva"
    h = model.patch_embed(x)
    h, rope = model._pos_embed(h) if rotary else (model._pos_embed(h), None)
    h = model.norm_pre(h)
    for layer, block in enumerate(model.blocks):
        turn = rope[layer] if rope is not None and getattr(model, "rope_mixed", False) else rope
        if layer in LAYERS:
            prompts = torch.stack([pool.prompts[e][LAYERS.index(layer)] for e in IDS.tolist()])
            prompts = prompts + model.pos_embed[0, 0] if cls_in_table else prompts
            joined, length = torch.cat([h, prompts], dim=1), h.shape[1]
            h = block(joined, rope=identity_rows(turn))[:, :length] if rope is not None else block(joined)[:, :length]
        else:
            h = block(h, rope=turn) if rotary else block(h)
    return model.norm(h)


@torch.no_grad()
@pytest.mark.parametrize("name", [*END, *ROTARY])
def test_a_prompted_backbone_is_the_one_written_by_hand(name):
    model, x = make(name)
    pool = pool_of()
    plain = model.forward_features(x)
    prefixes = [getattr(block.attn, "num_prefix_tokens", None) for block in model.blocks]
    handle = pool.attach(model)
    with pool.use(IDS):
        found, logits = model.forward_features(x), model(x)
    wanted = by_hand(model, pool, x, (END | ROTARY)[name])
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
    assert (found - plain).abs().max() > 0.01
    torch.testing.assert_close(logits, model.forward_head(found), rtol=1e-4, atol=1e-4)  # which pools no prompt
    assert torch.equal(model.forward_features(x), plain)
    assert [getattr(block.attn, "num_prefix_tokens", None) for block in model.blocks] == prefixes

    def fail(*_):
        raise ArithmeticError

    broken = model.blocks[1].mlp.register_forward_pre_hook(fail)
    with pytest.raises(ArithmeticError), pool.use(0):
        model(x)
    broken.remove()
    assert torch.equal(model.forward_features(x), plain)
    handle.remove()
    with pool.use(IDS):
        assert torch.equal(model.forward_features(x), plain)


@torch.no_grad()
@pytest.mark.parametrize("name", [*END, *ROTARY])
def test_rows_are_as_alone(name):
    model, x = make(name)
    pool = pool_of()
    pool.attach(model)
    with pool.use(IDS):
        together = model(x)
    for row, expert in enumerate(IDS.tolist()):
        with pool.use(expert):
            torch.testing.assert_close(together[row], model(x[row : row + 1])[0], rtol=1e-4, atol=1e-4)
    for ids in (1, IDS[:0]) if name in END else ():  # timm's rotary models take no empty batch
        with pool.use(ids):
            assert model(x[:0]).shape == (0, 7)


@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "vit_small_patch16_dinov3"])
def test_checkpointing_has_the_same_gradients_in_eval_mode(name):
    gradients = []
    for checkpointed in (False, True):
        model, x = make(name)
        model.requires_grad_(False).set_grad_checkpointing(checkpointed)
        pool = pool_of()
        pool.attach(model)
        with pool.use(IDS):
            loss = model(x).square().mean()
        loss.backward()  # outside `use`
        assert pool.prompts[1].grad is None
        gradients.append([pool.prompts[e].grad for e in (0, 2)])
    for plain, recomputed in zip(*gradients, strict=True):
        torch.testing.assert_close(plain, recomputed)


@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "vit_base_patch16_siglip_224", "vit_small_patch16_dinov3"])
def test_fly_prompt_takes_the_features_below_the_head(name):
    backbone, x = make(name)
    with torch.no_grad():
        features = backbone.forward_head(backbone.forward_features(x), pre_logits=True)
        assert torch.equal(find(backbone).features(backbone, x), features)
    model = FlyPrompt(backbone, 4, 2, prompt_length=3, prompt_layers=(0, 1), expansion=50, ridge=1.0)
    for expert in range(2):
        model.start_expert(expert)
        masked_cross_entropy(model(x + expert), torch.tensor([0, 1, 1])).backward()
        assert model.pool.prompts[expert].grad.abs().max() > 0
        model.observe(x + 3 * expert)
    assert model.predict(x).shape == (ROWS, 4)
    assert model.route(x).tolist() == ROWS * [0]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("beit_base_patch16_224", {"embed_dim": WIDTH, "depth": 1, "num_heads": 4}),
        ("vit_relpos_small_patch16_224", {"embed_dim": WIDTH, "depth": 1, "num_heads": 4}),
        ("xcit_nano_12_p16_224", {"depth": 1}),
        ("cait_xxs24_224", {"depth": 1}),
        ("naflexvit_base_patch16_gap", {"embed_dim": WIDTH, "depth": 1, "num_heads": 4}),
        ("samvit_base_patch16", {"embed_dim": WIDTH, "depth": 1, "num_heads": 4, "global_attn_indexes": (0,)}),
        ("swin_tiny_patch4_window7_224", {"depths": (1, 1, 1, 1)}),
        ("convnext_atto", {}),
        ("hiera_tiny_224", {}),
        ("resnet18", {}),
    ],
)
def test_what_takes_no_prompts_is_refused_by_name(name, options):
    model = timm.create_model(name, pretrained=False, **options)
    with pytest.raises(ValueError, match=rf"backbone: {type(model).__name__} does not take prompts; wanted"):
        PromptPool(2, embed_dim=WIDTH, layers=(0,)).attach(model)
