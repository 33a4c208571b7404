"""TaskGatedFlyLoRALinear: the gate, its gradient, tasks, Gumbel noise and exact merging."""

import copy
import pickle

import pytest
import torch
from torch import nn

from flyk.nn import TaskGatedFlyLoRALinear

IN, OUT = 20, 12


def trained(seed=1, dtype=torch.float64, base=nn.Linear, **options):
    """A layer as after some training, of 7 ranks in 3 experts for 4 tasks unless told otherwise."""
    torch.manual_seed(seed)
    base = base(IN, OUT) if base is nn.Linear else base
    options = {"rank": 7, "num_experts": 3, "num_tasks": 4, "sparsity": 0.4, "base": base, "seed": seed} | options
    layer = TaskGatedFlyLoRALinear(IN, OUT, **options)
    with torch.no_grad():
        layer.B.normal_()
        layer.gate.normal_()
    return layer.to(dtype)


def inputs(*shape, dtype=torch.float64):
    return torch.randn(*shape, IN, dtype=dtype, generator=torch.Generator().manual_seed(0))


def formula(layer, x, task):
    """base(x) + alpha/rank Σ_e w_e B_e A_e x, expert by expert; and w."""
    A = torch.zeros(layer.rank, IN, dtype=torch.float64)
    A.scatter_(1, layer.projection.indices.long(), layer.projection.values.double())
    p = torch.softmax(layer.gate[task], 0)
    kept = sorted(range(layer.num_experts), key=lambda e: -p[e].item())[: layer.experts_kept]
    w = torch.stack([p[e] if e in kept else torch.zeros_like(p[e]) for e in range(layer.num_experts)])
    w = w / w.sum()
    out = layer.base(x)
    for expert in range(layer.num_experts):
        ranks = layer.expert_of_rank == expert
        out = out + layer.alpha / layer.rank * w[expert] * (x @ A[ranks].T @ layer.B[:, ranks].T)
    return out, w


@pytest.mark.parametrize("task", [0, 3])
@pytest.mark.parametrize("sparsity", [0.0, 0.4, 0.9])
def test_output_shares_and_gradients_are_the_formula(sparsity, task):
    layer, x = trained(sparsity=sparsity, alpha=5.0), inputs(2, 5).requires_grad_()
    layer.set_task(task)
    wanted, w = formula(layer, x, task)
    torch.testing.assert_close(layer(x), wanted)
    torch.testing.assert_close(layer.shares(task), w)
    assert (w > 0).sum() == layer.experts_kept == max(1, round(3 * (1 - sparsity)))
    sources, grad = (x, layer.B, layer.gate), torch.randn(2, 5, OUT, dtype=torch.float64)
    torch.testing.assert_close(torch.autograd.grad(layer(x), sources, grad), torch.autograd.grad(wanted, sources, grad))


def test_an_untrained_layer_adds_nothing_and_trains_B_and_gate():
    base = nn.Linear(IN, OUT)
    layer = TaskGatedFlyLoRALinear(IN, OUT, base=base)
    x = inputs(3, dtype=torch.float32)
    assert torch.equal(layer(x), base(x))
    assert {name for name, p in layer.named_parameters() if p.requires_grad} == {"B", "gate"}
    assert (layer.alpha, layer.projection.nnz, layer.projection.std) == (16.0, 4, 1 / 8)
    assert layer.gate.shape == (1, 4)


@pytest.mark.parametrize(("rank", "num_experts"), [(8, 4), (7, 3), (5, 4), (10, 4), (3, 3), (4, 1)])
def test_ranks_are_split_evenly_and_in_order(rank, num_experts):
    experts = TaskGatedFlyLoRALinear(IN, OUT, rank, num_experts).expert_of_rank
    sizes = torch.bincount(experts)
    assert len(sizes) == num_experts
    assert sizes.max() - sizes.min() <= 1
    assert torch.equal(experts, experts.sort().values)


def test_equal_gates_go_to_the_lower_expert():
    layer = trained(sparsity=0.5, rank=8, num_experts=4)
    layer.gate.data.zero_()
    assert layer.shares(0).tolist() == [0.5, 0.5, 0.0, 0.0]


