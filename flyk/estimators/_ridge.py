"""What the classifier and the regressor share: ridge regression on a frozen expansion, from sums over a stream."""

from __future__ import annotations

from numbers import Real
from typing import Any

import torch
from sklearn.base import BaseEstimator
from sklearn.utils._param_validation import Interval
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from flyk import _memory
from flyk.estimators._expansion import CONSTRAINTS, Expansion
from flyk.estimators._input import BLOCK, as_tensor_is_kept, blocks, checked_fitted_rows
from flyk.estimators._statistics import Statistics


class StreamingRidge(BaseEstimator):
    """An estimator whose state is its sums."""

    _parameter_constraints = CONSTRAINTS | {
        "relative_ridge": [Interval(Real, 0, None, closed="neither")],
        "fit_intercept": ["boolean"],
    }

    relative_ridge: float
    fit_intercept: bool
    n_components: int
    n_features_in_: int
    n_samples_seen_: int

    def _begin(self, X: Any, targets: int) -> None:
        _memory.need("n_components", 8 * self.n_components**2)
        self._fitted_with = self._shape()
        self._fitted_on_tensors = as_tensor_is_kept(X)
        self._expansion = Expansion(self, self.n_features_in_)
        device = X.device if isinstance(X, Tensor) else torch.device("cpu")
        self._statistics = Statistics(self._expansion.projection.out_features, targets, device)
        self.n_samples_seen_ = 0

    def _shape(self) -> dict[str, Any]:
        """The parameters that what was learned depends on, so that they must stay until the next fit."""
        free = {"relative_ridge", "fit_intercept", "on_new_class"}
        return {name: value for name, value in self.get_params(deep=False).items() if name not in free}

    def _check_shape(self) -> None:
        """Refuse to learn on under parameters that were set otherwise since."""
        for name, value in self._shape().items():
            if value is not (was := self._fitted_with[name]) and value != was:
                raise ValueError(f"{name} must stay {was!r} until the next fit, got {value!r}")

    def _learn(self, X: Any, targets: Tensor, weights: Tensor) -> None:
        """Add rows X with targets (N, T) and weights (N,), float64."""
        each = zip(blocks(X), targets.split(BLOCK), weights.split(BLOCK), strict=True)
        for rows, y, w in each:
            self._learn_block(*(part.to(self._statistics.G) for part in (rows, y, w)))
        self.n_samples_seen_ += X.shape[0]

    def _learn_block(self, rows: Tensor, targets: Tensor, weights: Tensor) -> None:
        self._statistics.add(self._expansion(rows), targets, weights)

    def _scores(self, X: Any, method: str) -> tuple[Any, Tensor]:
        """X as checked, and ``φ(X) U + c`` (N, T) in float64."""
        check_is_fitted(self)
        X = checked_fitted_rows(self, X, method)
        U, c = self._statistics.solve(self.relative_ridge, self.fit_intercept)
        return X, torch.cat([self._expansion(rows.to(U)) @ U + c for rows in blocks(X)])

    def _check_merge(self, other: Any) -> None:
        check_is_fitted(self)
        if other is self:
            raise ValueError(f"other must be another {type(self).__name__}, got the same one")
        if type(other) is not type(self):
            raise TypeError(f"other must be a {type(self).__name__}, got {type(other).__name__}")
        check_is_fitted(other)
        mine, theirs = self._expansion.meaning, other._expansion.meaning
        if mine != theirs:
            raise ValueError(f"other must expand {mine} (sizes, kind, nnz, seed, activation, k), got {theirs}")

    def _as_fitted(self, values: Tensor) -> Any:
        """Of the kind of array that this was fitted on."""
        return values if self._fitted_on_tensors else values.numpy(force=True)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.array_api_support = True
        return tags
