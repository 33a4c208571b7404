"""Products of tiles in the precision that was asked for, and the tile of winners that they are taken with."""

from __future__ import annotations

import triton
import triton.language as tl

from flyk.backends.triton._floats import INTERPRETED, narrow


@triton.jit
def multiply(a, b, total, INPUT_PRECISION: tl.constexpr):
    """`total` + a b, summed in float32; half types are multiplied exactly."""
    if INTERPRETED:  # the interpreter would multiply bfloat16 tiles as the integers that hold them
        a, b = a.to(tl.float32), b.to(tl.float32)
    return tl.dot(a, b, total, input_precision=INPUT_PRECISION)


@triton.jit
def dot(a, b, total, PRECISION: tl.constexpr):
    """`total` + a b with both tiles brought to `PRECISION`, one of the names that operators take."""
    if PRECISION == "bf16x3":
        a_high, b_high = narrow(a, tl.bfloat16), narrow(b, tl.bfloat16)
        a_low = narrow(a.to(tl.float32) - a_high.to(tl.float32), tl.bfloat16)
        b_low = narrow(b.to(tl.float32) - b_high.to(tl.float32), tl.bfloat16)
        total = multiply(a_high, b_low, total, "ieee")
        total = multiply(a_low, b_high, total, "ieee")
        total = multiply(a_high, b_high, total, "ieee")
    elif PRECISION == "bf16":
        total = multiply(narrow(a, tl.bfloat16), narrow(b, tl.bfloat16), total, "ieee")
    elif PRECISION == "tf32":
        total = multiply(a, b, total, "tf32")
    else:
        total = multiply(a, b, total, "ieee")
    return total


@triton.jit
def dot_float32(a, b, total):
    """`total` + a b for a float32 tile `a` as it is; beside a bfloat16 `b` by its three bfloat16 parts."""
    if b.dtype == tl.bfloat16:
        high = narrow(a, tl.bfloat16)
        rest = a - high.to(tl.float32)
        middle = narrow(rest, tl.bfloat16)
        total = multiply(narrow(rest - middle.to(tl.float32), tl.bfloat16), b, total, "ieee")
        total = multiply(middle, b, total, "ieee")
        total = multiply(high, b, total, "ieee")
    else:
        total = multiply(a, b.to(tl.float32), total, "ieee")
    return total


@triton.jit
def spread(winners, indices, row, rows, k, first, ROWS: tl.constexpr, RANKS: tl.constexpr):
    """The (ROWS, RANKS) tile of ranks from `first` on that holds the winners (N, k) of rows `row`, and 0 elsewhere."""
    rank = first + tl.arange(0, RANKS)[None, :]
    tile = tl.zeros((ROWS, RANKS), winners.dtype.element_ty)
    for i in range(k):
        at = tl.load(indices + row * k + i, mask=row < rows, other=-1)
        won = tl.load(winners + row * k + i, mask=row < rows, other=0.0)
        tile = tl.where(rank == at[:, None], won[:, None], tile)
    return tile
