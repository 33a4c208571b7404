"""RandomProjection: one matrix for one seed, whatever happens to the module."""

from __future__ import annotations

import copy
import io

import pytest
import torch
from torch import nn

from flyk.nn.random_projection import RandomProjection
from flyk.ops.make_projection_ import KINDS, make_projection_
from flyk.ops.project import dense

IN, OUT, NNZ = 37, 21, 5


def projection(kind="sparse_gaussian", seed=0, **options):
    nnz = None if kind == "gaussian" else NNZ
    return RandomProjection(IN, OUT, kind=kind, nnz=nnz, seed=seed, **options)


def same(a, b):
    indices = a.indices is b.indices if a.indices is None else torch.equal(a.indices, b.indices)
    return (
        indices and torch.equal(a.values, b.values) and a.values.dtype == b.values.dtype and int(a.seed) == int(b.seed)
    )


@pytest.mark.parametrize("kind", KINDS)
def test_holds_the_matrix_of_its_seed_and_projects_by_it(kind):
    module = projection(kind, seed=3, std=0.5)
    values = torch.empty(OUT, IN if kind == "gaussian" else NNZ)
    indices = None if kind == "gaussian" else torch.empty(OUT, NNZ, dtype=torch.int32)
    make_projection_(values, indices, kind, IN, 0.5, 3)
    assert torch.equal(module.values, values)
    assert module.indices is None if indices is None else torch.equal(module.indices, indices)

    x = torch.randn(2, 4, IN, generator=torch.Generator().manual_seed(0), requires_grad=True)
    R = dense(values, indices, IN)
    torch.testing.assert_close(module(x), x @ R.T)
    torch.testing.assert_close(module(x, activation="relu"), (x @ R.T).relu())
    module(x).sum().backward()
    torch.testing.assert_close(x.grad, R.sum(dim=0).expand_as(x))
    assert not list(module.parameters())


@pytest.mark.parametrize("kind", KINDS)
def test_a_block_of_rows_is_that_of_the_whole(kind):
    module = projection(kind, seed=9).to(torch.bfloat16)
    for begin, end in ((0, OUT), (4, 11), (7, 7), (OUT, OUT)):
        values, indices = module.rows(begin, end)
        assert torch.equal(values, module.values[begin:end])
        assert indices is None if kind == "gaussian" else torch.equal(indices, module.indices[begin:end])
    with pytest.raises(ValueError, match="end must be from 3 to 21, got 22"):
        module.rows(3, 22)


@pytest.mark.parametrize("kind", KINDS)
def test_the_state_is_the_seed_alone_and_another_makes_the_matrix_anew(kind):
    model = nn.Sequential(projection(kind, seed=5))
    state = model.state_dict()
    assert set(state) == {"0.seed"}
    assert state["0.seed"].dtype == torch.int64
    assert state["0.seed"].shape == ()

    other = nn.Sequential(projection(kind, seed=6)).to(torch.float64)
    assert int(other[0].seed) == 6
    for assign in (False, True):
        other.load_state_dict(state, assign=assign)
        assert same(other[0], projection(kind, seed=5).double())
        assert set(other.state_dict()) == {"0.seed"}
    with pytest.raises(RuntimeError, match=r"Missing key.*0\.seed"):
        model.load_state_dict({})


@pytest.mark.parametrize("seed", [torch.tensor(5.0), torch.tensor([5, 6]), torch.tensor(-1), torch.tensor(5).half()])
def test_a_state_that_has_lost_its_seed_is_refused(seed):
    module = projection(seed=2)
    with pytest.raises(RuntimeError, match="seed must be an int64 scalar of at least 0"):
        module.load_state_dict({"seed": seed})
    assert same(module, projection(seed=2))


@pytest.mark.parametrize("kind", KINDS)
def test_copies_are_equal(kind):
    module = projection(kind, seed=2**63 - 1).to(torch.float16)
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    for twin in (copy.deepcopy(module), torch.load(file, weights_only=False)):
        assert same(twin, module)
        assert twin.values.data_ptr() != module.values.data_ptr()
        assert same(twin.float(), projection(kind, seed=2**63 - 1))  # it still knows its seed


def test_casts_round_once_from_float32():
    module = projection("gaussian", seed=1)
    exact = module.values.clone()
    for dtype in (torch.bfloat16, torch.float16, torch.float64, torch.float32):
        assert torch.equal(module.to(dtype).values, exact.to(dtype))
    before = module.values
    assert module.to("cpu").values is before  # nothing to do, nothing done
    module.share_memory()
    assert module.values.is_shared()


@pytest.mark.parametrize("kind", KINDS)
def test_a_module_made_on_the_meta_device_gets_its_matrix_with_its_memory(kind, poisoned):
    with torch.device("meta"):
        module = projection(kind, seed=8)
    assert module.values.is_meta
    assert module.seed.is_meta
    assert module(torch.empty(3, IN, device="meta")).shape == (3, OUT)
    assert same(module.to_empty(device="cpu"), projection(kind, seed=8))

    for assign in (True, False):
        with torch.device("meta"):
            module = projection(kind, seed=8)
        state = projection(kind, seed=4).state_dict()
        if assign:
            module.load_state_dict(state, assign=True)
        else:
            with pytest.warns(UserWarning, match="meta"):
                module.load_state_dict(state)
            assert module.values.is_meta
            module.to_empty(device="cpu")
        assert same(module, projection(kind, seed=4))


def test_a_new_module_is_of_the_default_dtype():
    torch.set_default_dtype(torch.float64)
    try:
        module = projection("gaussian")
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(module.values, projection("gaussian").values.double())
    assert module.values.dtype == torch.float64


def test_repr_says_what_the_matrix_is():
    assert repr(projection(std=0.25)) == "RandomProjection(37, 21, kind='sparse_gaussian', nnz=5, std=0.25, seed=0)"
    assert repr(projection("gaussian", seed=7)) == "RandomProjection(37, 21, kind='gaussian', std=1, seed=7)"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"kind": "dense"}, "kind must be one of .* got 'dense'"),
        ({"kind": "binary"}, "nnz must be given for kind 'binary'"),
        ({"kind": "gaussian", "nnz": 3}, "nnz must be None for kind 'gaussian'.* got 3"),
        ({"kind": "binary", "nnz": IN + 1}, "nnz must be from 1 to in_features, 37, got 38"),
        ({"kind": "binary", "nnz": 0}, "nnz must be from 1 to in_features, 37, got 0"),
        ({"kind": "gaussian", "std": 0.0}, "std must be from 1.18e-38"),
        ({"kind": "gaussian", "seed": -1}, "seed must be at least 0, got -1"),
        ({"kind": "gaussian", "seed": 2**63}, r"seed must be from 0 to 2\^63 - 1, got 9223372036854775808"),
    ],
)
def test_bad_arguments_are_refused(arguments, sentence):
    with pytest.raises(ValueError, match=sentence):
        RandomProjection(IN, OUT, **arguments)
    with pytest.raises(ValueError, match=r"x must have 37 features in its last dimension, got shape \(2, 36\)"):
        projection()(torch.zeros(2, IN - 1))
