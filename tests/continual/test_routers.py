"""Routers, triggers and aggregations on data small enough to know the answer."""

import numpy as np
import pytest
import torch
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier

from flyk.continual.aggregate import AGGREGATIONS, aggregate
from flyk.continual.experts import ByDrift, BySamples, mean_miss
from flyk.continual.routers import KNN, ROUTERS, KMeans, NaiveBayes, make_router, ridge_router
from flyk.nn import REAR


def two_experts(rows=60, features=8, seed=0):
    generator = torch.Generator().manual_seed(seed)
    centres = 2 * torch.randn(2, features, generator=generator)
    ids = torch.arange(2).repeat(rows)
    return centres[ids] + torch.randn(len(ids), features, generator=generator), ids


def taught(router, h, ids):
    for expert in ids.unique().tolist():
        for part in h[ids == expert].split(16):
            router.update(part, expert)
    return router


@pytest.mark.parametrize("kind", ["ridge", *ROUTERS])
def test_routers_route_and_ignore_experts_never_seen(kind):
    torch.manual_seed(0)
    h, ids = two_experts()
    router = make_router(kind, 8, 4, expansion=64, ridge=10.0)
    if kind == "mlp":
        for _ in range(20):
            taught(router, h, ids)
    taught(router, h, ids)
    routes = router.route(h)
    assert routes.max() < 2
    # an MLP that saw expert 1 last has forgotten expert 0; the others lose nothing
    assert (routes == ids).float().mean() > (0.45 if kind == "mlp" else 0.9)


@pytest.mark.parametrize("kind", ["ridge", "prototype", "naive-bayes"])
def test_sums_do_not_depend_on_order(kind):
    h, ids = two_experts()
    one = taught(make_router(kind, 8, 2, expansion=64, ridge=10.0), h, ids)
    order = torch.randperm(len(h), generator=torch.Generator().manual_seed(1))
    other = make_router(kind, 8, 2, expansion=64, ridge=10.0)
    for row in order.tolist():
        other.update(h[row][None], int(ids[row]))
    probe = two_experts(seed=5)[0]
    assert torch.equal(one.route(probe), other.route(probe))


def test_naive_bayes_is_scikit_learns():
    h, ids = two_experts()
    router = taught(NaiveBayes(8, 2, smoothing=1e-9), h, ids)
    theirs = GaussianNB(priors=[0.5, 0.5]).fit(h.double().numpy(), ids.numpy())
    probe = two_experts(rows=200, seed=3)[0]
    assert router.route(probe).tolist() == theirs.predict(probe.double().numpy()).tolist()


def test_k_nearest_neighbours_are_scikit_learns():
    h, ids = two_experts()
    router = taught(KNN(8, 2, neighbours=5), h, ids)
    theirs = KNeighborsClassifier(5, metric="cosine").fit(h.numpy(), ids.numpy())
    probe = two_experts(rows=200, seed=3)[0]
    assert router.route(probe).tolist() == theirs.predict(probe.numpy()).tolist()


def test_k_means_of_one_cluster_is_the_mean():
    h, ids = two_experts()
    router = taught(KMeans(8, 2, clusters=1), h, ids)
    want = torch.stack([h[ids == e].double().mean(0) for e in range(2)])
    torch.testing.assert_close(router.means[:, 0], want)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"winners": 65}, "winners must be from 1 to 64, got 65"),
        ({"winners": 0}, "winners must be from 1 to 64, got 0"),
        ({"sparse": 9}, "sparse must be from 1 to 8, got 9"),
    ],
)
def test_an_expansion_out_of_range_is_refused_by_its_own_name(options, words):
    with pytest.raises(ValueError, match=words):
        make_router("ridge", 8, 2, expansion=64, **options)


def test_sparse_and_winning_expansions_are_rear():
    sparse, winners = (
        make_router("ridge", 8, 2, expansion=64, sparse=3),
        make_router("ridge", 8, 2, expansion=64, winners=4),
    )
    assert isinstance(sparse, REAR)
    assert sparse.projection.nnz == 3
    assert isinstance(winners, REAR)
    assert winners.k == 4


def test_an_unknown_router_is_named():
    with pytest.raises(ValueError, match="router must be one of ridge, prototype"):
        make_router("oracle", 8, 2)


def test_experts_by_samples_begin_when_the_budget_is_spent():
    trigger = BySamples(20)
    assert [trigger.starts(8, 0.0) for _ in range(8)] == [True, False, False, True, False, False, True, False]


@pytest.mark.parametrize("experts", [1, 2])
def test_rows_unlike_an_experts_own_are_a_miss(experts):
    generator = torch.Generator().manual_seed(0)
    centres = 3 * torch.randn(3, 8, generator=generator)
    rows = [centre + torch.randn(40, 8, generator=generator) for centre in centres]
    router = ridge_router(8, 3, expansion=64, ridge=10.0)
    for expert in range(experts):
        router.update(rows[expert][:30], expert)
    like, unlike = mean_miss(router, rows[0][30:], 0), mean_miss(router, rows[2], 0)
    assert unlike > 3 * like
    if experts == 1:
        phi = (rows[2].double() @ router.projection.values.double().T).relu()
        seen = (rows[0][:30].double() @ router.projection.values.double().T).relu()
        inverse = torch.linalg.inv(seen.T @ seen + 10 * torch.eye(64, dtype=torch.float64))
        assert unlike == pytest.approx((phi @ inverse * phi).sum(1).mean().item(), rel=1e-3)


def test_experts_by_drift_begin_where_the_misses_rise():
    draws = np.random.default_rng(0)
    misses = [*(0.1 + 0.03 * draws.standard_normal(30)), *(0.6 + 0.03 * draws.standard_normal(10))]
    trigger = ByDrift(threshold=4.0, settle=4, patience=2)
    starts = [i for i, miss in enumerate(misses) if trigger.starts(8, miss)]
    assert starts == [0, 31], "the second batch above ends the patience"


def test_one_odd_batch_is_no_drift():
    trigger = ByDrift(threshold=4.0, settle=4, patience=2)
    misses = [0.1, 0.09, 0.11, 0.1, 0.08, 0.1, 0.9, 0.1, 0.09, 0.9, 0.1]
    assert [i for i, miss in enumerate(misses) if trigger.starts(8, miss)] == [0]


@pytest.mark.parametrize(("make", "words"), [(lambda: BySamples(0), "budget"), (lambda: ByDrift(settle=1), "settle")])
def test_bad_triggers_are_named(make, words):
    with pytest.raises(ValueError, match=words):
        make()


def test_aggregations_by_hand():
    logits = torch.tensor([[[2.0, 0.0, 1.0]], [[0.0, 5.0, -1.0]]])
    p = logits.softmax(-1)
    want = {
        "softmax-max": p.amax(0),
        "softmax-mean": (p[0] + p[1]) / 2,
        "mean": torch.tensor([[1.0, 2.5, 0.0]]),
        "max": torch.tensor([[2.0, 5.0, 1.0]]),
        "min-entropy": p[1],  # the second head is surer
    }
    assert set(want) == set(AGGREGATIONS)
    for kind, scores in want.items():
        torch.testing.assert_close(aggregate(kind, logits), scores)
    with pytest.raises(ValueError, match="aggregate must be one of"):
        aggregate("vote", logits)
