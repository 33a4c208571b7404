"""REAR: casts, copies, and its state in files."""

import copy
import pickle

import pytest
import torch
from safetensors.torch import load, save
from test_rear import M, T, fed, router, stream
from torch import nn

from flyk.nn import REAR


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_casts_leave_the_statistics_and_the_projection_alone(dtype):
    h, labels = stream(dtype=torch.float32)
    module = fed(h, labels, dtype=dtype)
    wanted = module(h)
    model = nn.ModuleDict({"router": module, "other": nn.Linear(2, 2)})
    for cast in (model.half, model.bfloat16, model.double, model.float):
        cast()
        assert module.G.dtype == module.Q.dtype == module.projection.values.dtype == dtype
        assert torch.equal(module(h), wanted)
    model.to("meta")
    assert module.G.device.type == module.projection.values.device.type == "meta"


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda module: pickle.loads(pickle.dumps(module))])
def test_copies_are_equal_and_apart(copied):
    h, labels = stream(10)
    module = fed(h, labels)
    twin = copied(module)
    assert torch.equal(twin(h), module(h))
    twin.update(h, 1)
    torch.testing.assert_close(module.counts, torch.bincount(labels, minlength=T))
    assert not torch.equal(twin(h), module(h))


def test_state_is_tensors_alone_and_survives_safetensors():
    h, labels = stream()
    module = fed(h, labels, flush_rows=100)  # nothing has been flushed yet
    state = load(save(module.state_dict()))
    assert set(state) == {"kind", "G", "Q", "counts", "dropped", "projection.seed"}
    assert torch.equal(state["G"], state["G"].tril())
    torch.manual_seed(9)
    other = router(seed=8)
    other.update(stream(5, seed=7)[0], 0)  # what it had learned is replaced, buffered rows included
    other.load_state_dict(state)
    assert torch.equal(other(h), module(h))
    assert torch.equal(other.projection.values, module.projection.values)
    for either in (other, module):
        either.update(h.flip(0), labels)
    assert torch.equal(other(h), module(h))


def test_state_in_a_larger_model_and_into_itself():
    h, labels = stream()
    module = fed(h, labels)
    model = nn.Sequential(nn.Identity(), module)
    assert set(model.state_dict()) == {"1.kind", "1.G", "1.Q", "1.counts", "1.dropped", "1.projection.seed"}
    wanted = module(h)
    model.load_state_dict(model.state_dict())
    assert torch.equal(module(h), wanted)
    other = nn.Sequential(nn.Identity(), router(seed=3))
    other.load_state_dict(model.state_dict())
    assert torch.equal(other(h), wanted)


@pytest.mark.parametrize("num_experts", [1, T + 2])
def test_a_state_of_another_number_of_experts_loads(num_experts):
    h, labels = stream()
    module, other = fed(h, labels), fed(h, num_experts - 1, num_experts=num_experts)
    other.load_state_dict(module.state_dict())
    assert other.num_experts == max(num_experts, T)
    assert torch.equal(other(h)[:, :T], module(h))
    assert torch.isneginf(other(h)[:, T:]).all()
    assert other.add_expert() == max(num_experts, T)


@pytest.mark.parametrize(
    ("name", "tensor", "sentence"),
    [
        ("G", torch.zeros(M, M + 1), r"G must have shape \(24, 24\), got \(24, 25\)"),
        ("Q", torch.zeros(M + 1, T), r"Q must have shape \(24, T\), got \(25, 4\)"),
        ("counts", torch.zeros(T + 1, dtype=torch.int64), r"counts must have shape \(4,\), got \(5,\)"),
        ("counts", torch.zeros(T), r"counts must be of dtype int64, got float32"),
        ("G", torch.zeros(M, M, dtype=torch.float16), r"G must be of dtype float32, float64, got float16"),
    ],
)
def test_a_state_that_does_not_fit_is_refused_whole(name, tensor, sentence):
    h, labels = stream()
    module, other = fed(h, labels), fed(h.flip(0), labels)
    before = module(h)
    with pytest.raises(RuntimeError, match=sentence):
        module.load_state_dict(other.state_dict() | {name: tensor})
    assert torch.equal(module(h), before)


def test_a_state_without_statistics_is_missing_them():
    module, before = fed(*stream()), fed(*stream()).solve()
    with pytest.raises(RuntimeError, match=r'Missing key.* "G", "Q", "counts"'):
        module.load_state_dict({"projection.seed": torch.tensor(1)})
    left = module.load_state_dict({"projection.seed": torch.tensor(1)}, strict=False)
    assert torch.equal(module.solve(), before)
    assert left.unexpected_keys == []


def test_repr_shows_the_memory_of_G():
    with torch.device("meta"):
        text = repr(REAR(8, 2))
    assert "in_features=8, num_experts=2, expansion=10000, ridge=10000, activation='relu', k=None" in text
    assert "G of 381.5 MiB" in text
