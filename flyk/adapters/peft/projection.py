"""A projection that is stored, where no seed makes it: what an adapter saved elsewhere brings along."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from flyk.nn import RandomProjection


class StoredProjection(nn.Module):
    """Sparse rows as buffers that are saved and loaded; it starts as a copy of a `RandomProjection`.

    Attributes:
        values: (r, nnz), in the dtype of the module.
        indices: (r, nnz) int32, different columns in each row.
        seed: () int64 of the projection that it was copied from.
    """

    values: Tensor
    indices: Tensor
    seed: Tensor

    def __init__(self, made: RandomProjection) -> None:
        super().__init__()
        self.in_features, self.out_features, self.nnz = made.in_features, made.out_features, made.nnz
        for name in ("values", "indices", "seed"):
            self.register_buffer(name, getattr(made, name))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> StoredProjection:
        try:
            super()._apply(fn, recurse)
        except NotImplementedError:  # off the meta device, where nothing is stored yet
            if not self.values.is_meta:
                raise
            self.to_empty(device=fn(torch.empty(0, device="cpu")).device)
        return self

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any) -> None:
        fault = self._fault(state_dict.get(prefix + "values"), state_dict.get(prefix + "indices"))
        if fault:
            args[-1].append(f"{prefix}{fault}")
        else:
            super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)

    def _fault(self, values: Tensor | None, indices: Tensor | None) -> str:
        """Why stored rows are none of this size, or "": an index out of range must not reach a kernel."""
        if values is None or indices is None or values.is_meta or indices.is_meta:
            return ""
        shape = (self.out_features, self.nnz)
        if values.shape != shape or indices.shape != shape:
            return f"values and indices must have shape {shape}, got {tuple(values.shape)} and {tuple(indices.shape)}"
        if not values.is_floating_point() or indices.dtype not in (torch.int32, torch.int64):
            return f"values and indices must be floating and int32 or int64, got {values.dtype} and {indices.dtype}"
        columns = indices.sort(1).values
        if columns.numel() and (columns[:, 0].min() < 0 or columns[:, -1].max() >= self.in_features):
            return f"indices must be from 0 to {self.in_features - 1}, got {int(columns.min())} to {int(columns.max())}"
        if (columns[:, 1:] == columns[:, :-1]).any():
            return "indices must be different within a row, got one twice"
        return ""

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.out_features}, nnz={self.nnz}, stored"
