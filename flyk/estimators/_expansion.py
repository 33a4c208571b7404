"""The frozen random expansion that the estimators share, and the parameters that describe it."""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any

import numpy as np
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval, StrOptions
from torch import Tensor

from flyk.nn import RandomProjection
from flyk.ops import project, project_topk
from flyk.ops._check import ACTIVATIONS
from flyk.ops.make_projection_ import KINDS
from flyk.ops.winner_take_all import scatter

CONSTRAINTS: dict[str, list[Any]] = {
    "n_components": [Interval(Integral, 1, None, closed="left")],
    "kind": [StrOptions(set(KINDS))],
    "density": [StrOptions({"auto"}), Interval(Real, 0, 1, closed="right")],
    "activation": [StrOptions(set(ACTIVATIONS))],
    "k": [None, Interval(Integral, 1, None, closed="left")],
    "random_state": ["random_state"],
}


class Expansion:
    """``φ(x) = act(x Rᵀ)``, kept to its k winners where k is given, by an estimator's parameters.

    The entries of R are scaled so that ``|x Rᵀ|²`` is |x|² in the mean; those of kind "binary", which has no sign,
    by the same number.
    """

    def __init__(self, estimator: Any, n_features: int) -> None:
        M, d = estimator.n_components, n_features
        if estimator.k is not None and estimator.k > M:
            raise ValueError(f"k must be at most n_components, {M}, got {estimator.k}")
        share = d**-0.5 if estimator.density == "auto" else estimator.density
        nnz = None if estimator.kind == "gaussian" else max(1, round(share * d))
        std = (d / ((nnz or d) * M)) ** 0.5
        seed = _seed(estimator.random_state)
        self.meaning = (d, M, estimator.kind, nnz, seed, estimator.activation, estimator.k)
        self.projection = RandomProjection(d, M, kind=estimator.kind, nnz=nnz, std=std, seed=seed)
        self.activation, self.k = estimator.activation, estimator.k

    def __call__(self, rows: Tensor) -> Tensor:
        """φ (N, M) of rows (N, d), in their dtype and on their device."""
        R = self.projection
        indices = None if R.indices is None else R.indices.to(rows.device)
        values = R.values.to(rows)
        if self.k is None:
            return project(rows, values, indices, activation=self.activation)
        winners = project_topk(rows, values, indices, self.k, activation=self.activation)
        return scatter(*winners, R.out_features)


def _seed(random_state: Any) -> int:
    """An int is the seed itself, so that the matrix is that of `flyk.nn.RandomProjection(seed=...)`."""
    if isinstance(random_state, Integral):
        return int(random_state)
    return int(check_random_state(random_state).randint(np.iinfo(np.int32).max))