def test_merge_is_exact_for_each_task_and_leaves_the_layer_alone():
    layer, x = trained(temperature=0.5).eval(), inputs(6)
    before = copy.deepcopy(layer.state_dict())
    outputs = []
    for task in range(4):
        merged = layer.merge(task)
        assert layer.task == 0
        layer.set_task(task)
        outputs.append(layer(x))
        torch.testing.assert_close(merged(x), outputs[-1])
        torch.testing.assert_close(merged.weight - layer.base.weight, layer.dense_delta(task))
        layer.set_task(0)
    assert not torch.allclose(outputs[0], outputs[1])
    assert all(torch.equal(tensor, layer.state_dict()[name]) for name, tensor in before.items())


def test_gumbel_noise_is_in_training_alone_and_follows_its_law():
    """The chance that an expert has the largest share is the softmax of the gate, whatever the temperature."""
    layer, x = trained(temperature=0.3, sparsity=0.6), inputs(1)  # one expert of three is kept
    assert torch.equal(layer.eval()(x), layer(x))
    layer.train()
    torch.manual_seed(0)
    with torch.no_grad():
        layer.B.fill_(1.0)
        layer.gate.copy_(torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64).log())
        outs = torch.stack([(layer(x) - layer.base(x))[0, 0] for _ in range(3000)])
    layer.eval()
    alone = []
    for expert in range(3):
        layer.gate.data.fill_(0.0)[:, expert] = 1.0
        alone.append((layer(x) - layer.base(x))[0, 0].item())
    shares = [(outs - out).abs().lt(1e-9).double().mean().item() for out in alone]
    assert shares == pytest.approx([0.5, 0.3, 0.2], abs=0.04)


def test_a_learned_temperature_has_its_exact_gradient_and_stays_above_zero():
    layer, x = trained(temperature=0.7, learn_temperature=True, sparsity=0.0), inputs(4)
    assert [name for name, p in layer.named_parameters() if p.requires_grad] == ["B", "gate", "log_temperature"]
    log_temperature = layer.log_temperature.detach().clone().requires_grad_()
    torch.manual_seed(5)
    out = layer(x)
    torch.manual_seed(5)
    noise = -torch.empty(3, dtype=torch.float64).exponential_().log()
    shares = ((layer.gate[0] + noise) / log_temperature.exp()).softmax(0)
    A = layer.projection.values.new_zeros(7, IN).scatter_(1, layer.projection.indices.long(), layer.projection.values)
    wanted = layer.base(x) + layer.scale * (x @ A.T * shares[layer.expert_of_rank]) @ layer.B.T
    torch.testing.assert_close(out, wanted)
    found, right = (
        torch.autograd.grad(out.sum(), layer.log_temperature),
        torch.autograd.grad(wanted.sum(), log_temperature),
    )
    torch.testing.assert_close(found, right)
    assert found[0] != 0
    assert torch.equal(layer.eval()(x), layer(x))
    for _ in range(50):
        layer.log_temperature.data -= 1.0
    assert layer.temperature > 0
    assert TaskGatedFlyLoRALinear(IN, OUT, **layer.settings()).temperature == pytest.approx(layer.temperature)


def test_state_round_trip_copies_and_casts():
    layer, x = trained(dtype=torch.float32), inputs(3, dtype=torch.float32)
    assert set(layer.state_dict()) == {"B", "gate", "projection.seed", "base.weight", "base.bias"}
    torch.manual_seed(7)
    other = trained(seed=2, dtype=torch.float32)
    other.load_state_dict(layer.state_dict())
    assert torch.equal(other(x), layer(x))
    assert torch.equal(pickle.loads(pickle.dumps(layer))(x), layer(x))
    assert copy.deepcopy(layer).bfloat16()(x.bfloat16()).dtype == torch.bfloat16
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(x).dtype == torch.bfloat16


def test_the_start_is_a_function_of_the_seed_alone():
    first = TaskGatedFlyLoRALinear(IN, OUT, seed=3)
    torch.manual_seed(123)
    again, other = TaskGatedFlyLoRALinear(IN, OUT, seed=3), TaskGatedFlyLoRALinear(IN, OUT, seed=4)
    assert torch.equal(first.gate, again.gate)
    assert not torch.equal(first.gate, other.gate)


def test_compiles_whole_and_once_for_all_batch_sizes():
    torch.compiler.reset()
    layer = trained()
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True, dynamic=True)
    for step, batch in enumerate((5, 8, 13)):
        with torch._dynamo.config.patch(error_on_recompile=step > 0):
            torch.testing.assert_close(compiled(inputs(batch)), layer(inputs(batch)))
