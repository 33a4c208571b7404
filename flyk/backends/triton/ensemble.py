"""ensemble by Triton: rows grouped by expert on the device, and the softmax of every head of a tile in registers.

How many rows an expert has is never told to the host: as many programs start as there can be tiles, and each finds its
expert by the prefix sums of the tiles.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from flyk.backends.triton._floats import narrow
from flyk.backends.triton._launch import configuration, launch
from flyk.backends.triton._product import multiply
from flyk.ops.ensemble import fake as empty
from flyk.ops.ensemble import reference

WIDEST = 1024  # bytes of a row's probabilities: what keeps a tile of them, and of a head, in registers


def ensemble(
    h: Tensor,
    online_weight: Tensor,
    online_bias: Tensor | None,
    bank_weight: Tensor,
    bank_bias: Tensor | None,
    expert_ids: Tensor,
    seen: Tensor | None = None,
) -> Tensor:
    (rows, d), (experts, heads, classes, _) = h.shape, bank_weight.shape
    width = max(16, 1 << max(0, classes - 1).bit_length())
    if h.dtype == torch.float64 or width * h.itemsize > WIDEST:
        return reference(h, online_weight, online_bias, bank_weight, bank_bias, expert_ids, seen)
    p = empty(h, online_weight)
    if p.numel() == 0:
        return p
    c = configuration("ensemble_tile", width * h.itemsize, h.device)
    ids, order = expert_ids.sort(stable=True)
    ends = torch.searchsorted(ids, torch.arange(experts, device=ids.device), right=True)
    counts = ends.diff(prepend=ends.new_zeros(1))
    tiles = ((counts + c["ROWS"] - 1) // c["ROWS"]).cumsum(0)
    online_bias, bank_bias, seen = (None if t is None else t.contiguous() for t in (online_bias, bank_bias, seen))
    given = (h, online_weight, online_bias, bank_weight, bank_bias, seen, order, ends, tiles, p)
    strides = (*h.stride(), *online_weight.stride(), *bank_weight.stride())
    # Whole tiles, and for each expert at most one that is not.
    grid = (rows // c["ROWS"] + min(experts, rows),)
    how = {"CLASSES": width} | c
    launch(ensemble_tile, grid, *given, d, classes, experts, heads, *strides, **how)
    return p


def examples() -> Iterator[tuple[Any, ...]]:
    """Calls that between them launch every kernel in every configuration."""
    rows, d, experts, heads = 1024, 768, 10, 2
    for most in (128, 256):
        for dtype, classes in ((torch.float32, most), (torch.bfloat16, 2 * most)):
            h, online, bias, bank, biases = (
                torch.empty(*size, dtype=dtype, device="meta")
                for size in (
                    *((rows, d), (classes, d), (classes,)),
                    *((experts, heads, classes, d), (experts, heads, classes)),
                )
            )
            ids = torch.empty(rows, dtype=torch.int64, device="meta")
            yield h, online, bias, bank, biases, ids, torch.empty(classes, dtype=torch.bool, device="meta")


@triton.jit
def rows_of(tiles, ends, order, experts, ROWS: tl.constexpr):
    """This program's expert and its rows, of which those not `mine` are none; `experts` for a program too many."""
    place, expert, before = tl.program_id(0), 0, 0
    for e in range(experts):
        end = tl.load(tiles + e).to(tl.int32)
        expert += (end <= place).to(tl.int32)
        before = tl.where(end <= place, end, before)
    known = expert < experts
    begin = tl.load(ends + expert - 1, mask=known & (expert > 0), other=0)
    end = tl.load(ends + expert, mask=known, other=0)
    at = begin + (place - before).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    mine = at < end
    return expert, tl.load(order + at, mask=mine, other=0), mine


@triton.jit
def head(
    h, weight, bias, seen, row, mine, d, classes, h_stride, h_step, stride, step,
    ROWS: tl.constexpr, CLASSES: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """The softmax (ROWS, CLASSES) of one head; 0 for classes unseen, and for those past the last."""
    label = tl.arange(0, CLASSES)
    z = tl.zeros((ROWS, CLASSES), tl.float32)
    for begin in range(0, d, DEPTH):
        at = (begin + tl.arange(0, DEPTH)).to(tl.int64)
        here = mine[:, None] & (at[None, :] < d)
        a = tl.load(h + row[:, None] * h_stride + at[None, :] * h_step, mask=here, other=0.0)
        there = (label[None, :] < classes) & (at[:, None] < d)
        b = tl.load(weight + label[None, :].to(tl.int64) * stride + at[:, None] * step, mask=there, other=0.0)
        z = multiply(a, b, z, "ieee")
    if bias is not None:
        z += tl.load(bias + label, mask=label < classes, other=0.0).to(tl.float32)[None, :]
    taken = label < classes
    if seen is not None:
        taken = tl.load(seen + label, mask=taken, other=0) != 0
    z = tl.where(taken[None, :], z, float("-inf"))
    z = tl.exp(z - tl.max(z, axis=1)[:, None])
    return z / tl.sum(z, axis=1)[:, None]


@triton.jit
def ensemble_tile(
    h, online_weight, online_bias, bank_weight, bank_bias, seen, order, ends, tiles, p, d, classes, experts, heads,
    h_stride, h_step, stride, step, bank_expert, bank_head, bank_stride, bank_step,
    ROWS: tl.constexpr, CLASSES: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    expert, row, mine = rows_of(tiles, ends, order, experts, ROWS)  # pyright: ignore[reportGeneralTypeIssues]
    if expert >= experts:
        return
    best = head(
        h, online_weight, online_bias, seen, row, mine, d, classes, h_stride, h_step, stride, step,
        ROWS, CLASSES, DEPTH,
    )  # fmt: skip
    for j in range(heads):
        own, which = expert.to(tl.int64), tl.full((), j, tl.int64)
        weight = bank_weight + own * bank_expert + which * bank_head
        bias = bank_bias
        if bank_bias is not None:
            bias = bank_bias + (own * heads + which) * classes
        one = head(
            h, weight, bias, seen, row, mine, d, classes, h_stride, h_step, bank_stride, bank_step,
            ROWS, CLASSES, DEPTH,
        )  # fmt: skip
        best = tl.where((one > best) | (one != one), one, best)  # NaN stays
    label = tl.arange(0, CLASSES)
    inside = mine[:, None] & (label[None, :] < classes)
    tl.store(p + row[:, None] * classes + label[None, :], narrow(best, p.dtype.element_ty), mask=inside)
