"""A frozen random matrix made in registers: the same bits as `flyk.ops.make_projection_` says.

Kernels that use it are launched with enable_fp_fusion=False: a product and a sum in one rounding would be other bits.
"""

from __future__ import annotations

import triton
import triton.language as tl

from flyk.ops import make_projection_

GAUSSIAN, SPARSE_GAUSSIAN, SPARSE_SIGN, BINARY = (tl.constexpr(i) for i in range(4))  # places in KINDS
LOG = tuple(tl.constexpr(c) for c in reversed(make_projection_.MINUS_TWO_LOG))
L8, L7, L6, L5, L4, L3, L2, L1, L0 = LOG
S4, S3, S2, S1, S0 = (tl.constexpr(c) for c in reversed(make_projection_.QUARTER_SINE))
TWO_LN_2 = tl.constexpr(make_projection_.TWO_LN_2)
ONE, HALF_ROOT = tl.constexpr(make_projection_.ONE), tl.constexpr(make_projection_.HALF_ROOT)


@triton.jit
def words(counter, seed):
    """Philox-4x32-10 for counters of 64 bits: four words each."""
    low, high = (counter & 0xFFFFFFFF).to(tl.uint32), (counter >> 32).to(tl.uint32)
    zero = tl.zeros_like(low)
    return tl.philox(seed, low, high, zero, zero, 10)


@triton.jit
def normal(u, v):
    """Standard normals from two words each; see `flyk.ops.make_projection_.normal` for every step."""
    word = (u.to(tl.float32) + 0.5).to(tl.int32, bitcast=True) + (ONE - HALF_ROOT)
    x = ((word & 0x7FFFFF) + HALF_ROOT).to(tl.float32, bitcast=True) - 1.0
    exponent = (159 - (word >> 23)).to(tl.float32)
    log = ((((((L8 * x + L7) * x + L6) * x + L5) * x + L4) * x + L3) * x + L2) * x + L1
    radius = tl.sqrt_rn(exponent * TWO_LN_2 + x * (log * x + L0))
    turn = tl.minimum(v, 0xFFFFFFFF - v).to(tl.int32)
    y = (1073741824 - turn).to(tl.float32) * 9.313225746154785e-10  # 2^30 and 2^-30
    z = y * y
    return radius * (y * ((((S4 * z + S3) * z + S2) * z + S1) * z + S0))


@triton.jit
def entries(u, v, KIND: tl.constexpr):
    """Entries of unit standard deviation from two words each."""
    if KIND == BINARY:
        value = tl.full(u.shape, 1.0, tl.float32)
    elif KIND == SPARSE_SIGN:
        value = 1.0 - 2.0 * (u >> 31).to(tl.float32)
    else:
        value = normal(u, v)
    return value


@triton.jit
def distinct(word, n, nnz, ROWS: tl.constexpr, SLOTS: tl.constexpr):
    """The columns (ROWS, SLOTS) of nnz entries each, by Floyd's sampling: slot after slot, for each needs the last."""
    slot = tl.arange(0, SLOTS)[None, :]
    bound = (n - nnz + slot + 1).to(tl.uint64)
    draws = ((word.to(tl.uint64) * bound) >> 32).to(tl.int32)
    columns = tl.full((ROWS, SLOTS), -1, tl.int32)
    for s in range(nnz):
        draw = tl.sum(tl.where(slot == s, draws, 0), axis=1)
        taken = tl.max((columns == draw[:, None]).to(tl.int32), axis=1)
        column = tl.where(taken > 0, n - nnz + s, draw)
        columns = tl.where(slot == s, column[:, None], columns)
    return columns
