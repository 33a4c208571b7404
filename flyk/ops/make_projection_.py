"""make_projection_: rows of a frozen random matrix, the same bits from the same seed on every machine.

Entry (row, slot) takes its randomness from one call of Philox-4x32-10 (Salmon et al., SC 2011) whose counter is
``row * slots + slot`` and whose key is the seed, so any block of rows is made alone and in any order. Word 0 chooses
the column, words 1 and 2 the value.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from flyk.ops import _check
from flyk.ops._operator import Operator

KINDS = ("gaussian", "sparse_gaussian", "sparse_sign", "binary")
WORD = 0xFFFFFFFF
BLOCK = 2**20  # entries of R held at once, about 100 MB of temporaries

# Minimax polynomials (Remez) for `normal`, constant term first, rounded to float32. Their largest errors relative to
# the function, as evaluated in float32: -2 ln(1 + x) = x P(x) for 1 + x from sqrt(1/2) to sqrt(2), 1.5e-7 (3.5e-8 in
# exact arithmetic); sin(pi/2 y) = y P(y^2) for y from -1 to 1, 2.1e-7 (4.9e-8 in exact arithmetic).
LOG_TAIL = (-0.66667819, 0.500026762, -0.399261266, 0.331551701, -0.298295349, 0.285349727, -0.174008757)
MINUS_TWO_LOG = (-2.0, 1.0, *LOG_TAIL)
QUARTER_SINE = (1.57079625, -0.645963371, 0.079688482, -0.00467222789, 0.000150820561)
TWO_LN_2 = 1.38629436
ONE, HALF_ROOT = 0x3F800000, 0x3F3504F3  # the bits of 1 and of sqrt(1/2)


def make_projection_(
    values: Tensor, indices: Tensor | None, kind: str, in_features: int, std: float, seed: int, first: int = 0
) -> None:
    """In place: fill `values` and `indices` with rows ``first ..`` of the frozen random matrix of this seed.

    A pure function of (kind, in_features, nnz, std, seed) and the row: the same bits on every machine, device and
    torch version, whatever block of rows is asked for. Kinds of entries:

    - "gaussian": every entry drawn from N(0, std²); a dense matrix.
    - "sparse_gaussian": nnz entries in a row, drawn from N(0, std²): FlyLoRA's A (arXiv 2510.08396, std 1/r).
    - "sparse_sign": nnz entries in a row, std or -std with equal chance.
    - "binary": nnz entries in a row, all std.

    The nnz columns of a row are a uniform set without replacement (Floyd's sampling; each draw is uniform up to
    2^-32) in ascending order. Normal values reach out to 6.7 std.

    Args:
        values: (rows, nnz) float32, contiguous; for "gaussian" (rows, in_features).
        indices: (rows, nnz) int32, contiguous, on values' device; for "gaussian" None.
        kind: one of the above.
        in_features: columns of the matrix, below 2^31. nnz is from 1 to in_features, or 0 where that is 0.
        std: positive, within the range of float32, to which it is rounded.
        seed: from 0 to 2^63 - 1.
        first: row of the matrix that row 0 of `values` is.

    Raises:
        ValueError, TypeError: an argument that does not fit; values and indices are then as before.
    """
    check_seed(seed)  # here too, for the dispatcher takes no larger number
    OPERATOR(values, indices, kind, in_features, std, seed, first)


def check(
    values: Tensor, indices: Tensor | None, kind: str, in_features: int, std: float, seed: int, first: int = 0
) -> None:
    _check.choice("kind", kind, KINDS)
    if not 0 <= in_features < 2**31:
        raise ValueError(f"in_features must be from 0 to 2^31 - 1, got {in_features}")
    _check.dtype("values", values, (torch.float32,))
    if kind == "gaussian":
        if indices is not None:
            raise ValueError("indices must be None for kind 'gaussian', which is dense, got a tensor")
        _check.shape("values", values, "rows", in_features)
    else:
        if indices is None:
            raise ValueError(f"indices must be an int32 tensor for kind {kind!r}, got None")
        _check.dtype("indices", indices, (torch.int32,))
        _check.shape("values", values, "rows", "nnz")
        _check.shape("indices", indices, *values.shape)
        _check.same_device(values=values, indices=indices)
        check_nnz(values.shape[1], in_features)
    for name, tensor in (("values", values), ("indices", indices)):
        if tensor is not None and not tensor.is_contiguous():
            raise ValueError(f"{name} must be contiguous, got strides {tensor.stride()}")
    if values.requires_grad:
        raise ValueError("values must be frozen, got a tensor that requires grad: flyk trains no random projection")
    check_std(std)
    check_seed(seed)
    if first < 0 or (first + values.shape[0]) * values.shape[1] >= 2**63:
        raise ValueError(f"first must be from 0 up and leave every entry a number below 2^63, got {first}")


def check_nnz(nnz: int, in_features: int) -> None:
    if not min(1, in_features) <= nnz <= in_features:
        raise ValueError(f"nnz must be from {min(1, in_features)} to in_features, {in_features}, got {nnz}")


def check_std(std: float) -> None:
    limits = torch.finfo(torch.float32)
    if not limits.tiny <= std <= limits.max:
        raise ValueError(f"std must be from {limits.tiny:.3g} to {limits.max:.3g}, the range of float32, got {std}")


def check_seed(seed: int) -> None:
    if not 0 <= seed < 2**63:
        raise ValueError(f"seed must be from 0 to 2^63 - 1, got {seed}")


def reference(
    values: Tensor, indices: Tensor | None, kind: str, in_features: int, std: float, seed: int, first: int = 0
) -> None:
    rows, slots = values.shape
    slot = torch.arange(slots, device=values.device)
    step = max(1, BLOCK // max(1, in_features))
    for begin in range(0, rows, step):
        end = min(begin + step, rows)
        row = torch.arange(first + begin, first + end, device=values.device)
        counter = row[:, None] * slots + slot
        zero = torch.zeros_like(counter)
        words = philox((counter & WORD, counter >> 32, zero, zero), (seed & WORD, seed >> 32))
        entries = _entries(kind, words[1], words[2]) * std
        if indices is not None:
            columns, order = _columns(words[0], in_features).sort(dim=1)
            indices[begin:end] = columns
            entries = entries.gather(1, order)
        values[begin:end] = entries


def philox(counter: Sequence[Tensor], key: tuple[int, int]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Philox-4x32-10: four words for each counter of four words, each word an int64 from 0 to 2^32 - 1."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        a, b = c0 * 0xD2511F53, c2 * 0xCD9E8D57  # may wrap around; the shift and mask below set the sign bit right
        c0, c1, c2, c3 = (b >> 32 & WORD) ^ c1 ^ k0, b & WORD, (a >> 32 & WORD) ^ c3 ^ k1, a & WORD
        k0, k1 = (k0 + 0x9E3779B9) & WORD, (k1 + 0xBB67AE85) & WORD
    return c0, c1, c2, c3


def _entries(kind: str, u: Tensor, v: Tensor) -> Tensor:
    """Entries of unit standard deviation from two words each."""
    if kind == "binary":
        return torch.ones_like(u, dtype=torch.float32)
    if kind == "sparse_sign":
        return (1 - 2 * (u >> 31)).to(torch.float32)
    return normal(u, v)


def normal(u: Tensor, v: Tensor) -> Tensor:
    """Standard normals by Box-Muller, ``sqrt(-2 ln u) cos(2 pi v)`` for u and v read as fractions of 2^32.

    Each step is one integer operation or one float32 operation that IEEE 754 rounds in one way only, in this order,
    so every device gives the same bits: no library function, no division, and no product and sum in one rounding.
    Within 4e-7 max(1, abs(z)) of the exact value for u rounded to 24 bits.
    """
    # u = 2^e (1 + x), with 1 + x from sqrt(1/2) to sqrt(2): subtracting its bits moves sqrt(1/2) to a power of two.
    word = (u.to(torch.float32) + 0.5).view(torch.int32) + (ONE - HALF_ROOT)
    x = ((word & 0x7FFFFF) + HALF_ROOT).view(torch.float32) - 1.0
    exponent = (32 + 127 - (word >> 23)).to(torch.float32)
    # torch's float32 sqrt may be a vector library's, off by an ulp. Rounding one of float64 is exact, even if that is
    # off by an ulp: the root of a float32 number is never nearer than 4 ulp of float64 to where the rounding turns.
    radius = (exponent * TWO_LN_2 + x * _polynomial(MINUS_TWO_LOG, x)).double().sqrt().float()
    # cos is even about 0 and odd about a quarter turn: y is the distance from there, exact before its conversion.
    y = (2**30 - torch.minimum(v, WORD - v)).to(torch.float32) * 2.0**-30
    return radius * (y * _polynomial(QUARTER_SINE, y * y))


def _polynomial(coefficients: Sequence[float], x: Tensor) -> Tensor:
    """Horner's rule, each product and each sum rounded."""
    *rest, last = coefficients
    value = torch.full_like(x, last)
    for coefficient in reversed(rest):
        value = value * x + coefficient
    return value


def _columns(word: Tensor, n: int) -> Tensor:
    """Distinct columns from one word each: slot s draws from 0 .. last = n - nnz + s, and takes last if that is taken.

    Floyd's sampling (Bentley and Floyd, CACM 30(9), 1987): every set of nnz columns has the same chance.
    """
    rows, nnz = word.shape
    columns = torch.empty_like(word)
    taken = torch.zeros(rows, n, dtype=torch.bool, device=word.device)
    for slot in range(nnz):
        last = n - nnz + slot
        draw = word[:, slot : slot + 1] * (last + 1) >> 32
        column = torch.where(taken.gather(1, draw), last, draw)
        taken.scatter_(1, column, True)
        columns[:, slot : slot + 1] = column
    return columns


def fake(
    values: Tensor, indices: Tensor | None, kind: str, in_features: int, std: float, seed: int, first: int = 0
) -> None:
    return None


OPERATOR = Operator(
    "make_projection_(Tensor(a!) values, Tensor(b!)? indices, str kind, int in_features, float std, int seed,"
    " int first=0) -> ()",
    reference=reference,
    check=check,
    fake=fake,
)
