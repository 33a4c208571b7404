"""Wrapping the linear layers of models: which, how, and what is left alone."""

from __future__ import annotations

import copy
import inspect

import pytest
import torch
from torch import nn

from flyk.adapters import FlyLoRAModel, adapters, apply, update_routing_bias
from flyk.nn import FlyLoRALinear


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.q_proj, self.v_proj, self.out = (nn.Linear(width, width) for _ in range(3))

    def forward(self, x: torch.Tensor, gain: float = 1.0) -> torch.Tensor:
        return self.out(torch.tanh(self.q_proj(x)) * self.v_proj(x)) * gain


class Net(nn.Module):
    """Names with dots and underscores, a tied weight, and one layer in two places."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 16)
        self.blocks = nn.ModuleList(Block(16) for _ in range(2))
        self.blocks[1].out = self.blocks[0].out
        self.lm_head = nn.Linear(16, 20, bias=False)
        self.lm_head.weight = self.embed.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        for block in self.blocks:
            x = x + block(x, gain=0.5)
        return self.lm_head(x)


def net() -> Net:
    torch.manual_seed(0)
    return Net()


def trained(model: nn.Module) -> nn.Module:
    """The model with every B away from zero."""
    torch.manual_seed(1)
    for layer in adapters(model).values():
        nn.init.normal_(layer.B)
    return model


IDS = torch.arange(12).view(2, 6)


def test_returns_the_model_changed_in_place_with_nothing_else_new() -> None:
    model = net()
    before, signature = model(IDS), inspect.signature(model.forward)
    assert apply(model, ["q_proj", "v_proj"], r=4, k=2) is model
    assert list(adapters(model)) == [f"blocks.{i}.{n}" for i in (0, 1) for n in ("q_proj", "v_proj")]
    assert torch.equal(model(IDS), before)  # B is zero
    assert inspect.signature(model.forward) == signature
    assert all(not m._forward_hooks and not m._forward_pre_hooks for m in model.modules())
    assert {n for n, p in model.named_parameters() if p.requires_grad} == {f"{n}.B" for n in adapters(model)}


def test_only_adapters_learn() -> None:
    model = apply(net(), ["q_proj", "v_proj", "out"], r=4, k=2)
    start = copy.deepcopy(model.state_dict())
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        model(IDS).square().sum().backward()
        optimizer.step()
        update_routing_bias(model)
    for name, value in model.state_dict().items():
        learns = name.endswith((".B", ".routing_bias"))
        assert torch.equal(value, start[name]) != learns, name


def test_no_gradient_to_the_input_through_detached_adapters() -> None:
    x = torch.randn(3, 16, requires_grad=True)
    base = net().blocks[0].q_proj
    layer = trained(apply(nn.Sequential(base), "0", r=4, k=2, detach_input=True))
    (grad,) = torch.autograd.grad(layer(x).sum(), x)
    torch.testing.assert_close(grad, base.weight.sum(0).expand_as(grad))


def test_names_whole_by_their_end_and_excluded() -> None:
    assert list(adapters(apply(net(), "blocks.1.q_proj", r=2, k=1))) == ["blocks.1.q_proj"]
    model = apply(net(), ["q_proj", "v_proj"], r=2, k=1, exclude_modules=["blocks.0.v_proj", "1.q_proj"])
    assert list(adapters(model)) == ["blocks.0.q_proj", "blocks.1.v_proj"]
    with pytest.raises(ValueError, match=r"got 'proj'; it has blocks\.0\.q_proj"):  # no part of a name
        apply(net(), "proj")


def test_a_shared_layer_is_adapted_once_in_all_its_places() -> None:
    model = apply(net(), "out", r=2, k=1)
    assert len(adapters(model)) == 1
    assert model.blocks[0].out is model.blocks[1].out
    assert isinstance(model.blocks[1].out, FlyLoRALinear)


def test_a_tied_weight_stays_tied_and_its_embedding_stays_as_it_was() -> None:
    model = trained(apply(net(), "lm_head", r=2, k=2))
    assert model.lm_head.base.weight is model.embed.weight
    embedding = model.embed.weight.clone()
    model.lm_head.merge()
    assert torch.equal(model.embed.weight, embedding)


def test_no_two_layers_and_no_two_seeds_share_a_projection() -> None:
    made = [*adapters(apply(net(), ["q_proj", "out"])).values(), *adapters(apply(net(), "q_proj", seed=1)).values()]
    assert len({int(layer.projection.seed) for layer in made}) == len(made) == 5
    again = adapters(apply(net(), "q_proj"))["blocks.1.q_proj"]
    assert torch.equal(again.projection.values, adapters(apply(net(), "q_proj"))["blocks.1.q_proj"].projection.values)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_other_dtypes(dtype: torch.dtype) -> None:
    model = trained(apply(net().to(dtype), ["q_proj", "v_proj"], r=4, k=2))
    assert model(IDS).dtype == dtype
    assert all(layer.B.dtype == dtype for layer in adapters(model).values())


def test_a_second_apply_keeps_the_first_trainable() -> None:
    model = apply(apply(net(), "q_proj", r=4, k=2), "v_proj", r=2, k=1)
    assert {n for n, p in model.named_parameters() if p.requires_grad} == {f"{n}.B" for n in adapters(model)}
    assert len(adapters(model)) == 4


class Fast(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.conv = nn.Conv2d(1, 1, 1)


@pytest.mark.parametrize(
    ("model", "target", "error", "sentence"),
    [
        (net, [], ValueError, "target_modules must name at least one layer, got none"),
        (net, ["nothing"], ValueError, "must name linear layers of the model, got 'nothing'"),
        (net, [3], TypeError, "target_modules must be names of modules, got 3"),
        (net, None, TypeError, "target_modules must be names of modules, got None"),
        (net, "embed", TypeError, "must name linear layers, got 'embed', of type Embedding"),
        (Fast, "conv", TypeError, "got 'conv', of type Conv2d"),
        (Fast, "out_proj", ValueError, "got 'attention.out_proj': nn.MultiheadAttention reads its weight"),
        (Fast, "linear1", ValueError, "nn.TransformerEncoderLayer reads its weight in evaluation"),
        (lambda: nn.Linear(3, 3), "", TypeError, "must be names of modules, got ''"),
        (lambda: apply(net(), "out"), "out", ValueError, "without an adapter, got 'blocks.0.out', which has one"),
        (lambda: 3, "out", TypeError, "model must be a module, got int"),
    ],
)
def test_refuses(model, target, error, sentence) -> None:
    with pytest.raises(error, match=sentence):
        apply(model(), target)


def test_ranks_that_could_not_be_loaded_again_are_refused() -> None:
    for wrap in (lambda: apply(net(), "q_proj", r=1025), lambda: FlyLoRAModel(net(), ["q_proj"], 1025, tasks=["a"])):
        with pytest.raises(ValueError, match="must be from 1 to 1024 for 16 inputs and 16 outputs, got 1025"):
            wrap()


def test_a_refused_model_is_as_it_was() -> None:
    model = net()
    with pytest.raises(ValueError, match="k must be from 1 to 2"):
        apply(model, ["q_proj", "out"], r=2, k=3)
    with pytest.raises(ValueError, match="got 'nothing'"):
        apply(model, ["q_proj", "nothing"])
    assert all(p.requires_grad for p in model.parameters())
    with pytest.raises(ValueError, match="must have adapters, got a Net without any"):
        adapters(model)


def test_an_encoder_layer_is_right_once_its_fast_path_is_off() -> None:
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        model = apply(Fast().layer, ["linear1", "linear2"], r=4, k=4)
        x = torch.randn(2, 5, 8)
        with torch.no_grad():
            before = model.eval()(x)
            trained(model)
            assert not torch.allclose(model(x), before)
    finally:
        torch.backends.mha.set_fastpath_enabled(True)


def test_conv1d_of_gpt2() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(vocab_size=20, n_positions=8, n_embd=16, n_layer=2, n_head=2)
    model = apply(transformers.GPT2LMHeadModel(config).eval(), ["c_attn", "c_fc"], r=4, k=4)
    trained(model)
    out = model(IDS).logits
    layer = model.transformer.h[0].attn.c_attn
    model.transformer.h[0].attn.c_attn = merged = layer.merge()
    assert type(merged) is type(layer.base)
    torch.testing.assert_close(model(IDS).logits, out, rtol=1e-4, atol=1e-4)


def gated(**options) -> FlyLoRAModel:
    return FlyLoRAModel(net(), ["q_proj", "v_proj"], tasks=["sst2", "trec"], **options)


def test_tasks_are_switched_by_name() -> None:
    model = trained(gated())
    with torch.no_grad():
        for layer in adapters(model).values():
            layer.gate.copy_(torch.tensor([[3.0, 0, 0, 0], [0, 0, 0, 3.0]]))
    assert model.task == "sst2"
    first = model(IDS)
    model.set_task("trec")
    assert model.task == "trec"
    assert not torch.allclose(model(IDS), first)
    model.set_task("sst2")
    assert torch.equal(model(IDS), first)
    with pytest.raises(ValueError, match="task must be one of 'sst2', 'trec', got 'x'"):
        model.set_task("x")


@pytest.mark.parametrize("task", ["sst2", "trec"])
def test_merge_and_unload_gives_the_base_model_with_the_same_outputs(task: str) -> None:
    model = trained(gated())
    base = model.base_model
    model.set_task(task)
    out = model(IDS)
    merged = model.merge_and_unload(task)
    assert merged is base
    assert type(merged.blocks[0].q_proj) is nn.Linear
    torch.testing.assert_close(merged(IDS), out, rtol=1e-5, atol=1e-5)


def test_attributes_go_to_the_base_model() -> None:
    model = gated()
    assert model.lm_head is model.base_model.lm_head
    with pytest.raises(AttributeError, match="nothing"):
        model.nothing  # noqa: B018


@pytest.mark.parametrize("tasks", [[], ["a", "a"]])
def test_tasks_must_be_different_names(tasks: list[str]) -> None:
    with pytest.raises(ValueError, match="tasks must be at least one name and all different"):
        FlyLoRAModel(net(), "q_proj", tasks=tasks)
