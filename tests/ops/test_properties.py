"""What must hold for any input, by hypothesis: against definitions written out here, not against flyk's reference."""

from __future__ import annotations

import math

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from torch import Tensor

from flyk import ops
from flyk.check.bounds import Rounding
from flyk.check.cases import DTYPES

SELECTIONS = st.sampled_from(["magnitude", "signed", "biased_magnitude"])
SEEDS = st.integers(0, 2**31)
ROWS = st.integers(0, 40)
EPS = {torch.float32: 2.0**-23, torch.float64: 2.0**-52}


def integers(seed: int, *shape: int, low: int = -3, high: int = 4) -> Tensor:
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(seed)).float()


def normal(seed: int, *shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def plain_score(y: float, b: float, selection: str) -> float:
    score = {"magnitude": abs(y) + b, "signed": y + b, "biased_magnitude": abs(y + b)}[selection]
    return math.inf if math.isnan(score) else score


@given(
    st.lists(st.sampled_from([-2.0, -1.0, -0.0, 0.0, 1.0, 2.0, math.inf, -math.inf, math.nan]), max_size=70), st.data()
)
def test_winners_are_those_of_a_stable_sort(row: list[float], data: st.DataObject) -> None:
    k = data.draw(st.integers(0, len(row)))
    selection, dtype = data.draw(SELECTIONS), data.draw(st.sampled_from(DTYPES))
    bias = data.draw(st.none() | st.lists(st.integers(-1, 1), min_size=len(row), max_size=len(row)))
    scores = [plain_score(y, b, selection) for y, b in zip(row, bias or [0] * len(row), strict=True)]
    # Python's sort is stable; NaN goes before infinity.
    nans = [math.isnan(y) or (bias is not None and math.isnan(y + b)) for y, b in zip(row, bias or row, strict=True)]
    order = sorted(range(len(row)), key=lambda i: (not nans[i], -scores[i]))
    tensor = None if bias is None else torch.tensor(bias, dtype=torch.float32)
    winners, indices = ops.winner_take_all(torch.tensor(row, dtype=dtype), k, bias=tensor, selection=selection)
    assert indices.tolist() == order[:k]
    torch.testing.assert_close(winners, torch.tensor(row, dtype=dtype)[indices], rtol=0, atol=0, equal_nan=True)


@given(SEEDS, st.integers(1, 600), st.integers(1, 40), st.data())
def test_winners_of_any_length(seed: int, n: int, rows: int, data: st.DataObject) -> None:
    k = data.draw(st.integers(0, n))
    spread = data.draw(st.sampled_from([2, 20, 2**20]))
    y = integers(seed, rows, n, low=-spread, high=spread)
    order = [sorted(range(n), key=lambda i: -abs(row[i])) for row in y.tolist()]
    assert ops.winner_take_all(y, k)[1].tolist() == [o[:k] for o in order]


@given(SEEDS, ROWS, st.integers(1, 60), st.integers(1, 90), st.booleans(), SELECTIONS, st.data())
def test_project_topk_is_project_then_winner_take_all(
    seed: int, rows: int, d: int, m: int, sparse: bool, selection: str, data: st.DataObject
) -> None:
    k, p = data.draw(st.integers(0, m)), data.draw(st.integers(1, d))
    activation = data.draw(st.sampled_from(["none", "relu"]))
    x, indices = integers(seed, rows, d), None
    if sparse:
        indices = torch.rand(m, d, generator=torch.Generator().manual_seed(seed)).argsort(1)[:, :p]
    values = integers(seed + 1, m, p if sparse else d)
    how = {"bias": integers(seed + 2, m), "selection": selection}
    y = ops.project(x, values, indices, activation=activation)
    found = ops.project_topk(x, values, indices, k, activation=activation, **how)
    for got, want in zip(found, ops.winner_take_all(y, k, **how), strict=True):
        assert torch.equal(got, want)


@given(SEEDS, ROWS, st.integers(1, 50), st.integers(0, 30), st.data())
def test_fly_lora_is_its_formula_row_by_row(seed: int, rows: int, r: int, m: int, data: st.DataObject) -> None:
    k, d = data.draw(st.integers(0, r)), data.draw(st.integers(1, 20))
    x, A, B, base = (
        integers(seed, rows, d),
        integers(seed + 1, r, d),
        integers(seed + 2, m, r),
        integers(seed + 3, rows, m),
    )
    want = base.clone()
    for n in range(rows):
        y = [sum(a * b for a, b in zip(x[n].tolist(), row, strict=True)) for row in A.tolist()]
        for i in sorted(range(r), key=lambda i: -abs(y[i]))[:k]:
            want[n] += 0.5 * y[i] * B[:, i]
    assert torch.equal(ops.fly_lora(x, base, A, None, B, k, scale=0.5), want)


def stream(
    phi: Tensor, labels: Tensor, classes: int, dtype: torch.dtype, cuts: list[int], order: Tensor
) -> list[Tensor]:
    """G and Q of the rows of phi in another order, in pieces."""
    G, Q = torch.zeros(phi.shape[1], phi.shape[1], dtype=dtype), torch.zeros(phi.shape[1], classes, dtype=dtype)
    for piece in order.tensor_split(cuts):
        ops.gram_(G, Q, phi[piece], labels[piece])
    return [G.tril(), Q]


@given(
    SEEDS, st.integers(1, 60), st.integers(1, 40), st.sampled_from(list(EPS)), st.lists(st.integers(0, 60), max_size=5)
)
def test_a_stream_gives_the_batch_statistics_in_any_order_and_pieces(
    seed: int, rows: int, m: int, dtype: torch.dtype, cuts: list[int]
) -> None:
    phi, labels = normal(seed, rows, m, dtype=dtype), integers(seed, rows, low=0, high=4).long()
    order = torch.randperm(rows, generator=torch.Generator().manual_seed(seed))
    got = stream(phi, labels, 4, dtype, sorted(cuts), order)
    exact, one_hot = phi.double(), torch.eye(4, dtype=torch.float64)[labels]
    want = [(exact.T @ exact).tril(), exact.T @ one_hot]
    size = [(exact.T.abs() @ exact.abs()).tril(), exact.T.abs() @ one_hot]
    for g, w, s in zip(got, want, size, strict=True):
        assert ((g.double() - w).abs() <= 2 * (rows + 1) * EPS[dtype] * s).all()


@given(SEEDS, st.integers(1, 40), st.integers(1, 60), st.lists(st.integers(0, 40), max_size=4), st.data())
def test_a_stream_of_integers_is_bitwise_the_batch(
    seed: int, rows: int, m: int, cuts: list[int], data: st.DataObject
) -> None:
    """Expansion, winners and Gram in one, whatever pieces the rows come in; and two halves add up."""
    k = data.draw(st.none() | st.integers(0, m))
    h, R, labels = integers(seed, rows, 9), integers(seed + 1, m, 9), integers(seed, rows, low=0, high=3).long()

    def statistics(pieces: list[Tensor]) -> list[Tensor]:
        G, Q = torch.zeros(m, m), torch.zeros(m, 3)
        for piece in pieces:
            ops.expand_gram_(G, Q, h[piece], R, None, labels[piece], k=k)
        return [G.tril(), Q]

    order = torch.randperm(rows, generator=torch.Generator().manual_seed(seed))
    batch = statistics([torch.arange(rows)])
    assert all(
        torch.equal(a, b) for a, b in zip(statistics(list(order.tensor_split(sorted(cuts)))), batch, strict=True)
    )
    halves = [statistics([half]) for half in order.tensor_split(2)]
    assert all(torch.equal(a + b, c) for a, b, c in zip(*halves, batch, strict=True))
    phi = (h @ R.T).relu()
    if k is not None:
        order_of_rows = [sorted(range(m), key=lambda i: -row[i])[:k] for row in phi.tolist()]
        phi = torch.stack([row * torch.eye(m)[o].sum(0) for row, o in zip(phi, order_of_rows, strict=True)])
    assert torch.equal(batch[0], (phi.T @ phi).tril())


@given(SEEDS, st.integers(1, 80), st.integers(0, 6), st.sampled_from([1e-3, 1.0, 1e4]), st.sampled_from(list(EPS)))
def test_ridge_solution_leaves_no_residual(seed: int, m: int, classes: int, ridge: float, dtype: torch.dtype) -> None:
    root = normal(seed, 2 * m + 8, m)
    G, Q = (root.T @ root).to(dtype), normal(seed + 1, m, classes, dtype=dtype)
    U = ops.ridge_solve(G.tril(), Q, ridge).double()
    S = G.double().tril() + G.double().tril(-1).T + ridge * torch.eye(m, dtype=torch.float64)
    # |S U - Q| <= (3 M + 2) eps sqrt(s_ii s_jj) |U|: a backward stable solve, see flyk.check.bounds.
    root_of = S.diagonal().sqrt()
    assert ((S @ U - Q).abs() <= (3 * m + 2) * EPS[dtype] * (torch.outer(root_of, root_of) @ U.abs())).all()


@given(SEEDS, ROWS, st.integers(1, 12), st.integers(1, 4), st.integers(0, 3), st.booleans())
def test_ensemble_is_its_formula_row_by_row(
    seed: int, rows: int, classes: int, experts: int, heads: int, masked: bool
) -> None:
    h, W, b = normal(seed, rows, 5), normal(seed + 1, classes, 5), normal(seed + 2, classes)
    bank_W, bank_b = normal(seed + 3, experts, heads, classes, 5), normal(seed + 4, experts, heads, classes)
    ids = integers(seed, rows, low=0, high=experts).long()
    seen = integers(seed, classes, low=0, high=2).bool() | (torch.arange(classes) == 0) if masked else None
    want = torch.zeros(rows, classes, dtype=torch.float64)
    for i, e in enumerate(ids.tolist()):
        for weight, bias in [(W, b), *zip(bank_W[e], bank_b[e], strict=True)]:
            exp = (weight @ h[i] + bias).exp() * (1 if seen is None else seen)
            want[i] = torch.maximum(want[i], exp / exp.sum())
    torch.testing.assert_close(ops.ensemble(h, W, b, bank_W, bank_b, ids, seen), want, rtol=1e-12, atol=1e-14)


@given(SEEDS, st.integers(1, 40), st.integers(1, 30))
def test_masked_cross_entropy_is_that_of_logits_with_minus_infinity(seed: int, rows: int, classes: int) -> None:
    logits = normal(seed, rows, classes).requires_grad_()
    target = integers(seed, rows, low=0, high=classes).long()
    mask = torch.full((classes,), -torch.inf, dtype=torch.float64)
    mask[target] = 0
    want = torch.nn.functional.cross_entropy(logits + mask, target)
    got = ops.masked_cross_entropy(logits, target)
    torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-14)
    for g, w in zip(torch.autograd.grad(got, logits), torch.autograd.grad(want, logits), strict=True):
        torch.testing.assert_close(g, w, rtol=1e-12, atol=1e-14)
        assert (g[:, mask.isinf()] == 0).all()


