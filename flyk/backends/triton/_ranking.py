"""What every kernel that picks winners shares: the score of an entry, and its rank as an integer."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def score(y, bias, at, inside, SELECTION: tl.constexpr):
    """What entries `y` at places `at` are ranked by, in y's dtype, float32 or float64; bias may be None."""
    moved = y
    if SELECTION == "magnitude":
        moved = tl.abs(y)
    if bias is not None:
        moved += tl.load(bias + at, mask=inside, other=0.0).to(y.dtype)
    if SELECTION == "biased_magnitude":
        moved = tl.abs(moved)
    return moved


@triton.jit
def rank(score, inside):
    """An unsigned integer that grows with the score: 0 outside, the same for both zeros, the largest for every NaN."""
    score = tl.where(score == 0, tl.zeros_like(score), score)
    if score.dtype == tl.float64:
        bits = score.to(tl.int64, bitcast=True)
        bits = tl.where(bits < 0, ~bits, bits | -(2**63)).to(tl.uint64, bitcast=True)
        bits = tl.where(score != score, tl.full(bits.shape, 2**64 - 1, tl.uint64), bits)
    else:
        bits = score.to(tl.int32, bitcast=True)
        bits = tl.where(bits < 0, ~bits, bits | -(2**31)).to(tl.uint32, bitcast=True)
        bits = tl.where(score != score, tl.full(bits.shape, 2**32 - 1, tl.uint32), bits)
    return tl.where(inside, bits, tl.zeros_like(bits))


@triton.jit
def next_best(ranks, at, AXIS_SIZE: tl.constexpr):
    """The place in each row of the largest of `ranks` (rows, AXIS_SIZE), the lowest place in a tie."""
    best = tl.max(ranks, axis=1)
    return tl.min(tl.where(ranks == best[:, None], at, AXIS_SIZE), axis=1)
