"""FlyProjection: what it computes, of what it is told, and how scikit-learn names it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy import sparse
from sklearn.datasets import load_iris
from sklearn.utils._testing import ignore_warnings

from flyk import reference
from flyk.estimators import FlyProjection
from flyk.nn import RandomProjection

X = np.random.default_rng(0).normal(size=(1500, 40))


@pytest.mark.parametrize("k", [None, 7])
@pytest.mark.parametrize("kind", ["gaussian", "sparse_gaussian", "sparse_sign", "binary"])
def test_is_the_layer_of_the_same_seed(kind: str, k: int | None) -> None:
    nnz = None if kind == "gaussian" else 10
    std = (40 / ((nnz or 40) * 60)) ** 0.5
    layer = RandomProjection(40, 60, kind=kind, nnz=nnz, std=std, seed=3).to(torch.float64)
    expected = layer(torch.from_numpy(X), activation="relu")
    if k is not None:
        winners, indices = reference.winner_take_all(expected, k)
        expected = torch.zeros_like(expected).scatter(1, indices, winners)
    model = FlyProjection(60, kind=kind, density=0.25, k=k, random_state=3)
    for rows in (X, sparse.csr_matrix(X), np.asfortranarray(X), X.astype(np.float32)):
        got = model.fit_transform(rows)
        assert got.dtype == (np.float32 if rows.dtype == np.float32 else np.float64)
        np.testing.assert_allclose(got, expected, atol=1e-5 if rows.dtype == np.float32 else 1e-12)


@pytest.mark.parametrize("kind", ["gaussian", "sparse_gaussian", "sparse_sign"])
def test_lengths_are_kept_in_the_mean(kind: str) -> None:
    Z = FlyProjection(2000, kind=kind, activation="none").fit_transform(X[:20])
    np.testing.assert_allclose((Z**2).sum(1), (X[:20] ** 2).sum(1), rtol=0.2)


def test_density_auto_is_a_root() -> None:
    assert FlyProjection(60, kind="binary").fit(X).projection_.nnz == round(40**0.5)


def test_random_states() -> None:
    same = [FlyProjection(60, random_state=np.random.RandomState(0)).fit_transform(X) for _ in range(2)]
    np.testing.assert_array_equal(*same)
    assert not np.array_equal(same[0], FlyProjection(60, random_state=None).fit_transform(X))


def test_frames_come_out_with_names() -> None:
    frame = load_iris(as_frame=True).data
    out = FlyProjection(5).set_output(transform="pandas").fit_transform(frame)
    assert list(out.columns) == [f"flyprojection{i}" for i in range(5)]
    with pytest.raises(ValueError, match="feature names"):
        FlyProjection(5).fit(frame).transform(frame[frame.columns[::-1]])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"k": 61}, "k must be at most n_components, 60, got 61"),
        ({"density": 0.0}, "density"),
        ({"kind": "fly"}, "kind"),
        ({"n_components": 0}, "n_components"),
    ],
)
@ignore_warnings
def test_refuses_in_fit(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        FlyProjection(**{"n_components": 60} | options).fit(X)
