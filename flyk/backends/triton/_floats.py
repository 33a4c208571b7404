"""Conversions between floating types, also where Triton's interpreter cuts float32 to bfloat16 instead of rounding."""

from __future__ import annotations

import os

import triton
import triton.language as tl

INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")


@triton.jit
def narrow(x, DTYPE: tl.constexpr):
    """x in the type DTYPE, rounded to the nearest, to the even number in a tie: before every store of a sum."""
    if INTERPRETED and tl.bfloat16 == DTYPE and x.dtype != tl.bfloat16:
        x = x.to(tl.float32)
        bits = x.to(tl.uint32, bitcast=True)
        bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
        x = tl.where(x == x, bits.to(tl.float32, bitcast=True), x)
    return x.to(DTYPE)
