"""PromptPool on every family of transformers: against blocks written out by hand, masks, positions and refusals."""

import backbones
import pytest
import torch
import transformers as tf
from backbones import BLOCKS, FAMILIES, IMAGES, ROWS, TEXTS, WIDTH
from torch import nn

from flyk.nn import PromptPool
from flyk.nn._families import find

LAYERS, LENGTH = (0, 1, 3), 5
IDS = torch.tensor([2, 0, 2])


def pool_of(experts=3):
    torch.manual_seed(2)
    return PromptPool(experts, LENGTH, WIDTH, LAYERS)


def expected(name, model, pool, inputs, ids):
    """The output with the rows' prompts, by hand."""
    position = backbones.cls_position(name, model)
    prompts = {
        layer: torch.stack([pool.prompts[e][i] for e in ids.tolist()]) + position for i, layer in enumerate(LAYERS)
    }
    return backbones.by_hand(model, prompts, at=3 if name == "dinov3" else None)(**inputs)


@torch.no_grad()
@pytest.mark.parametrize("name", FAMILIES)
def test_a_prompted_backbone_is_the_one_written_by_hand(name):
    model, inputs, pool = backbones.make(name), backbones.inputs(name), pool_of()
    if name in TEXTS:
        inputs = {"input_ids": inputs["input_ids"]}  # no mask: Prompted does not widen one
    plain = model(**inputs)
    handle = pool.attach(model)
    with pool.use(IDS):
        found = model(**inputs)
    wanted = expected(name, model, pool, inputs, IDS)
    assert found.last_hidden_state.shape == plain.last_hidden_state.shape
    torch.testing.assert_close(found.last_hidden_state, wanted.last_hidden_state)
    if getattr(wanted, "pooler_output", None) is not None:  # a head or a mean over tokens sees none of the prompts
        torch.testing.assert_close(found.pooler_output, wanted.pooler_output)
    assert (found.last_hidden_state - plain.last_hidden_state).abs().max() > 0.01

    outside = model(**inputs)
    handle.remove()
    with pool.use(IDS):
        removed = model(**inputs)
    for output in (outside, removed):
        assert torch.equal(output.last_hidden_state, plain.last_hidden_state)