@given(SEEDS, st.lists(st.floats(0, 1), min_size=1, max_size=4), st.integers(1, 30))
def test_ema_after_many_steps_is_its_closed_form(seed: int, decays: list[float], steps: int) -> None:
    online = normal(seed, steps, 3, 2)
    bank = normal(seed + 1, len(decays), 3, 2)
    want = torch.stack(
        [
            d**steps * start + sum((1 - d) * d ** (steps - 1 - t) * online[t] for t in range(steps))
            for d, start in zip(decays, bank, strict=True)
        ]
    )
    for step in online:
        ops.ema_(bank, step, decays)
    torch.testing.assert_close(bank, want, rtol=1e-12, atol=1e-12)


@given(SEEDS, st.integers(1, 40), st.integers(1, 50), st.sampled_from(DTYPES))
def test_half_precision_sums_in_float32(seed: int, rows: int, d: int, dtype: torch.dtype) -> None:
    """No product is rounded to the half type on the way: what is off is the last rounding and float32's own."""
    x, R = normal(seed, rows, d, dtype=dtype), normal(seed + 1, 7, d, dtype=dtype)
    want, size = x.double() @ R.double().T, x.double().abs() @ R.double().abs().T
    rounding = Rounding(dtype)
    assert rounding.claim("y", ops.project(x, R), want, rounding.sums(d, size)).share() <= 1


@pytest.mark.parametrize("exponent", range(13))
def test_float32_products_of_integers_are_exact(exponent: int) -> None:
    """No TF32 or bfloat16 behind one's back: integers up to 2^12 multiply and add exactly in float32."""
    x = torch.tensor([[2.0**exponent - 1, 1.0, 2.0]])
    assert ops.project(x, x).item() == (2**exponent - 1) ** 2 + 5
    G, Q = torch.zeros(3, 3), torch.zeros(3, 1)
    ops.gram_(G, Q, x, torch.tensor([0]))
    assert torch.equal(G.tril(), (x.double().T @ x.double()).float().tril())
