"""Products of tiles in the precision that was asked for, and the tile of winners that they are taken with.

Two quirks of Triton's interpreter are met here: it multiplies bfloat16 tiles as the integers that hold them, and it
cuts float32 to bfloat16 where the hardware rounds to the nearest.
"""

from __future__ import annotations

import os

import triton
import triton.language as tl

INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")


@triton.jit
def multiply(a, b, total, INPUT_PRECISION: tl.constexpr):
    """`total` + a b, summed in float32; half types are multiplied exactly."""
    if INTERPRETED:
        a, b = a.to(tl.float32), b.to(tl.float32)
    return tl.dot(a, b, total, input_precision=INPUT_PRECISION)


@triton.jit
def bfloat16(x):
    """x rounded to bfloat16, to the even number in a tie."""
    if INTERPRETED and x.dtype != tl.bfloat16:
        x = x.to(tl.float32)
        bits = x.to(tl.uint32, bitcast=True)
        bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
        x = tl.where(x == x, bits.to(tl.float32, bitcast=True), x)
    return x.to(tl.bfloat16)


@triton.jit
def dot(a, b, total, PRECISION: tl.constexpr):
    """`total` + a b with both tiles brought to `PRECISION`, one of the names that operators take."""
    if PRECISION == "bf16x3":
        a_high, b_high = bfloat16(a), bfloat16(b)
        a_low = bfloat16(a.to(tl.float32) - a_high.to(tl.float32))
        b_low = bfloat16(b.to(tl.float32) - b_high.to(tl.float32))
        total = multiply(a_high, b_low, total, "ieee")
        total = multiply(a_low, b_high, total, "ieee")
        total = multiply(a_high, b_high, total, "ieee")
    elif PRECISION == "bf16":
        total = multiply(bfloat16(a), bfloat16(b), total, "ieee")
    elif PRECISION == "tf32":
        total = multiply(a, b, total, "tf32")
    else:
        total = multiply(a, b, total, "ieee")
    return total


@triton.jit
def dot_float32(a, b, total):
    """`total` + a b for a float32 tile `a` as it is: by its three bfloat16 parts, on tensor cores, where b is bfloat16."""
    if b.dtype == tl.bfloat16:
        high = bfloat16(a)
        rest = a - high.to(tl.float32)
        middle = bfloat16(rest)
        total = multiply(bfloat16(rest - middle.to(tl.float32)), b, total, "ieee")
        total = multiply(middle, b, total, "ieee")
        total = multiply(high, b, total, "ieee")
    else:
        total = multiply(a, b.to(tl.float32), total, "ieee")
    return total


@triton.jit
def spread(winners, indices, row, rows, k, ROWS: tl.constexpr, RANKS: tl.constexpr):
    """The (ROWS, RANKS) tile that holds the winners (N, k) of rows `row` in their places and 0 elsewhere."""
    rank = tl.arange(0, RANKS)[None, :]
    tile = tl.zeros((ROWS, RANKS), winners.dtype.element_ty)
    for i in range(k):
        at = tl.load(indices + row * k + i, mask=row < rows, other=-1)
        won = tl.load(winners + row * k + i, mask=row < rows, other=0.0)
        tile = tl.where(rank == at[:, None], won[:, None], tile)
    return tile
