"""FlyProjection: a frozen random expansion as a transformer."""

from __future__ import annotations

from typing import Any

import torch
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin, _fit_context
from sklearn.utils.validation import check_is_fitted

from flyk.estimators._expansion import CONSTRAINTS, Expansion
from flyk.estimators._input import as_tensor_is_kept, blocks, checked_fitted_rows, checked_rows, like


class FlyProjection(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """``transform(X) = act(X Rᵀ)`` for a frozen random R (n_components, n_features), kept to its k winners.

    Fitting makes R and looks at nothing but the number of features. Float32 and float64 keep their dtype, and sparse
    rows are expanded 1024 at a time. Where scikit-learn dispatches by the array API, tensors give tensors.

    Args:
        n_components: M.
        kind: of R: "gaussian", "sparse_gaussian", "sparse_sign" or "binary", see `flyk.nn.RandomProjection`. Its
            entries are scaled so that |x Rᵀ|² is |x|² in the mean.
        density: share of entries in each row of a sparse kind, above 0, at most 1; "auto" for 1 / √n_features.
        activation: "relu" or "none".
        k: winners of largest magnitude kept of each row, from 1 to M; None for all.
        random_state: an int is the seed of R, the same bits on every machine; or a RandomState, or None.

    Attributes:
        projection_: the `flyk.nn.RandomProjection`.
        n_features_in_, feature_names_in_: as in every estimator.

    Raises:
        ValueError: a parameter or an input that does not fit, in `fit` or `transform`.
    """

    _parameter_constraints = CONSTRAINTS
    n_features_in_: int

    def __init__(
        self,
        n_components: int = 1000,
        *,
        kind: str = "gaussian",
        density: float | str = "auto",
        activation: str = "relu",
        k: int | None = None,
        random_state: Any = 0,
    ) -> None:
        self.n_components = n_components
        self.kind = kind
        self.density = density
        self.activation = activation
        self.k = k
        self.random_state = random_state

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: Any, y: Any = None) -> FlyProjection:
        """Make R for the features of X (N, n_features)."""
        X = checked_rows(self, X, reset=True)
        self._fitted_on_tensors = as_tensor_is_kept(X)
        self._expansion = Expansion(self, self.n_features_in_)
        self.projection_ = self._expansion.projection
        return self

    def transform(self, X: Any) -> Any:
        """X (N, n_features), dense or sparse, to (N, n_components), dense."""
        check_is_fitted(self)
        X = checked_fitted_rows(self, X, "transform")
        return like(X, torch.cat([self._expansion(rows) for rows in blocks(X)]))

    @property
    def _n_features_out(self) -> int:
        return self.projection_.out_features

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.array_api_support = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags
