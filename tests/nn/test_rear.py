"""REAR: scores in closed form, streaming equals batch, merging, experts and buffering."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flyk.nn import REAR, _router, _solve
from flyk.ops import ridge_solve
from flyk.ops.ridge_solve import factor

D, M, T = 6, 24, 4


def router(num_experts=T, **options):
    options = {"ridge": 0.5, "dtype": torch.float64, "seed": 1} | options
    return REAR(D, num_experts, M, **options)


def stream(n=40, num_experts=T, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return (
        torch.randn(n, D, generator=generator, dtype=torch.float64).to(dtype),
        torch.randint(num_experts, (n,), generator=generator),
    )


def fed(h, labels, **options):
    router_ = router(**options)
    router_.update(h, labels)
    return router_


def closed_form(module, h, labels, x):
    """Scores of x by float64 numpy from all rows at once."""
    R = module.projection.values.double().numpy()
    if module.projection.indices is not None:
        dense = np.zeros((M, D))
        np.put_along_axis(dense, module.projection.indices.long().numpy(), R, 1)
        R = dense

    def expand(rows):
        phi = rows.double().numpy() @ R.T
        if module.activation == "relu":
            phi = np.maximum(phi, 0)
        if module.k is not None:
            for row in phi:
                row[np.argsort(-np.abs(row), kind="stable")[module.k :]] = 0
        return phi

    phi, C = expand(h), np.eye(module.num_experts)[labels]
    U = np.linalg.solve(phi.T @ phi + module.ridge * np.eye(M), phi.T @ C)
    return np.where(C.sum(0) > 0, expand(x) @ U, -np.inf)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"k": 5},
        {"activation": "none"},
        {"activation": "none", "k": 5},
        {"kind": "sparse_gaussian", "nnz": 3},
        {"kind": "sparse_sign", "nnz": 2, "k": 5},
        {"kind": "binary", "nnz": 2, "ridge": 100.0},
    ],
)
def test_scores_are_ridge_regression_on_all_rows_in_closed_form(options):
    h, labels = stream()
    x = stream(9, seed=5)[0]
    module = router(**options)
    for rows, ids in zip(h.split(7), labels.split(7), strict=True):
        module.update(rows, ids)
    wanted = closed_form(module, h, labels, x)
    np.testing.assert_allclose(module(x).numpy(), wanted, rtol=1e-9, atol=1e-12)
    assert module.route(x).tolist() == wanted.argmax(1).tolist()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_float32_statistics_of_any_input_are_near_float64(dtype):
    h, labels = stream(200, dtype=dtype)
    x = stream(9, seed=5, dtype=dtype)[0]
    module = fed(h, labels, dtype=torch.float32, ridge=5.0)
    scores = module(x)
    assert scores.dtype == module.G.dtype == module.projection.values.dtype == torch.float32
    np.testing.assert_allclose(scores.numpy(), closed_form(module, h, labels, x), atol=2e-5)


chunks = st.lists(st.integers(1, 40), max_size=5)


@settings(max_examples=25, deadline=None)
@given(
    order=st.permutations(range(40)),
    cuts=chunks,
    flush_rows=st.integers(1, 50),
    k=st.sampled_from([None, 5]),
    solve_between=st.booleans(),
)
def test_any_order_and_chunking_of_a_stream_give_the_same_router(order, cuts, flush_rows, k, solve_between):
    h, labels = stream()
    whole, streamed = fed(h, labels, k=k), router(k=k, flush_rows=flush_rows)
    for rows in torch.tensor_split(torch.tensor(order), sorted(cuts)):
        streamed.update(h[rows], labels[rows])
        if solve_between:
            streamed.solve()
    streamed.flush()
    whole.flush()
    torch.testing.assert_close(streamed.G.tril(), whole.G.tril())
    torch.testing.assert_close(streamed.Q, whole.Q)
    torch.testing.assert_close(streamed.solve(), whole.solve())
    assert torch.equal(streamed.counts, torch.bincount(labels, minlength=T))


@settings(max_examples=15, deadline=None)
@given(cuts=chunks)
def test_chunking_alone_does_not_change_a_bit(cuts):
    h, labels = stream()
    whole, streamed = fed(h, labels, flush_rows=16), router(flush_rows=16)
    for rows, ids in zip(torch.tensor_split(h, sorted(cuts)), torch.tensor_split(labels, sorted(cuts)), strict=True):
        streamed.update(rows, ids)
    assert torch.equal(streamed.solve(), whole.solve())


@settings(max_examples=15, deadline=None)
@given(sizes=st.tuples(*[st.integers(0, 30)] * 3), experts=st.tuples(*[st.integers(1, 5)] * 3))
def test_merging_is_commutative_and_associative_and_is_the_joint_stream(sizes, experts):
    parts = [stream(n, e, seed=i) for i, (n, e) in enumerate(zip(sizes, experts, strict=True))]

    def part(i):
        return fed(*parts[i], num_experts=experts[i])

    left = part(0).merge_(part(1)).merge_(part(2))
    right = part(0).merge_(part(1).merge_(part(2)))
    turned = part(2).merge_(part(0)).merge_(part(1))
    joint = fed(torch.cat([h for h, _ in parts]), torch.cat([c for _, c in parts]), num_experts=max(experts))
    for other in (left, right, turned):
        assert torch.equal(other.counts, joint.counts)
        torch.testing.assert_close(other.solve(), joint.solve())


def test_merge_leaves_the_other_as_it_is_and_takes_other_dtypes():
    mine, other = fed(*stream(10)), fed(*stream(12, seed=1), dtype=torch.float32)
    scores = other(stream(5, seed=2)[0])
    assert mine.merge_(other) is mine
    assert torch.equal(other(stream(5, seed=2)[0]), scores)
    assert mine.G.dtype == torch.float64
    assert int(mine.counts.sum()) == 22
    torch.testing.assert_close(fed(*stream(10)).merge_(mine).counts, mine.counts + fed(*stream(10)).counts)
    twice, doubled = fed(*stream(10)), fed(torch.cat([stream(10)[0]] * 2), torch.cat([stream(10)[1]] * 2))
    torch.testing.assert_close(twice.merge_(twice).solve(), doubled.solve())


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("seed", 2),
        ("activation", "none"),
        ("k", 3),
        ("ridge", 7.0),
        ("kind", "binary"),
        ("in_features", D + 1),
        ("expansion", M + 1),
    ],
)
def test_merge_refuses_statistics_of_another_kind(name, value):
    settings_ = {"in_features": D, "expansion": M, "ridge": 0.5, "seed": 1, "dtype": torch.float64, name: value}
    if name == "kind":
        settings_["nnz"] = 2
    mine = fed(*stream())
    before = mine.solve().clone()
    with pytest.raises(ValueError, match=rf"other must have {name} .* got {value!r}"):
        mine.merge_(REAR(settings_.pop("in_features"), T, settings_.pop("expansion"), **settings_))
    assert torch.equal(mine.solve(), before)


def test_one_expert_for_all_rows_and_any_leading_shape():
    h, labels = stream(24)
    by_row, by_block = fed(h, labels), router()
    for expert in range(T):
        by_block.update(h[labels == expert], expert)
    torch.testing.assert_close(by_block.solve(), by_row.solve())
    shaped = fed(h.view(2, 3, 4, D), labels.view(2, 3, 4))
    assert torch.equal(shaped.solve(), by_row.solve())
    assert torch.equal(shaped(h.view(2, 3, 4, D)), by_row(h).view(2, 3, 4, T))
    single = router()
    single.update(h[0], 2)
    single.update(h[0, None].expand(3, D), np.int64(2))
    assert single.counts.tolist() == [0, 0, 4, 0]
    assert single.route(h[0]).shape == ()


def test_no_rows_at_all():
    module = fed(*stream(3))
    before = module.solve()
    module.update(torch.empty(0, D), torch.empty(0, dtype=torch.int64))
    module.update(torch.empty(2, 0, D), 1)
    assert torch.equal(module.solve(), before)
    assert module(torch.empty(0, D)).shape == (0, T)
    assert module(torch.empty(2, 0, D)).shape == (2, 0, T)


def test_unseen_experts_have_no_chance():
    h, labels = stream(30)
    module = fed(h, labels % 2 * 2)  # experts 0 and 2
    scores = module(h)
    assert torch.isneginf(scores[:, [1, 3]]).all()
    assert scores[:, [0, 2]].isfinite().all()
    assert set(module.route(h).tolist()) == {0, 2}


def test_route_before_any_row_is_refused():
    with pytest.raises(RuntimeError, match="route needs at least one row to have been given to update"):
        router().route(stream()[0])
    assert torch.isneginf(router()(stream()[0])).all()


def test_routing_is_better_than_chance_and_better_than_without_expansion():
    """Two experts that no linear router can tell apart: the rows of one lie on a shell inside the other's."""
    generator = torch.Generator().manual_seed(0)

    def draw(n):
        labels = torch.randint(2, (n,), generator=generator)
        h = torch.randn(n, 8, generator=generator)
        return h / h.norm(dim=1, keepdim=True) * (1.0 + labels[:, None]), labels

    (h, labels), (x, truth) = draw(2000), draw(1000)
    accuracy = {}
    for activation in ("none", "relu"):
        module = REAR(9, 2, 300, ridge=1.0, activation=activation, seed=4)
        module.update(torch.nn.functional.pad(h, (0, 1), value=1.0), labels)
        routed = module.route(torch.nn.functional.pad(x, (0, 1), value=1.0))
        accuracy[activation] = (routed == truth).double().mean().item()
    assert accuracy["none"] < 0.6
    assert accuracy["relu"] > 0.95


def test_added_experts_learn_as_if_they_had_been_there():
    h, labels = stream(40)
    early, late = fed(h, labels), router(num_experts=2)
    late.update(h[labels < 2], labels[labels < 2])
    scores = late(h)
    assert [late.add_expert(), late.add_expert()] == [2, 3]
    assert torch.equal(late(h)[:, :2], scores)  # the solution of the earlier experts is kept
    late.update(h[labels >= 2], labels[labels >= 2])
    torch.testing.assert_close(late.solve(), early.solve())
    grown = router(num_experts=0)
    with torch.inference_mode():
        assert grown.add_expert() == 0
    grown.update(h, 0)
    assert grown.counts.tolist() == [40]


def test_the_solution_is_kept_until_the_next_update(monkeypatch):
    solved = []
    solve = _solve.solve
    monkeypatch.setattr(_solve, "solve", lambda *args, **options: solved.append(1) or solve(*args, **options))
    module = router(ridge=0.0)
    module.G.copy_(torch.eye(M))
    module.Q.normal_()
    assert module.solve() is module.solve()
    module(stream()[0])
    assert len(solved) == 1
    for change in (lambda: module.update(*stream()), lambda: module.merge_(module)):
        count = len(solved)
        change()
        module.G.copy_(torch.eye(M))
        module.solve()
        assert len(solved) == count + 1
    module.ridge = 2.0  # another ridge is another solution
    torch.testing.assert_close(module.solve(), ridge_solve(module.G, module.Q, 2.0))