@torch.no_grad()
@pytest.mark.parametrize("name", FAMILIES)
def test_prompts_for_each_row_are_those_of_the_rows_alone(name):
    model, inputs, pool = backbones.make(name), backbones.inputs(name), pool_of()
    pool.attach(model)
    with pool.use(IDS):
        together = model(**inputs).last_hidden_state
    for row, expert in enumerate(IDS.tolist()):
        with pool.use(expert):
            alone = model(**{key: value[row : row + 1] for key, value in inputs.items()}).last_hidden_state
        torch.testing.assert_close(together[row], alone[0], rtol=1e-4, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("name", TEXTS)
def test_padding_stays_hidden_and_prompts_are_seen_through_the_mask(name, implementation):
    model, inputs, pool = backbones.make(name), backbones.tokens((7, 4, 6)), pool_of()
    model.set_attn_implementation(implementation)
    pool.attach(model)
    with pool.use(1):
        padded = model(**inputs).last_hidden_state
        for row, length in enumerate((7, 4, 6)):
            alone = model(input_ids=inputs["input_ids"][row : row + 1, :length]).last_hidden_state  # needs no mask
            torch.testing.assert_close(padded[row, :length], alone[0], rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_dinov3_turns_patches_by_their_own_positions_and_prompts_by_none():
    """Attention by hand with prompts at the end, as the paper has them, and the rotation applied to patches alone."""
    model, pool = backbones.make("dinov3"), pool_of()
    pool.attach(model)
    block = model.model.layer[0]
    x = torch.randn(ROWS, 7, WIDTH)  # CLS, two registers, four patches
    cos, sin = model.rope_embeddings(backbones.images())
    with pool.use(1):
        found = block(x, position_embeddings=(cos, sin))

    joined = torch.cat([x, pool.prompts[1][0].expand(ROWS, -1, -1)], dim=1)
    h, attention = block.norm1(joined), block.attention
    q, k, v = (
        layer(h).view(ROWS, -1, 4, WIDTH // 4).transpose(1, 2)
        for layer in (attention.q_proj, attention.k_proj, attention.v_proj)
    )
    for t in (q, k):
        patches, half = t[:, :, 3:7].clone(), WIDTH // 8
        turned = torch.cat([-patches[..., half:], patches[..., :half]], dim=-1)
        t[:, :, 3:7] = patches * cos + turned * sin
    mixed = (q @ k.transpose(2, 3) / (WIDTH // 4) ** 0.5).softmax(-1) @ v
    y = joined + block.layer_scale1(attention.o_proj(mixed.transpose(1, 2).reshape(ROWS, -1, WIDTH)))
    y = y + block.layer_scale2(block.mlp(block.norm2(y)))
    torch.testing.assert_close(found, y[:, :7], rtol=1e-4, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("name", FAMILIES)
def test_features_are_what_the_family_pools(name):
    model, inputs = backbones.make(name), backbones.inputs(name)
    family = find(model)
    found, output = family.features(model, inputs), model(**inputs)
    if name in TEXTS:
        wanted = torch.stack(
            [h[m.bool()].mean(0) for h, m in zip(output.last_hidden_state, inputs["attention_mask"], strict=True)]
        )
    elif name == "siglip without head":
        wanted = output.last_hidden_state.mean(1)
    elif name in ("beit", "clip", "siglip"):
        wanted = output.pooler_output
    else:
        wanted = output.last_hidden_state[:, 0]
    torch.testing.assert_close(found, wanted)
    assert family.num_features(model) == found.shape[1] == WIDTH
    if name in IMAGES:
        assert torch.equal(family.features(model, inputs["pixel_values"]), found)


@torch.no_grad()
def test_a_model_with_a_head_gives_the_features_below_it():
    model = tf.ViTForImageClassification(tf.ViTConfig(**backbones.VISION, num_labels=7)).eval()
    family = find(model)
    assert torch.equal(
        family.features(model, backbones.images()), model.vit(backbones.images()).last_hidden_state[:, 0]
    )
    assert family.num_features(model) == WIDTH


@torch.no_grad()
def test_a_module_around_a_model_is_hooked_inside_and_gives_its_own_features():
    class Around(nn.Module):
        num_features = 3

        def __init__(self):
            super().__init__()
            self.inner = backbones.make()

        def forward(self, x):
            return self.inner(2 * x).last_hidden_state[:, 0, :3]

    around, pool, x = Around(), pool_of(), backbones.images()
    family = find(around)
    assert (family.num_features(around), family.embed_dim) == (3, WIDTH)
    pool.attach(around)
    with pool.use(0):
        assert torch.equal(family.features(around, x), around.inner(2 * x).last_hidden_state[:, 0, :3])


class Foreign(nn.Module):
    """What a model of timm that takes no prompts looks like."""

    def forward_features(self, x):
        return x

    def forward_head(self, x, pre_logits=False):
        return x


REFUSED = {
    "relative bias": (
        lambda: tf.BeitModel(tf.BeitConfig(**backbones.VISION, use_relative_position_bias=True)),
        "backbone: BeitModel has a relative position bias",
    ),
    "shared relative bias": (
        lambda: tf.BeitModel(tf.BeitConfig(**backbones.VISION, use_shared_relative_position_bias=True)),
        "backbone: BeitModel has a relative position bias",
    ),
    "relative buckets": (
        lambda: tf.MPNetModel(tf.MPNetConfig(**TEXT)),
        r"backbone: MPNetModel \(type mpnet\) does not take prompts",
    ),
    "windows": (
        lambda: tf.SwinModel(tf.SwinConfig(image_size=16, patch_size=4, embed_dim=8, depths=[1], num_heads=[2])),
        r"backbone: SwinModel \(type swin\) does not take prompts; wanted .*dinov2",
    ),
    "convolutions": (
        lambda: tf.ConvNextModel(tf.ConvNextConfig(hidden_sizes=[8, 8], depths=[1, 1], num_stages=2)),
        r"backbone: ConvNextModel \(type convnext\) does not take prompts",
    ),
    "two encoders": (
        lambda: tf.CLIPModel(tf.CLIPConfig(text_config=dict(backbones.TEXT), vision_config=dict(backbones.VISION))),
        r"backbone: CLIPModel \(type clip\) does not take prompts: give its vision_model",
    ),
    "decoder": (
        lambda: tf.BertModel(tf.BertConfig(**TEXT, is_decoder=True)),
        r"backbone: BertModel is a decoder \(is_decoder=True\)",
    ),
    "timm": (Foreign, r"backbone: Foreign does not take prompts; wanted .*VisionTransformer or Eva of timm"),
    "no transformer": (lambda: nn.Linear(3, 3), r"backbone must be a model of .* no part of this Linear is one"),
}
TEXT = backbones.TEXT


@pytest.mark.parametrize("case", REFUSED)
def test_what_takes_no_prompts_is_refused_by_name(case):
    make, sentence = REFUSED[case]
    with pytest.raises(ValueError, match=sentence):
        pool_of().attach(make())


def test_refuses_what_does_not_fit_the_pool():
    with pytest.raises(TypeError, match=r"backbone must be an nn\.Module, got str"):
        pool_of().attach("vit")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match=rf"tokens of width 16 \(embed_dim\), got {WIDTH}"):
        PromptPool(2, embed_dim=16, layers=(0,)).attach(backbones.make())
    with pytest.raises(ValueError, match=rf"a block 4 \(layers\), got {BLOCKS} blocks"):
        PromptPool(2, embed_dim=WIDTH).attach(backbones.make())
    model, pool = backbones.make(), pool_of()
    handle = pool.attach(model)
    with pytest.raises(ValueError, match="this pool is not attached"):
        pool.attach(model)
    handle.remove()
    pool.attach(model).remove()
