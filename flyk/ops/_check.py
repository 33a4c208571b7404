"""The sentences in which operators refuse bad input: the argument, what came, what was wanted."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

FLOATING = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
ACCUMULATORS = (torch.float32, torch.float64)
ACTIVATIONS = ("none", "relu")
SELECTIONS = ("magnitude", "signed", "biased_magnitude")
PRECISIONS = ("float32", "tf32", "bf16x3", "bf16")


def accumulator(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which sums over `dtype` are taken: float64 for float64, else float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def rows(x: Tensor) -> Tensor:
    """x (..., d) as (N, d), also where a size is 0."""
    return x if x.dim() == 2 else x.reshape(x.shape[:-1].numel(), x.shape[-1])


def dtype(name: str, tensor: Tensor, wanted: Sequence[torch.dtype] = FLOATING) -> None:
    if tensor.dtype not in wanted:
        kinds = ", ".join(str(d).removeprefix("torch.") for d in wanted)
        raise TypeError(f"{name} must be of dtype {kinds}, got {str(tensor.dtype).removeprefix('torch.')}")


def shape(name: str, tensor: Tensor, *wanted: int | str) -> None:
    """Each of `wanted` is a size, or a letter for any size."""
    sizes = tensor.shape
    fits = len(sizes) == len(wanted)
    for size, want in zip(sizes, wanted, strict=False):
        fits = fits and (isinstance(want, str) or size == want)
    if not fits:
        text = ", ".join(str(w) for w in wanted)
        raise ValueError(f"{name} must have shape ({text}{',' * (len(wanted) == 1)}), got {tuple(sizes)}")


def at_least_1d(name: str, tensor: Tensor) -> None:
    if tensor.dim() == 0:
        raise ValueError(f"{name} must have at least one dimension, got a scalar")


def contiguous(name: str, tensor: Tensor) -> None:
    if not tensor.is_contiguous():
        raise ValueError(f"{name} must be contiguous, got strides {tensor.stride()}")


def alike(**tensors: Tensor | None) -> None:
    """All tensors given share the first one's dtype and device."""
    _share(tensors, dtype=True)


def same_device(**tensors: Tensor | None) -> None:
    _share(tensors, dtype=False)


def _share(tensors: dict[str, Tensor | None], *, dtype: bool) -> None:
    first, head, device = "", None, None
    for name, tensor in tensors.items():
        if tensor is None:
            continue
        if head is None:
            first, head, device = name, tensor, tensor.device
            continue
        if dtype and tensor.dtype != head.dtype:
            raise TypeError(f"{name} must have the dtype of {first}, {head.dtype}, got {tensor.dtype}")
        if tensor.device != device:
            raise ValueError(f"{name} must be on the device of {first}, {device}, got {tensor.device}")


def choice(name: str, value: str, wanted: Sequence[str]) -> None:
    if value not in wanted:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, wanted))}, got {value!r}")


def precision(value: str, device: torch.device) -> None:
    choice("precision", value, PRECISIONS)
    if value == "tf32" and device.type not in ("cuda", "meta"):
        raise ValueError(f"precision 'tf32' must be asked for on a CUDA device, got a tensor on {device}")


def k(value: int, n: int, of: str) -> None:
    if not 0 <= value <= n:
        raise ValueError(f"k must be from 0 to {n}, the size of {of}, got {value}")


def frozen(values: Tensor, indices: Tensor | None, in_features: int) -> None:
    """`values (M, d)` alone, or sparse rows `values (M, p)` with `indices (M, p)`, for inputs of `in_features`."""
    dtype("values", values)
    if indices is None:
        shape("values", values, "M", in_features)
    else:
        shape("values", values, "M", "p")
        shape("indices", indices, *values.shape)
        dtype("indices", indices, (torch.int64, torch.int32))
    if values.requires_grad:
        raise ValueError("values must be frozen, got a tensor that requires grad: flyk trains no random projection")


def in_range(name: str, ids: Tensor, n: int) -> None:
    """Every entry of `ids` is from 0 to n - 1. On an accelerator an assertion on the device, so that nothing waits."""
    if ids.numel() == 0:
        return
    if ids.device.type != "cpu":
        torch.ops.aten._assert_async(((ids >= 0) & (ids < n)).all())
        return
    low, high = ids.min().item(), ids.max().item()  # two passes, and less time than aminmax, most so for few entries
    if low < 0 or high >= n:
        raise ValueError(f"{name} must be from 0 to {n - 1}, got {low if low < 0 else high}")