def test_rows_are_copied_and_no_graph_is_kept():
    h, labels = stream(10)
    source = h.clone().requires_grad_()
    module = fed(source * 1, labels)
    with torch.no_grad():
        source.zero_()
    torch.testing.assert_close(module.solve(), fed(h, labels).solve())
    assert not module.G.requires_grad


def test_updates_in_inference_mode_are_as_good():
    h, labels = stream(10)
    module = router(flush_rows=4)
    with torch.inference_mode():
        module.update(h, labels)
        module.route(h)
    module(h.clone().requires_grad_()).sum().backward()  # with the solution found in that mode
    module.update(h, labels)
    torch.testing.assert_close(module.solve(), fed(h.repeat(2, 1), labels.repeat(2)).solve())


def test_scores_are_differentiable_in_h():
    module = fed(*stream(), num_experts=T)
    assert torch.autograd.gradcheck(module, stream(3, seed=4)[0].requires_grad_())


def test_memory_is_bounded_by_blocks(monkeypatch):
    seen, project = [], _router.project
    monkeypatch.setattr(
        _router, "project", lambda h, *args, **options: seen.append(len(h)) or project(h, *args, **options)
    )
    module = fed(*stream(30))
    x = stream(2500)[0]
    blocked = module(x)
    assert seen == [1024, 1024, 452]
    torch.testing.assert_close(blocked, torch.cat([module(part) for part in x.split(100)]))


def test_autocast_changes_nothing():
    h, labels = stream(50, dtype=torch.float32)
    plain, cast = router(dtype=torch.float32), router(dtype=torch.float32)
    plain.update(h, labels)
    wanted = plain(h)
    with torch.autocast("cpu", torch.bfloat16):
        cast.update(h, labels)
        scores = cast(h)
    assert scores.dtype == torch.float32
    assert torch.equal(scores, wanted)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_kept_factor_gives_the_full_solution_after_more_rows(monkeypatch, dtype):
    monkeypatch.setattr("flyk.nn.rear.worth", lambda *_: True)
    h, labels = stream(400)
    kept = router(keep_factor=True, dtype=dtype, ridge=5.0)
    kept.update(h[:390], labels[:390] % 3)  # one expert is still unseen
    whole = fed(h, torch.cat((labels[:390] % 3, labels[390:])), ridge=5.0)
    kept.solve()
    kept.G.masked_fill_(torch.ones(M, M, dtype=torch.bool).triu(1), torch.nan)  # must not be read
    kept.update(h[390:], labels[390:])
    kept.flush()
    wanted = whole.solve()
    monkeypatch.setattr(_solve, "factor", lambda *_: pytest.fail("factored anew"))
    rtol, atol = (1e-3, 1e-6) if dtype == torch.float32 else (1e-7, 1e-11)
    torch.testing.assert_close(kept.solve().double(), wanted, rtol=rtol, atol=atol)


def test_no_factor_is_kept_where_a_new_one_is_faster():
    h, labels = stream(20)
    for expansion, kept in ((1694, False), (1695, True)):  # 15 (3 + 110)
        small = REAR(h.shape[1], 3, expansion, keep_factor=True)
        small.update(h, labels % 3)
        small.solve()
        assert (small._factor is not None) is kept


def test_a_factor_that_no_longer_serves_is_made_anew(monkeypatch):
    monkeypatch.setattr("flyk.nn.rear.worth", lambda *_: True)
    h, labels = stream(400)
    kept, made = router(keep_factor=True, ridge=1e-6), []
    monkeypatch.setattr(_solve, "factor", lambda *a: made.append(1) or factor(*a))
    kept.update(h[:3], labels[:3])
    kept.solve()
    kept.update(1e3 * h[3:], labels[3:])  # directions that the first factor has at the ridge alone
    torch.testing.assert_close(kept.solve(), ridge_solve(kept.G, kept.Q, 1e-6))
    assert len(made) == 2
