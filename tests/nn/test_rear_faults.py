"""REAR and bad numbers: rows that are not finite, and systems that float32 or no dtype can solve."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from test_rear import D, M, T, fed, router, stream

from flyk.nn import REAR, _solve
from flyk.nn._choose_ridge import gcv

NAN, INF = float("nan"), float("inf")


def spoiled(n=20, at=(7, 11), value=NAN, dtype=torch.float64):
    h, labels = stream(n, dtype=dtype)
    for row in at:
        h[row, row % D] = value
    return h, labels


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("value", [NAN, INF, -INF])
def test_a_row_that_is_not_finite_is_refused_by_its_number_and_nothing_has_changed(value, dtype):
    good, labels = stream(5)
    module = fed(good, labels, flush_rows=7)
    norm = "nan" if value != value else "inf"
    with pytest.raises(ValueError, match=rf"^h must be finite, got row 7 of norm {norm} in torch.float64$"):
        module.update(*spoiled(value=value, dtype=dtype))
    untouched = fed(good, labels, flush_rows=7)
    assert torch.equal(module.counts, untouched.counts)
    assert torch.equal(module.solve(), untouched.solve())
    with pytest.raises(ValueError, match="got row 7 of"):
        module.update(spoiled(value=value, dtype=dtype)[0].view(4, 5, D), 1)  # counted through all leading dimensions


def test_a_finite_row_that_float32_cannot_square_is_refused_too():
    module = router(dtype=torch.float32)
    with pytest.raises(ValueError, match=r"^h must be finite, got row 2 of norm inf in torch.float32$"):
        module.update(spoiled(at=(2,), value=1e300)[0], 0)
    module.update(spoiled(at=(2,), value=1e15)[0], 0)
    module.flush()
    assert module.G.isfinite().all()


def test_dropped_rows_are_counted_and_leave_no_trace():
    h, labels = spoiled()
    module = fed(h, labels, nonfinite="drop")
    keep = h.isfinite().all(1)
    clean = fed(h[keep], labels[keep])
    assert torch.equal(module.counts, clean.counts)
    assert torch.equal(module.dropped, torch.bincount(labels[~keep], minlength=T))
    assert torch.equal(module.solve(), clean.solve())
    module.merge_(fed(h, labels, nonfinite="drop", num_experts=T))
    assert int(module.dropped.sum()) == 4
    other = router(nonfinite="drop")
    other.load_state_dict(module.state_dict())
    assert torch.equal(other.dropped, module.dropped)
    module.update(torch.full((3, D), NAN), 0)  # a batch of which nothing is left
    assert torch.equal(module.counts, other.counts)


def test_ignored_rows_spoil_the_statistics_and_the_solution_says_so():
    module = fed(*spoiled(), nonfinite="ignore")
    with pytest.raises(ValueError, match="ridge must make G"):
        module.solve()


def test_a_row_without_scores_is_not_routed():
    h, labels = stream()
    module = fed(h, labels)
    h[4, 1] = NAN
    with pytest.raises(ValueError, match="h must be finite to be routed, got row 4"):
        module.route(h)
    module = fed(*stream(), nonfinite="ignore")
    assert module.route(h).shape == labels.shape


@pytest.mark.parametrize("name", ["G", "Q"])
def test_a_state_with_nan_is_refused(name):
    module = fed(*stream())
    state = module.state_dict()
    state[name] = state[name].clone()
    state[name][1, 0] = NAN
    before = module.solve().clone()
    with pytest.raises(Exception, match=f"{name} must be finite"):
        module.load_state_dict(state)
    assert torch.equal(module.solve(), before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_without_ridge_and_with_fewer_rows_than_M_there_is_no_solution(dtype):
    module = fed(*stream(M // 2), ridge=0.0, dtype=dtype)
    with pytest.raises(
        ValueError, match=r"^ridge must make G \+ ridge I positive definite, got 0.0; about (\S+) would"
    ) as e:
        module.solve()
    module.ridge = float(str(e.value).split("about ")[1].split()[0])  # what it names does
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert module.solve().isfinite().all()


def test_without_ridge_and_with_rows_enough_the_solution_is_least_squares():
    h, labels = stream(400)
    module = fed(h, labels, ridge=0.0, k=9)
    phi = module._expand(h).numpy()
    wanted = np.linalg.lstsq(phi, np.eye(T)[labels], rcond=None)[0]
    np.testing.assert_allclose(module.solve().numpy(), wanted, atol=1e-8)


def ill(ridge, scale=1.0):
    """Rows almost in one direction: G's condition number is far beyond float32's digits."""
    h, labels = stream(300)
    h = 100 * torch.ones(D, dtype=torch.float64) + scale * h
    module = fed(h, labels, dtype=torch.float32, ridge=ridge)
    module.flush()
    return module


def exactly(module):
    """U in float64 from the statistics as they are."""
    lower = module.G.double().tril()
    A = lower + lower.tril(-1).t() + module.ridge * torch.eye(M, dtype=torch.float64)
    return torch.linalg.solve(A, module.Q.double())


def off(U, wanted):
    return float((U.double() - wanted).norm() / wanted.norm())


def test_what_float32_cannot_factor_is_solved_in_float64_with_a_warning():
    module = ill(1e-5)
    module.G.fill_(1000.0)  # of rank one, and 1e-5 is lost beside it in float32, whatever a machine's rounding
    with pytest.warns(UserWarning, match="ridge is small for statistics in float32") as told:
        U = module.solve()
    assert len(told) == 1
    assert told[0].filename.endswith("test_rear_faults.py")
    assert off(U, exactly(module)) < 1e-5
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        module.ridge = 2e-5
        module.solve()  # said once
    module.G.diagonal().sub_(10.0)  # eigenvalues below -1, as rounding may leave them
    module.ridge = 1.0
    with pytest.raises(ValueError, match="ridge must make G"):
        module.solve()


def test_a_poor_factor_is_refined_to_the_digits_of_a_good_one():
    module = ill(3000.0)
    F, wanted = _solve.factor(module.G, module.ridge), exactly(module)
    poor = F * 1.1  # as if made in one digit
    assert off(_solve.substitute(poor, module.Q), wanted) > 0.1
    refined = _solve._refined(module.G, module.Q, module.ridge, poor)
    assert refined is not None
    assert off(refined, wanted) < 1e-2
    assert _solve._refined(module.G, module.Q, module.ridge, F * 3) is None  # of no use at all


def test_ordinary_solutions_are_neither_refined_nor_warned_of(monkeypatch):
    used, substitute = [], _solve.substitute
    monkeypatch.setattr(_solve, "substitute", lambda *a: used.append(1) or substitute(*a))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fed(*stream(200, dtype=torch.float32), dtype=torch.float32, ridge=5.0).solve()
        fed(*stream(200)).solve()
    assert len(used) == 4  # U, and one correction, of each


def brute_force(module, h, labels, ridge):
    """GCV by the hat matrix itself."""
    phi = module._expand(h).double().numpy()
    hat = phi @ np.linalg.solve(phi.T @ phi + ridge * np.eye(M), phi.T)
    Y = np.eye(module.num_experts)[labels]
    n = len(phi)
    return n * ((Y - hat @ Y) ** 2).sum() / (n - np.trace(hat)) ** 2, np.trace(hat)


def test_gcv_from_the_statistics_is_gcv_by_the_hat_matrix():
    h, labels = stream(60)
    module = fed(h, labels)
    module.flush()
    ridges = [0.01, 1.0, 30.0]
    scores, freedom = gcv(module.G, module.Q, 60, torch.tensor(ridges, dtype=torch.float64))
    wanted = np.array([brute_force(module, h, labels, ridge) for ridge in ridges])
    np.testing.assert_allclose(np.stack((scores, freedom), 1), wanted, rtol=1e-9)


def test_the_ridge_chosen_is_the_best_and_no_order_of_the_stream_changes_it():
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(3, D, generator=generator)
    labels = torch.arange(600) % 3
    h = centres[labels] + 1.5 * torch.randn(600, D, generator=generator)
    shuffled, sorted_ = router(3), router(3)
    shuffled.update(h, labels)
    order = labels.argsort(stable=True)
    sorted_.update(h[order], labels[order])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        chosen = shuffled.choose_ridge()
    assert chosen == shuffled.ridge == pytest.approx(sorted_.choose_ridge(), rel=1e-6)
    x = centres[labels] + 1.5 * torch.randn(600, D, generator=generator)

    def error(ridge):
        shuffled.ridge = ridge
        return float((shuffled(x) - torch.eye(3, dtype=torch.float64)[labels]).square().mean())

    assert error(chosen) <= 1.05 * min(error(chosen * factor) for factor in (1e-4, 1e-2, 1, 1e2, 1e4))


def test_a_ridge_at_the_edge_of_the_candidates_is_warned_of():
    module = fed(*stream(60))
    with pytest.warns(UserWarning, match="the best ridge, 0.001, is at the edge of the candidates"):
        fed(torch.eye(D, dtype=torch.float64).repeat(40, 1)[:60], torch.arange(60) % D % T).choose_ridge([1e-3, 1e6])
    with pytest.warns(UserWarning, match=r"the best ridge, 1e\+04, is at the edge") as told:
        module.choose_ridge([1e4, 1.0])  # labels that have nothing to do with the rows
    assert told[0].filename.endswith("test_rear_faults.py")
    assert module.choose_ridge([3.0]) == 3.0
    for bad in ([], [0.0], [-1.0], [NAN]):
        with pytest.raises(ValueError, match=r"^ridges must be"):
            module.choose_ridge(bad)
    with pytest.raises(TypeError, match=r"^ridges must be a number"):
        module.choose_ridge(["1"])
    with pytest.raises(ValueError, match="choose_ridge needs at least one row"):
        router().choose_ridge()


def test_an_expansion_beyond_the_memory_there_is_is_refused_before_it_is_taken():
    with pytest.raises(
        ValueError, match=r"^expansion must need at most the .* of memory that cpu has, got one .* needs"
    ):
        REAR(8, 2, 3_000_000)
