"""The CUDA kernels on the CPU: the contract of flyk check, with every thread in several orders, races recorded."""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from flyk.backends.cuda import KERNELS, _library
from flyk.check import cases_of, check_case
from flyk.check.run import written

ORDERS = (0, 1, 7)  # forward, backward, and a shuffle
OPERATORS = {name: importlib.import_module(f"flyk.ops.{name}") for name in KERNELS}


@pytest.fixture(autouse=True)
def served_by_shim(shim: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(_library, "load", lambda: shim)
    monkeypatch.setattr("flyk.check.run.served", in_every_order)
    yield
    shim.flyk_shim_order(0)
    shim.flyk_shim_limit(48 << 10)


def in_every_order(operator: str) -> Any:
    """The backend's kernel, run in each order of threads on copies of what it writes; the bits must be the same."""
    kernel = getattr(importlib.import_module(f"flyk.backends.cuda.{operator}"), operator)

    def run(**arguments: Any) -> Any:
        found = []
        for order in ORDERS:
            _library.load().flyk_shim_order(order)
            given = arguments | {name: arguments[name].clone() for name in written(operator)}
            result = kernel(**given)
            found.append([given[name] for name in written(operator)] if result is None else list(result))
        for other in found[1:]:
            assert all(map(same_bits, other, found[0])), "the result depends on the order of the threads"
        for name, value in zip(written(operator), found[0], strict=False):
            arguments[name].copy_(value)
        return None if written(operator) else tuple(found[0])

    return run


def same_bits(a: Tensor, b: Tensor) -> bool:
    return torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))


@pytest.mark.slow
@pytest.mark.parametrize("operator", KERNELS)
def test_contract(operator: str) -> None:
    cases = [case for case in cases_of(operator, quick=True) if not case.gradient]
    assert len(cases) >= 15
    assert [str(result) for result in map(check_case, cases) if not result.passed] == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("n", "k"), [(1, 1), (32, 8), (33, 33), (128, 5), (129, 129), (700, 0), (2049, 40), (2100, 2100)]
)
@pytest.mark.parametrize("selection", ["magnitude", "signed", "biased_magnitude"])
def test_winners_of_ties_and_nan(n: int, k: int, selection: str, dtype: torch.dtype) -> None:
    draw = torch.Generator().manual_seed(n + k)
    y = torch.randint(-3, 4, (2, n), generator=draw).to(dtype)
    y[0, n // 2] = torch.nan
    y[0, n // 3] = -torch.inf
    y[1] = torch.randn(n, generator=draw).to(dtype)
    y[1, n // 2 :] = -y[1, : n - n // 2]  # a tie for each, by magnitude
    bias = torch.randint(-1, 2, (n,), generator=draw).float() if n % 2 else None
    run_and_compare("winner_take_all", y=y, k=k, bias=bias, selection=selection)


@pytest.mark.parametrize("limit", [0, 48 << 10])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_ranks_in_shared_memory_or_made_anew(shim: ctypes.CDLL, limit: int, dtype: torch.dtype) -> None:
    shim.flyk_shim_limit(limit)
    draw = torch.Generator().manual_seed(0)
    y = torch.randint(-50, 50, (2, 600), generator=draw).to(dtype)
    run_and_compare("winner_take_all", y=y, k=77, bias=None, selection="signed")
    x = torch.randint(-2, 3, (2, 30), generator=draw).to(dtype)
    for nnz, k, activation in ((3, 50, "relu"), (4, 600, "none"), (8, 20, "relu")):
        values = torch.randint(-1, 3, (600, nnz), generator=draw).to(dtype)
        indices = torch.rand(600, 30, generator=draw).argsort(1)[:, :nnz]
        given = {"x": x, "values": values, "indices": indices, "k": k, "bias": None, "selection": "magnitude"}
        run_and_compare("project_topk", **given, activation=activation)


def test_a_matrix_that_lies_off_the_grid_of_wide_loads() -> None:
    draw = torch.Generator().manual_seed(2)
    stored = torch.randint(-1, 3, (1 + 40 * 4,), generator=draw).float()
    values = stored[1:].view(40, 4)
    assert values.is_contiguous()
    assert values.data_ptr() % 16 != 0
    indices = torch.rand(40, 9, generator=draw).argsort(1)[:, :4]
    x = torch.randint(-2, 3, (3, 9), generator=draw).float()
    given = {"x": x, "values": values, "indices": indices, "k": 7, "bias": None, "selection": "signed"}
    run_and_compare("project_topk", **given, activation="none")


def run_and_compare(operator: str, **arguments: Any) -> None:
    """On sums that are exact, the reference's bits."""
    got = in_every_order(operator)(**arguments)
    want = OPERATORS[operator].reference(**arguments)
    torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)


@pytest.mark.slow
def test_gram_over_more_columns_than_a_panel_and_more_samples_than_a_word() -> None:
    m, rows, k, classes = 8200, 70, 3, 2
    draw = torch.Generator().manual_seed(1)
    at = torch.stack([torch.randperm(m, generator=draw)[:k] for _ in range(rows)])
    at[:40, 0], at[:, 1] = 8195, 17  # columns of both panels, that many samples win
    winners = torch.randint(1, 4, (rows, k), generator=draw).float()
    labels = torch.arange(rows) % classes
    phi = torch.zeros(rows, m).scatter_add_(1, at, winners)
    used = at.unique()
    G, Q = torch.ones(m, m), torch.ones(m, classes)
    want = torch.ones(m, m)
    want[used[:, None], used] += phi[:, used].T @ phi[:, used]
    won = torch.zeros(m, (rows + 31) // 32, dtype=torch.int32)
    _library.load().flyk_shim_order(7)
    _library.call("winner_gram", winners, at, labels, rows, k, m, classes, G, Q, won)
    assert torch.equal(G.tril(), want.tril())
    assert torch.equal(G.triu(1), torch.ones(m, m).triu(1))
    for label in range(classes):
        assert torch.equal(Q[:, label], 1 + phi[labels == label].sum(0))


def test_too_long_a_row_is_refused_in_a_sentence() -> None:
    y = torch.zeros(1)
    with pytest.raises(RuntimeError, match=r"winner_take_all: .* holds at most 2\^30 entries"):
        _library.call("winner_take_all", y, 0, 1, 2**30 + 1, 1, None, 0, y, y)
