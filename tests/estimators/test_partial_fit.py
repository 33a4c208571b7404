"""What a stream must not change: its chunks, their order, who saw which, and when a class came."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import torch
from scipy import sparse
from sklearn.datasets import load_digits, make_regression
from sklearn.metrics import log_loss
from sklearn.model_selection import train_test_split

from flyk.estimators import FlyClassifier, FlyRegressor
from flyk.nn import REAR

Data = tuple[np.ndarray, np.ndarray, np.ndarray]
OPTIONS = [{}, {"fit_intercept": False, "k": 32}, {"kind": "sparse_gaussian", "activation": "none"}]


@pytest.fixture(scope="module")
def digits() -> Data:
    X, y = load_digits(return_X_y=True)
    return X[:600], np.array(list("abcdefghij"))[y[:600]], np.random.default_rng(0).uniform(0, 2, 600)


@pytest.fixture(scope="module")
def line() -> Data:
    X, y = make_regression(500, 12, n_targets=2, noise=1.0, random_state=0)
    return X, y + 50, np.random.default_rng(0).uniform(0, 2, 500)


def said(model: Any, X: np.ndarray) -> list[np.ndarray]:
    names = ("decision_function", "predict_proba") if isinstance(model, FlyClassifier) else ("predict",)
    return [getattr(model, name)(X) for name in names]


def assert_same(a: Any, b: Any, X: np.ndarray) -> None:
    assert a.n_samples_seen_ == b.n_samples_seen_
    for mine, theirs in zip(said(a, X), said(b, X), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-7, atol=1e-7)


def streamed(model: Any, X: Any, y: np.ndarray, w: np.ndarray, order: np.ndarray, **first: Any) -> Any:
    """Rows in this order, in chunks of many sizes."""
    for chunk in np.split(order, [1, 4, 50, 51, 300]):
        model.partial_fit(X[chunk], y[chunk], sample_weight=w[chunk], **first)
        first = {}
    return model


@pytest.mark.parametrize("options", OPTIONS)
def test_chunks_of_classes_in_any_order_are_one_fit(digits: Data, options: dict[str, Any]) -> None:
    X, y, w = digits
    whole = FlyClassifier(100, **options).fit(X, y, w)
    for order in (np.arange(len(X)), np.random.default_rng(1).permutation(len(X)), np.argsort(y)):
        assert_same(streamed(FlyClassifier(100, **options), X, y, w, order, classes=np.unique(y)), whole, X)


@pytest.mark.parametrize("options", OPTIONS)
def test_chunks_of_numbers_in_any_order_are_one_fit(line: Data, options: dict[str, Any]) -> None:
    X, y, w = line
    whole = FlyRegressor(100, **options).fit(X, y, w)
    for order in (np.arange(len(X)), np.random.default_rng(1).permutation(len(X))):
        assert_same(streamed(FlyRegressor(100, **options), X, y, w, order), whole, X)


def test_a_merge_is_a_fit_on_both(digits: Data, line: Data) -> None:
    for make, (X, y, w) in ((FlyClassifier, digits), (FlyRegressor, line)):
        half = [make(100).fit(X[s], y[s], w[s]) for s in (slice(0, 200), slice(200, None))]
        before = said(half[1], X)
        assert_same(half[0].merge(half[1]), make(100).fit(X, y, w), X)
        for now, then in zip(said(half[1], X), before, strict=True):
            np.testing.assert_array_equal(now, then)


def test_a_merge_brings_classes_where_they_may_come(digits: Data) -> None:
    X, y, w = digits
    low, high = y <= "e", y >= "d"
    parts = [FlyClassifier(100, on_new_class="grow").fit(X[rows], y[rows], w[rows]) for rows in (high, low)]
    both = np.concatenate([np.flatnonzero(high), np.flatnonzero(low)])
    assert_same(parts[0].merge(parts[1]), FlyClassifier(100).fit(X[both], y[both], w[both]), X)
    with pytest.raises(ValueError, match=r"other must hold no class but those before, .* got 'a'"):
        FlyClassifier(100).fit(X[high], y[high]).merge(parts[1])


def test_a_class_that_comes_late_is_as_if_it_had_been_known(digits: Data) -> None:
    X, y, w = digits
    model = FlyClassifier(100, on_new_class="grow")
    order = np.argsort(y)[::-1]  # the later a class comes, the earlier it is sorted
    assert_same(streamed(model, X, y, w, order), FlyClassifier(100).fit(X, y, w), X)
    assert list(model.classes_) == sorted(set(y))


def test_a_class_that_may_not_come_is_refused_and_nothing_learned(digits: Data) -> None:
    X, y, _ = digits
    few = y <= "c"
    model = FlyClassifier(100).partial_fit(X[few], y[few])
    before = said(model, X)
    with pytest.raises(ValueError, match=r"y must hold no class but those before, .* got 'd'.*on_new_class='grow'"):
        model.partial_fit(X, y)
    with pytest.raises(ValueError, match=r"y must hold the classes given, .* got 'd'"):
        model.partial_fit(X, y, classes=["a", "b", "c"])
    assert all(map(np.array_equal, said(model, X), before))


def test_a_class_known_and_not_seen_is_never_chosen(digits: Data) -> None:
    X, y, _ = digits
    few = y <= "b"
    model = FlyClassifier(100).partial_fit(X[few], y[few], classes=["a", "b", "z"])
    assert (model.decision_function(X)[:, 2] == -np.inf).all()
    assert (model.predict_proba(X)[:, 2] == 0).all()
    assert set(model.predict(X)) == {"a", "b"}
    model = FlyClassifier(100).partial_fit(X[few], y[few] == "a", classes=[False, True])
    np.testing.assert_allclose(
        model.decision_function(X[:5]), FlyClassifier(100).fit(X[few], y[few] == "a").decision_function(X[:5])
    )


def test_weights_count_rows(digits: Data) -> None:
    X, y, _ = digits
    counts = np.random.default_rng(0).integers(0, 4, len(X))
    weighted, repeated = (
        FlyClassifier(100).fit(X, y, counts),
        FlyClassifier(100).fit(X.repeat(counts, 0), y.repeat(counts)),
    )
    for mine, theirs in zip(said(weighted, X), said(repeated, X), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-7, atol=1e-7)


def test_without_an_intercept_it_is_rear(digits: Data) -> None:
    X, y, _ = digits
    codes = np.unique(y, return_inverse=True)[1]
    model = FlyClassifier(100, fit_intercept=False, k=30, random_state=7).fit(X, y)
    rear = REAR(64, 10, 100, k=30, seed=7, dtype=torch.float64)
    rear.update(torch.from_numpy(X), torch.from_numpy(codes))
    rear.flush()
    rear.ridge = 1e-2 * float(rear.G.diagonal().mean())
    np.testing.assert_allclose(model.decision_function(X), rear(torch.from_numpy(X)).numpy(), atol=1e-6)


def test_an_intercept_is_ridge_regression_of_what_is_left_of_the_means(line: Data) -> None:
    from sklearn.linear_model import Ridge

    from flyk.estimators import FlyProjection

    X, y, w = line
    phi = FlyProjection(100).fit_transform(X)
    ridge = 1e-2 * (w[:, None] * phi**2).sum(0).mean()
    expected = Ridge(alpha=ridge).fit(phi, y, w)
    model = FlyRegressor(100).fit(X, y, w)
    np.testing.assert_allclose(model.coef_, expected.coef_, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(model.intercept_, expected.intercept_, rtol=1e-6)


def test_left_out_scores_are_those_of_a_fit_without_the_row(digits: Data) -> None:
    from flyk.estimators._calibration import left_out_scores

    X, y, w = digits
    model = FlyClassifier(20, calibration_rows=5).fit(X[:50], y[:50], w[:50])
    kept, statistics = model._kept_rows, model._statistics
    phi = model._expansion(torch.from_numpy(kept.rows))
    for intercept in (True, False):
        scores = left_out_scores(statistics, phi, torch.from_numpy(kept.weights), 1e-2, intercept)
        ridge = 1e-2 * float(statistics.G.diagonal().mean())
        for row, got in zip(kept.rows, scores, strict=True):
            others = ~(X[:50] == row).all(1)
            without = FlyClassifier(20, fit_intercept=intercept).fit(X[:50][others], y[:50][others], w[:50][others])
            # λ is held while the row is left out, so it is given here as a share of what is left.
            without.set_params(relative_ridge=ridge / float(without._statistics.G.diagonal().mean()))
            expected = dict(zip(without.classes_, without.decision_function(row[None])[0], strict=True))
            np.testing.assert_allclose([expected.get(c, 0) for c in model.classes_], got, atol=1e-9)


def test_probabilities_are_calibrated(digits: Data) -> None:
    X, y = load_digits(return_X_y=True)
    y = np.where(np.random.default_rng(0).random(len(y)) < 0.2, np.random.default_rng(1).integers(0, 10, len(y)), y)
    train, test, y_train, y_test = train_test_split(X, y, random_state=0)
    model = FlyClassifier(500).fit(train, y_train)
    p, scores = model.predict_proba(test), torch.from_numpy(model.decision_function(test))
    assert log_loss(y_test, p) < 1.05 * min(
        log_loss(y_test, torch.softmax(b * scores, 1).numpy()) for b in np.geomspace(0.1, 100, 40)
    )


def test_sparse_rows_and_a_pickle_say_the_same(digits: Data, line: Data) -> None:
    X, y, w = digits
    model = FlyClassifier(100).fit(X, y, w)
    assert_same(FlyClassifier(100).fit(sparse.csr_array(X), y, w), model, X)
    np.testing.assert_array_equal(model.predict(sparse.csc_matrix(X)), model.predict(X))
    copy = pickle.loads(pickle.dumps(model))
    assert_same(copy.partial_fit(X, y), model.partial_fit(X, y), X)


def test_the_ridge_may_change_without_the_data(digits: Data) -> None:
    X, y, _ = digits
    model = FlyClassifier(100).fit(X, y)
    before = said(model, X)
    assert_same(model.set_params(relative_ridge=0.1), FlyClassifier(100, relative_ridge=0.1).fit(X, y), X)
    assert not np.allclose(said(model, X)[0], before[0], atol=1e-3)


@pytest.mark.parametrize(
    ("options", "said"),
    [({"random_state": 1}, "other must expand"), ({"n_components": 50}, "other must expand"), ({"k": 5}, "got .*, 5")],
)
def test_what_differs_does_not_merge(digits: Data, options: dict[str, Any], said: str) -> None:
    X, y, _ = digits
    with pytest.raises(ValueError, match=said):
        FlyClassifier(100).fit(X, y).merge(FlyClassifier(**{"n_components": 100} | options).fit(X, y))
    with pytest.raises(TypeError, match="other must be a FlyClassifier, got FlyRegressor"):
        FlyClassifier(100).fit(X, y).merge(FlyRegressor(100).fit(X, X[:, 0]))
    with pytest.raises(ValueError, match=r"other must have targets \(\), got \(2,\)"):
        FlyRegressor(100).fit(X, X[:, 0]).merge(FlyRegressor(100).fit(X, X[:, :2]))
    with pytest.raises(ValueError, match=r"y must have the targets of the rows before, \(\), got \(2,\)"):
        FlyRegressor(100).fit(X, X[:, 0]).partial_fit(X, X[:, :2])


@pytest.mark.parametrize("change", [{"n_components": 30}, {"random_state": 3}, {"k": 5}, {"kind": "sparse_sign"}])
def test_the_expansion_may_not_change_until_the_next_fit(digits: Data, line: Data, change: dict[str, Any]) -> None:
    for model, (X, y, _) in ((FlyClassifier(20), digits), (FlyRegressor(20), line)):
        before = model.fit(X, y).predict(X)
        model.set_params(**change)
        with pytest.raises(ValueError, match=f"^{next(iter(change))} must stay .* until the next fit, got"):
            model.partial_fit(X, y)
        np.testing.assert_array_equal(model.predict(X), before)
        model.fit(X, y).partial_fit(X, y)


def test_classes_of_another_kind_may_not_come(digits: Data) -> None:
    X, y, _ = digits
    model = FlyClassifier(20, on_new_class="grow").fit(X, y)
    with pytest.raises(TypeError, match="y must hold classes of the kind of those before"):
        model.partial_fit(X[:3], [1, 2, 3])
    assert model.classes_.tolist() == list("abcdefghij")


def test_what_does_not_fit_into_memory_or_is_oneself_is_refused(digits: Data) -> None:
    X, y, _ = digits
    with pytest.raises(ValueError, match=r"^n_components"):
        FlyClassifier(10**9).fit(X, y)
    model = FlyClassifier(20).fit(X, y)
    with pytest.raises(ValueError, match="other must be another FlyClassifier"):
        model.merge(model)


def test_river_takes_it(digits: Data) -> None:
    compat = pytest.importorskip("river.compat")
    X, y, _ = digits
    learner = compat.convert_sklearn_to_river(FlyClassifier(50), classes=list("abcdefghij"))
    for row, label in zip(X[:60], y[:60], strict=True):
        learner.learn_one(dict(enumerate(row)), label)
    told = [learner.predict_one(dict(enumerate(row))) for row in X[:60]]
    assert told == FlyClassifier(50).fit(X[:60], y[:60]).predict(X[:60]).tolist()
