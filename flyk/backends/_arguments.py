"""How operators' arguments are handed to compiled kernels: codes, contiguous matrices, and room for the winners."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from flyk.ops import _check

DTYPES = {torch.float32: 0, torch.float64: 1, torch.bfloat16: 2, torch.float16: 3}


def addresses(args: tuple[Any, ...]) -> list[Any]:
    """Tensors as addresses, None as 0, the rest as it is."""
    return [a.data_ptr() if isinstance(a, Tensor) else 0 if a is None else a for a in args]


def scores_bias(bias: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    if bias is None:
        return None
    wanted = _check.accumulator(dtype)
    return (bias if bias.dtype == wanted else bias.to(wanted)).contiguous()


def frozen(values: Tensor, indices: Tensor | None, in_features: int) -> tuple[Any, ...]:
    """The arguments by which csrc takes a frozen matrix: values, indices, rows, inputs, entries a row."""
    if indices is not None:
        indices = (indices if indices.dtype == torch.int32 else indices.to(torch.int32)).contiguous()
        if indices.numel() == 0:
            indices = indices.new_zeros(1)  # an empty tensor has no address, and without one a matrix is dense
    rows, entries = values.shape
    return values.contiguous(), indices, rows, in_features, entries


def selection_code(name: str) -> int:
    return _check.SELECTIONS.index(name)


def empty_winners(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    shape = (*x.shape[:-1], k)
    return x.new_empty(shape), x.new_empty(shape, dtype=torch.int64)
