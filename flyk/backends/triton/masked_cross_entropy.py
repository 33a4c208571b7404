"""masked_cross_entropy by Triton: a pass over the logits of the classes present; nothing of their size is kept."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from flyk.backends.triton._floats import narrow
from flyk.backends.triton._launch import blocks, configuration, launch
from flyk.ops import _check
from flyk.ops.masked_cross_entropy import fake_backward as empty_gradient


def masked_cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    losses = logits.new_empty(len(logits), dtype=_check.accumulator(logits.dtype))
    _run(cross_entropy_rows, logits, target, losses)
    return losses.mean().to(logits.dtype)


def backward(grad: Tensor, logits: Tensor, target: Tensor) -> Tensor:
    out = empty_gradient(grad, logits, target)
    _run(cross_entropy_grad, logits, target, grad, out)
    return out


def _run(kernel: Any, logits: Tensor, target: Tensor, *others: Tensor) -> None:
    rows, classes = logits.shape
    if rows == 0:
        return
    present = target.new_zeros(classes, dtype=torch.bool).index_fill_(0, target, True)
    c = configuration(kernel.fn.__name__, classes, logits.device)
    sizes = rows, classes, *logits.stride()
    launch(kernel, (blocks(rows, c["ROWS"]),), logits, target.contiguous(), present, *others, *sizes, **c)


def examples() -> Iterator[tuple[Any, ...]]:
    """Calls that between them launch every kernel in every configuration."""
    for classes in (128, 1024):
        for dtype in (torch.float32, torch.bfloat16):
            logits = torch.empty(256, classes, dtype=dtype, device="meta")
            yield logits, torch.empty(256, dtype=torch.int64, device="meta")


def backward_examples() -> Iterator[tuple[Any, ...]]:
    for logits, target in examples():
        yield logits.new_empty(()), logits, target


@triton.jit
def entries(logits, present, row, begin, rows, classes, stride, step, BLOCK: tl.constexpr):
    """Logits of a block of classes in float32 or float64, -inf on absent ones, and their classes."""
    at = (begin + tl.arange(0, BLOCK)).to(tl.int64)
    taken = tl.load(present + at, mask=at < classes, other=0) != 0
    inside = (row[:, None] < rows) & taken[None, :]
    z = tl.load(logits + row[:, None] * stride + at[None, :] * step, mask=inside, other=float("-inf"))
    return z.to(tl.float64 if z.dtype == tl.float64 else tl.float32), at, taken


@triton.jit
def normaliser(
    logits, present, row, rows, classes, stride, step, ROWS: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """The largest logit of each row, or 0 where that is -inf, and the sum of exp(logit - largest)."""
    accumulator = tl.float64 if logits.dtype.element_ty == tl.float64 else tl.float32
    largest = tl.full((ROWS,), float("-inf"), accumulator)
    total = tl.zeros((ROWS,), accumulator)
    for begin in range(0, classes, BLOCK):
        z, _, _ = entries(logits, present, row, begin, rows, classes, stride, step, BLOCK)  # pyright: ignore[reportGeneralTypeIssues]
        higher = tl.maximum(largest, tl.max(z, axis=1))
        shift = tl.where(higher == float("-inf"), 0.0, higher)
        total = total * tl.exp(largest - shift) + tl.sum(tl.exp(z - shift[:, None]), axis=1)
        largest = higher
    return tl.where(largest == float("-inf"), 0.0, largest), total


@triton.jit
def cross_entropy_rows(
    logits, target, present, losses, rows, classes, stride, step, ROWS: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    largest, total = normaliser(logits, present, row, rows, classes, stride, step, ROWS, BLOCK)  # pyright: ignore[reportGeneralTypeIssues]
    own = tl.load(target + row, mask=row < rows, other=0)
    z = tl.load(logits + row * stride + own * step, mask=row < rows, other=0.0).to(losses.dtype.element_ty)
    tl.store(losses + row, tl.log(total) + (largest - z), mask=row < rows)


@triton.jit
def cross_entropy_grad(
    logits, target, present, grad, out, rows, classes, stride, step, ROWS: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    largest, total = normaliser(logits, present, row, rows, classes, stride, step, ROWS, BLOCK)  # pyright: ignore[reportGeneralTypeIssues]
    own = tl.load(target + row, mask=row < rows, other=-1)
    scale = tl.load(grad).to(total.dtype) / rows
    for begin in range(0, classes, BLOCK):
        z, at, taken = entries(logits, present, row, begin, rows, classes, stride, step, BLOCK)  # pyright: ignore[reportGeneralTypeIssues]
        p = tl.exp(z - largest[:, None]) / total[:, None]
        p = tl.where(at[None, :] == own[:, None], p - 1.0, p) * scale
        p = tl.where(taken[None, :], p, 0.0)
        inside = (row[:, None] < rows) & (at[None, :] < classes)
        tl.store(out + row[:, None] * classes + at[None, :], narrow(p, out.dtype.element_ty), mask=inside)
