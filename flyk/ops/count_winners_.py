"""count_winners_: how often each rank won, added to in place and never by a checkpoint's recomputation."""

from __future__ import annotations

import torch
from torch import Tensor

from flyk.ops import _check
from flyk.ops._operator import Operator


def count_winners_(counts: Tensor, indices: Tensor, mask: Tensor | None = None) -> None:
    """In place: ``counts[i] += rows of indices that hold i``, the assignments c_i of FlyLoRA's balance.

    arXiv 2510.08396, Eq. 9. Inside a backward pass nothing is counted: what runs there is the recomputation of an
    activation checkpoint, whose winners were counted the first time. It is an operator of its own, though PyTorch
    could say it in one line, because the question must be asked when the kernel runs and not when a compiler traces.

    Args:
        counts: (r,) int64.
        indices: (..., k) int64 from 0 to r - 1, the winners of each row as `fly_lora_with_winners` gives them.
        mask: (...) bool; a row that is False is left out. None for all rows.

    Raises:
        ValueError, TypeError: a shape, dtype, device or index that does not fit; counts is then as before.
    """
    OPERATOR(counts, indices, mask)


def check(counts: Tensor, indices: Tensor, mask: Tensor | None = None) -> None:
    _check.dtype("counts", counts, (torch.int64,))
    _check.shape("counts", counts, "r")
    _check.at_least_1d("indices", indices)
    _check.dtype("indices", indices, (torch.int64,))
    if mask is not None:
        _check.dtype("mask", mask, (torch.bool,))
        _check.shape("mask", mask, *indices.shape[:-1])
    _check.same_device(counts=counts, indices=indices, mask=mask)


def check_values(counts: Tensor, indices: Tensor, *_: object) -> None:
    _check.in_range("indices", indices, counts.shape[0])


def reference(counts: Tensor, indices: Tensor, mask: Tensor | None = None) -> None:
    if torch._C._current_graph_task_id() != -1:  # -1 outside a backward pass
        return
    ones = torch.ones_like(indices) if mask is None else mask.unsqueeze(-1).expand_as(indices).to(counts.dtype)
    counts.scatter_add_(0, indices.reshape(-1), ones.reshape(-1))


def fake(counts: Tensor, indices: Tensor, mask: Tensor | None = None) -> None:
    return None


OPERATOR = Operator(
    "count_winners_(Tensor(a!) counts, Tensor indices, Tensor? mask=None) -> ()",
    reference=reference,
    check=check,
    check_values=check_values,
    fake=fake,
)
