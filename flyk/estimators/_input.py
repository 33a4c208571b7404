"""What comes in as numpy, scipy or torch, and what goes out."""

from __future__ import annotations

from collections.abc import Iterator
from numbers import Real
from typing import Any

import numpy as np
import torch
from scipy import sparse
from sklearn import get_config
from sklearn.base import BaseEstimator
from sklearn.utils import check_array
from sklearn.utils.validation import validate_data
from torch import Tensor

BLOCK = 1024  # rows that are expanded at once


def as_tensor_is_kept(X: Any) -> bool:
    """Tensors are answered by tensors where scikit-learn is told to dispatch; else they are taken as numpy arrays."""
    return isinstance(X, Tensor) and get_config()["array_api_dispatch"]


def checked_rows(estimator: BaseEstimator, X: Any, *y: Any, reset: bool, **how: Any) -> Any:
    """X as a float32 or float64 array, CSR matrix or tensor, and y if it is given; checked as scikit-learn does."""
    dtypes = [torch.float64, torch.float32] if as_tensor_is_kept(X) else [np.float64, np.float32]
    return validate_data(estimator, X, *y, accept_sparse="csr", dtype=dtypes, reset=reset, **how)


def checked_fitted_rows(estimator: Any, X: Any, method: str) -> Any:
    """The same for an estimator that has been fitted, on the kind of array it was fitted on."""
    if get_config()["array_api_dispatch"] and as_tensor_is_kept(X) != estimator._fitted_on_tensors:
        kinds = ("a numpy array", "a torch tensor")
        raise ValueError(
            f"Inputs passed to {type(estimator).__name__}.{method}() must use the same namespace and the same device "
            f"as those passed to fit(), got {kinds[as_tensor_is_kept(X)]}"
        )
    return checked_rows(estimator, X, reset=False)


def as_numpy(values: Any) -> Any:
    return values.detach().cpu().numpy() if isinstance(values, Tensor) else values


def checked_weights(sample_weight: Any, X: Any, *, first: bool) -> Tensor:
    """(N,) float64, ones where none are given; of the first rows one at least is above 0."""
    if sample_weight is None or isinstance(sample_weight, Real):
        sample_weight = np.full(X.shape[0], 1.0 if sample_weight is None else sample_weight)
    weights = check_array(
        as_numpy(sample_weight), dtype="float64", ensure_2d=False, copy=True, input_name="sample_weight"
    )
    if weights.shape != (X.shape[0],):
        raise ValueError(f"sample_weight must have shape ({X.shape[0]},) or be a number, got {weights.shape}")
    if (weights < 0).any():
        raise ValueError(f"sample_weight must hold no negative values, got {weights.min()}")
    if first and not weights.any():
        raise ValueError("sample_weight must not be zero for every row: at least one weight must be above 0")
    return torch.from_numpy(weights)


def blocks(X: Any) -> Iterator[Tensor]:
    """The rows of X, some at a time, as dense tensors that share no memory with X."""
    for begin in range(0, X.shape[0], BLOCK):
        rows = X[begin : begin + BLOCK]
        if isinstance(rows, Tensor):
            yield rows.detach()
        else:
            yield torch.from_numpy(rows.toarray() if sparse.issparse(rows) else np.array(rows, order="C"))


def like(X: Any, result: Tensor) -> Any:
    """A result in the kind of X: a tensor on its device, or an array."""
    return result.to(X.device) if isinstance(X, Tensor) else result.numpy(force=True)
