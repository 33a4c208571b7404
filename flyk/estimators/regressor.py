"""FlyRegressor: ridge regression on a frozen expansion, from a stream."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from sklearn.base import RegressorMixin, _fit_context

from flyk.estimators._input import as_numpy, checked_rows, checked_weights, like
from flyk.estimators._ridge import StreamingRidge


class FlyRegressor(RegressorMixin, StreamingRidge):
    """Ridge regression on ``φ = act(X Rᵀ)``, R frozen and random, that learns in one pass.

    ``U = (G + λ I)⁻¹ Q`` of ``G = Σ w φᵀφ`` and ``Q = Σ w φᵀy``, both about their means where there is an intercept:
    sums, so that any order and any split of the rows give the same regressor up to rounding. All is computed in
    float64. G takes 8 n_components² bytes whatever the number of rows. The equations are solved at the first
    prediction after a change.

    Args:
        n_components, kind, density, activation, k, random_state: see `FlyProjection`.
        relative_ridge: λ as a share of the mean of G's diagonal, above 0.
        fit_intercept: whether to add a constant, which is not penalised.

    Attributes:
        coef_: U transposed, (n_targets, n_components), or (n_components,) for y (N,); intercept_: (n_targets,) or a
            scalar.
        n_samples_seen_: rows so far.

    Raises:
        ValueError, TypeError: a parameter or an input that does not fit; nothing has been learned then.
    """

    def __init__(
        self,
        n_components: int = 1000,
        *,
        relative_ridge: float = 1e-2,
        fit_intercept: bool = True,
        kind: str = "gaussian",
        density: float | str = "auto",
        activation: str = "relu",
        k: int | None = None,
        random_state: Any = 0,
    ) -> None:
        self.n_components = n_components
        self.relative_ridge = relative_ridge
        self.fit_intercept = fit_intercept
        self.kind = kind
        self.density = density
        self.activation = activation
        self.k = k
        self.random_state = random_state

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> FlyRegressor:
        """Learn rows X (N, n_features) with targets y (N,) or (N, n_targets), and nothing of what came before."""
        return self._add(X, y, sample_weight, first=True)

    @_fit_context(prefer_skip_nested_validation=True)
    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> FlyRegressor:
        """Learn more rows, with as many targets as those before."""
        return self._add(X, y, sample_weight, first=not hasattr(self, "n_samples_seen_"))

    def _add(self, X: Any, y: Any, sample_weight: Any, *, first: bool) -> FlyRegressor:
        X, y = checked_rows(self, X, as_numpy(y), reset=first, multi_output=True, y_numeric=True)
        targets = torch.from_numpy(np.array(y, dtype=np.float64).reshape(len(y), -1))
        weights = checked_weights(sample_weight, X, first=first)
        shape = () if y.ndim == 1 else (y.shape[1],)
        if not first and shape != self._target_shape:
            raise ValueError(f"y must have the targets of the rows before, {self._target_shape}, got {shape}")
        if first:
            self._begin(X, targets.shape[1])
            self._target_shape = shape
        else:
            self._check_shape()
        self._learn(X, targets, weights)
        return self

    def predict(self, X: Any) -> Any:
        """X (N, n_features) to (N,), or (N, n_targets) if y was such."""
        X, scores = self._scores(X, "predict")
        return like(X, scores.view(-1, *self._target_shape))

    def merge(self, other: FlyRegressor) -> FlyRegressor:
        """Add what another has learned, which then is as if this one had learned its rows too; other stays.

        Raises:
            ValueError, TypeError: other has another expansion or other targets, or is no fitted `FlyRegressor`.
        """
        self._check_merge(other)
        if self._target_shape != other._target_shape:
            raise ValueError(f"other must have targets {self._target_shape}, got {other._target_shape}")
        self._statistics.merge_(other._statistics, torch.arange(self._statistics.Q.shape[1]))
        self.n_samples_seen_ += other.n_samples_seen_
        return self

    @property
    def coef_(self) -> Any:
        U, _ = self._statistics.solve(self.relative_ridge, self.fit_intercept)
        return self._as_fitted(U.t().reshape(*self._target_shape, -1))

    @property
    def intercept_(self) -> Any:
        _, c = self._statistics.solve(self.relative_ridge, self.fit_intercept)
        return self._as_fitted(c.view(self._target_shape))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags
