"""FlyLoRALinear: output, gradients, counts, casts, saving, compiling, checkpointing and merging."""

import copy
import functools
import pickle
import shutil

import pytest
import torch
from fly_lora_samples import IN, OUT, SELECTIONS, K, R, dense_A, inputs, trained
from torch import nn
from torch.utils.checkpoint import checkpoint

from flyk import reference
from flyk.nn import FlyLoRALinear


def test_an_untrained_adapter_adds_nothing_and_trains_B_alone():
    base = nn.Linear(IN, OUT)
    layer = FlyLoRALinear(IN, OUT, base=base)
    x = inputs(4, 5)
    assert torch.equal(layer(x), base(x))
    assert [name for name, p in layer.named_parameters() if p.requires_grad] == ["B"]
    assert (layer.r, layer.k, layer.alpha, layer.projection.nnz) == (32, 8, 64.0, IN * 8 // 32)
    assert layer.projection.std == 1 / 32
    assert layer.B.shape == (OUT, 32)


@pytest.mark.parametrize("selection", SELECTIONS)
def test_output_is_the_formula_row_by_row(selection):
    layer = trained(dtype=torch.float64, selection=selection, alpha=5.0)
    x = inputs(30, dtype=torch.float64)
    y, d = x @ dense_A(layer).T, layer.routing_bias.double()
    score = {"magnitude": y.abs() + d, "signed": y + d, "biased_magnitude": (y + d).abs()}[selection]
    expected = layer.base(x)
    for row, scores in enumerate(score):
        for i in sorted(range(R), key=lambda i: -scores[i])[:K]:
            expected[row] += 5.0 / R * y[row, i] * layer.B[:, i]
    torch.testing.assert_close(layer(x), expected)


@pytest.mark.parametrize("selection", SELECTIONS)
def test_gradients_are_those_of_autograd_through_the_reference(selection):
    layer = trained(dtype=torch.float64, selection=selection)
    x, grad = inputs(3, 7, dtype=torch.float64, requires_grad=True), torch.randn(3, 7, OUT, dtype=torch.float64)
    out = layer(x)
    A, options = layer.projection, {"bias": layer.routing_bias, "scale": 2.0, "selection": selection}
    wanted = reference.fly_lora(x, layer.base(x), A.values, A.indices, layer.B, K, **options)
    torch.testing.assert_close(out, wanted)
    torch.testing.assert_close(
        torch.autograd.grad(out, (x, layer.B), grad), torch.autograd.grad(wanted, (x, layer.B), grad)
    )


@pytest.mark.parametrize("shape", [(), (0,), (1,), (2, 0, 3), (2, 3, 4)])
def test_any_leading_shape(shape):
    layer = trained()
    x = inputs(*shape)
    rows = layer(x.reshape(-1, IN)) if x.numel() else torch.empty(0, OUT)
    torch.testing.assert_close(layer(x), rows.reshape(*shape, OUT))
    assert layer.counts.sum() == 2 * K * x.shape[:-1].numel() if x.numel() else layer.counts.sum() == 0


def test_any_strides_also_of_the_gradient():
    layer, wide = trained(), torch.randn(6, 2 * IN, requires_grad=True)
    strided, dense = wide[:, ::2], wide[:, ::2].contiguous()
    torch.testing.assert_close(layer(strided), layer(dense))
    (from_strided,) = torch.autograd.grad(layer(strided).sum(), wide)  # a gradient of stride 0
    (from_dense,) = torch.autograd.grad(layer(dense), wide, torch.ones(6, OUT))
    torch.testing.assert_close(from_strided, from_dense)


def test_base_may_be_any_module_or_none():
    base = nn.Sequential(nn.Linear(IN, 4), nn.ReLU(), nn.Linear(4, OUT))
    layer, bare, x = trained(base=base), trained(base=None), inputs(5)
    torch.testing.assert_close(layer(x) - base(x), bare(x))
    assert not any(p.requires_grad for p in base.parameters())


def test_adapter_follows_its_base():
    layer = FlyLoRALinear(IN, OUT, R, K, base=nn.Linear(IN, OUT, dtype=torch.bfloat16, device="meta"))
    for tensor in (layer.B, layer.projection.values):
        assert (tensor.dtype, tensor.device.type) == (torch.bfloat16, "meta")
    assert (layer.routing_bias.dtype, layer.routing_bias.device.type) == (torch.float32, "meta")


def test_dropout_is_on_the_adapter_alone_and_in_training_alone():
    layer, x = trained(dropout=1.0), inputs(5)
    torch.testing.assert_close(layer(x), layer.base(x))
    torch.testing.assert_close(layer.eval()(x), trained().eval()(x))


# Counts and balance


def test_counts_are_the_winners_of_real_rows_in_training():
    layer, x = trained(), inputs(4, 6)
    mask = torch.rand(4, 6, generator=torch.Generator().manual_seed(3)) < 0.6
    layer(x, mask)
    masked = layer.counts.clone()
    layer.counts.zero_()
    layer(x[mask])
    assert torch.equal(masked, layer.counts)
    assert masked.sum() == K * mask.sum()
    layer.eval()(x)
    assert torch.equal(masked, layer.counts)
    with torch.no_grad():
        layer.train()(x[mask])
    assert torch.equal(2 * masked, layer.counts)


def test_mask_has_no_part_in_the_output():
    layer, x = trained(), inputs(4)
    assert torch.equal(layer(x), layer(x, torch.zeros(4, dtype=torch.bool)))


def test_routing_bias_moves_by_the_sign_of_the_shortfall():
    layer = trained(bias_update_rate=0.25)
    layer.routing_bias.zero_()
    layer.counts.copy_(torch.tensor([10, 4, 5, 6, 5, 5, 5, 0]))  # the mean is 5
    layer.update_routing_bias()
    assert layer.routing_bias.tolist() == [-0.25, 0.25, 0.0, -0.25, 0.0, 0.0, 0.0, 0.25]
    assert layer.counts.sum() == 0
    before = layer.routing_bias.clone()
    layer.update_routing_bias()
    assert torch.equal(layer.routing_bias, before)


def test_evaluation_and_forward_leave_the_routing_bias_alone():
    layer, x = trained(), inputs(9)
    before = layer.routing_bias.clone()
    layer(x).sum().backward()
    layer.eval()(x)
    assert torch.equal(layer.routing_bias, before)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_counts_once_and_keeps_the_gradients(reentrant, compiled):
    torch.compiler.reset()
    layer, x = trained(), inputs(5, 4, requires_grad=True)
    wanted = torch.autograd.grad(layer(x).square().sum(), (x, layer.B))
    counts = layer.counts.clone()
    layer.counts.zero_()
    run = torch.compile(layer, backend="aot_eager", fullgraph=True) if compiled else layer
    checkpoint(run, x, use_reentrant=reentrant).square().sum().backward()
    assert torch.equal(layer.counts, counts)
    torch.testing.assert_close((x.grad, layer.B.grad), wanted)


def test_a_checkpoint_inside_a_compiled_function_counts_once():
    torch.compiler.reset()
    layer, x = trained(), inputs(5, requires_grad=True)
    layer(x)
    counts = layer.counts.clone()
    layer.counts.zero_()
    run = torch.compile(functools.partial(checkpoint, layer, use_reentrant=False), backend="aot_eager", fullgraph=True)
    run(x).sum().backward()
    assert torch.equal(layer.counts, counts)


def compile_and_compare(backend, training):
    torch.compiler.reset()
    layer = trained().train(training)
    eager = copy.deepcopy(layer)
    compiled = torch.compile(layer, backend=backend, fullgraph=True, dynamic=True)
    for step, batch in enumerate((5, 8, 13, 6)):
        with torch._dynamo.config.patch(error_on_recompile=step > 0):
            x = inputs(batch, 3, seed=step, requires_grad=True)
            mask = torch.rand(batch, 3) < 0.7
            out, wanted = compiled(x, mask), eager(x, mask)
            torch.testing.assert_close(out, wanted)
            torch.testing.assert_close(
                torch.autograd.grad(out.sum(), (x, layer.B)), torch.autograd.grad(wanted.sum(), (x, eager.B))
            )
        layer.update_routing_bias()
        eager.update_routing_bias()
        assert torch.equal(layer.routing_bias, eager.routing_bias)


@pytest.mark.parametrize("training", [True, False])
def test_compiles_whole_and_once_for_all_batch_sizes(training):
    compile_and_compare("aot_eager", training)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler")
def test_inductor_updates_the_same_counts():
    compile_and_compare("inductor", training=True)


# The frozen linear layer's output, added to in place


def test_the_backward_keeps_winners_and_not_x():
    layer, x, kept = trained(), inputs(64, requires_grad=True), {}

    def keep(tensor):
        kept[tensor.data_ptr()] = tensor.nbytes
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        layer(x)
    frozen = (layer.B, layer.base.weight, layer.projection.values, layer.projection.indices)
    assert x.data_ptr() not in kept
    assert sum(size for at, size in kept.items() if at not in {t.data_ptr() for t in frozen}) == 64 * K * (4 + 8)


# Dtypes, saving, merging


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_cast_keeps_the_routing_bias_in_float32(dtype):
    layer = trained()
    bias = layer.routing_bias.clone()
    model = nn.Sequential(layer).to(dtype)
    assert layer.routing_bias.dtype == torch.float32
    assert torch.equal(layer.routing_bias, bias)
    assert layer.B.dtype == layer.projection.values.dtype == dtype
    assert model(inputs(3, dtype=dtype)).dtype == dtype


def test_small_steps_of_the_routing_bias_add_up_in_a_half_model():
    layer = trained().bfloat16()
    layer.routing_bias.fill_(0.5)
    for _ in range(100):
        layer.counts[0] = 1
        layer.update_routing_bias()
    torch.testing.assert_close(layer.routing_bias[:2], torch.tensor([0.4, 0.6]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_autocast_gives_the_dtype_that_linear_gives(dtype):
    layer, x = trained(), inputs(4, dtype=dtype, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        out, linear = layer(x), layer.base(x)
    assert out.dtype == linear.dtype == torch.bfloat16
    out.sum().backward()
    assert (x.grad.dtype, layer.B.grad.dtype) == (dtype, torch.float32)
    exact = layer(x.float())
    assert (out.float() - exact).norm() < 0.02 * exact.norm()


def test_state_holds_the_seed_and_not_A():
    layer, x = trained(seed=5), inputs(6)
    state = layer.state_dict()
    assert set(state) == {"B", "routing_bias", "projection.seed", "base.weight", "base.bias"}
    torch.manual_seed(99)
    other = FlyLoRALinear(IN, OUT, R, K, base=nn.Linear(IN, OUT), seed=7)
    assert not torch.equal(other.projection.values, layer.projection.values)
    other.load_state_dict(state)
    assert torch.equal(other(x), layer(x))
    assert torch.equal(other.projection.indices, layer.projection.indices)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda layer: pickle.loads(pickle.dumps(layer))])
def test_copies_are_equal_and_apart(copied):
    layer, x = trained(), inputs(4)
    layer(x)
    twin = copied(layer)
    assert torch.equal(twin.counts, layer.counts)
    assert torch.equal(twin(x), layer(x))
    twin.update_routing_bias()
    assert not torch.equal(twin.routing_bias, layer.routing_bias)
    assert layer.counts.sum() == 2 * 4 * K


@pytest.mark.parametrize("bias", [True, False])
def test_merge_is_exact_when_every_rank_is_used(bias):
    layer = trained(k=R, dtype=torch.float64, base=nn.Linear(IN, OUT, bias=bias))
    x, before = inputs(7, dtype=torch.float64), copy.deepcopy(layer.state_dict())
    random_state = torch.get_rng_state()
    merged = layer.merge()
    assert type(merged) is nn.Linear
    torch.testing.assert_close(merged(x), layer(x))
    assert torch.equal(torch.get_rng_state(), random_state)
    with torch.no_grad():
        for p in merged.parameters():
            p.zero_()
    assert all(torch.equal(tensor, layer.state_dict()[name]) for name, tensor in before.items())


def test_merge_without_a_base_is_the_update_alone():
    layer, x = trained(base=None, k=R), inputs(7)
    merged = layer.merge()
    assert merged.bias is None
    torch.testing.assert_close(merged(x), layer(x))


def test_merge_with_fewer_winners_must_be_asked_for():
    layer = trained()
    with pytest.raises(ValueError, match=r"approximate must be True .* winners depend on the input"):
        layer.merge()
    merged = layer.merge(approximate=True)
    torch.testing.assert_close(merged.weight, layer.base.weight + layer.dense_delta())
    assert not torch.allclose(merged(inputs(7)), layer(inputs(7)), atol=1e-2)


def test_merge_in_half_types_rounds_once():
    layer = trained(k=R, dtype=torch.bfloat16)
    exact = layer.base.weight.float() + 2.0 * layer.B.float() @ dense_A(layer).float()
    assert torch.equal(layer.merge().weight, exact.bfloat16())


def test_merge_needs_a_linear_base():
    layer = trained(base=nn.Sequential(nn.Linear(IN, OUT)), k=R)
    with pytest.raises(TypeError, match=r"base must be an nn\.Linear .* got Sequential"):
        layer.merge()


def test_dense_delta_is_the_scaled_product():
    layer = trained(dtype=torch.float64, alpha=3.0)
    torch.testing.assert_close(layer.dense_delta(), 3.0 / R * layer.B @ dense_A(layer))


def test_repr_names_what_matters():
    assert "rank=8, nnz=7, alpha=16, k=3, selection='magnitude'" in repr(trained())
