"""winner_take_all by Triton: short rows are ranked in registers, long ones by a radix search that is exact.

A long row goes through the cache once for each byte of its scores: a histogram of that byte, among entries that share
the bytes found before, tells the next byte of the score that the last winner has. One more pass gathers all above it
and the first of its equals. Then each winner is moved to its place by counting the better ones; many are sorted.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from flyk.backends.triton._launch import blocks, configuration, launch
from flyk.backends.triton._ranking import next_best, rank, score
from flyk.ops import _check
from flyk.ops.winner_take_all import score as reference_score

SHORT = 128  # the longest row that is ranked in registers
COUNTED = 2048  # the most winners that are put in order by counting; a prediction, the work is quadratic


def winner_take_all(
    y: Tensor, k: int, bias: Tensor | None = None, selection: str = "magnitude"
) -> tuple[Tensor, Tensor]:
    rows, shape = _check.rows(y), (*y.shape[:-1], k)
    winners, indices = y.new_empty(shape), y.new_empty(shape, dtype=torch.int64)
    if k:
        pick(rows, k, bias, selection, _check.rows(winners), _check.rows(indices))
    return winners, indices


def pick(y: Tensor, k: int, bias: Tensor | None, selection: str, winners: Tensor, indices: Tensor) -> None:
    """The winners of y (N, n), any strides, into contiguous `winners` and `indices` (N, k)."""
    rows, n = y.shape
    bias = None if bias is None else bias.contiguous()
    if n <= SHORT:
        c = configuration("rank_short_rows", n, y.device)
        sizes = {"BLOCK": triton.next_power_of_2(n), "SELECTION": selection}
        grid = (blocks(rows, c["ROWS"]),)
        launch(rank_short_rows, grid, y, bias, winners, indices, rows, n, k, *y.stride(), **sizes, **c)
        return
    score_bytes = _check.accumulator(y.dtype).itemsize
    chosen = indices.new_empty(rows, k, dtype=torch.int32)
    c = configuration("select_winners", n, y.device)
    launch(select_winners, (rows,), y, bias, chosen, n, k, *y.stride(), BYTES=score_bytes, SELECTION=selection, **c)
    if k > COUNTED:
        _sort(y, bias, selection, chosen, winners, indices)
        return
    c = configuration("order_winners", k, y.device)
    grid = (rows * blocks(k, c["BLOCK"]),)
    launch(order_winners, grid, y, bias, chosen, winners, indices, k, *y.stride(), SELECTION=selection, **c)


def _sort(y: Tensor, bias: Tensor | None, selection: str, chosen: Tensor, winners: Tensor, indices: Tensor) -> None:
    # The winners stand in the order of their places, so a stable sort leaves ties as they should be.
    at = chosen.long()
    won = y.gather(1, at)
    scores = reference_score(won, None if bias is None else bias[at], selection)
    order = scores.sort(dim=1, descending=True, stable=True).indices
    torch.gather(won, 1, order, out=winners)
    torch.gather(at, 1, order, out=indices)


def examples() -> Iterator[tuple[Any, ...]]:
    """Calls that between them launch every kernel in every configuration."""
    for n, k, dtype in (
        *((32, 8, torch.bfloat16), (128, 16, torch.float32), (1024, 32, torch.float32), (4096, 500, torch.bfloat16)),
        *((10000, 1000, torch.float32), (65536, 64, torch.float64)),
    ):
        yield torch.empty(64, n, dtype=dtype, device="meta"), k, torch.empty(n, device="meta")


@triton.jit
def rank_short_rows(
    y,
    bias,
    winners,
    indices,
    rows,
    n,
    k,
    stride,
    step,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    SELECTION: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    at = tl.arange(0, BLOCK)[None, :]
    inside = (row[:, None] < rows) & (at < n)
    value = tl.load(y + row[:, None] * stride + at.to(tl.int64) * step, mask=inside, other=0.0)
    accumulator = tl.float64 if value.dtype == tl.float64 else tl.float32
    ranks = rank(score(value.to(accumulator), bias, at, at < n, SELECTION), inside)
    for place in range(k):
        best = next_best(ranks, at, BLOCK)
        won = at == best[:, None]
        ranks = tl.where(won, tl.zeros_like(ranks), ranks)
        out = row * k + place
        tl.store(winners + out, tl.sum(tl.where(won, value, tl.zeros_like(value)), axis=1), mask=row < rows)
        tl.store(indices + out, best.to(tl.int64), mask=row < rows)


@triton.jit
def ranked(y, bias, at, inside, step, SELECTION: tl.constexpr):
    """The ranks of the entries of a row at places `at`."""
    value = tl.load(y + at.to(tl.int64) * step, mask=inside, other=0.0)
    accumulator = tl.float64 if value.dtype == tl.float64 else tl.float32
    return rank(score(value.to(accumulator), bias, at, inside, SELECTION), inside)


@triton.jit
def select_winners(
    y, bias, chosen, n, k, stride, step, BLOCK: tl.constexpr, BYTES: tl.constexpr, SELECTION: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    y += row * stride
    word = tl.uint64 if BYTES == 8 else tl.uint32
    byte = tl.arange(0, 256)
    last = tl.full((), 0, word)  # the rank of the last winner, found from its highest byte down
    left = k  # how many winners share the bytes found so far
    for i in range(BYTES):
        shift = tl.zeros((), word) + 8 * (BYTES - 1 - i)
        count = tl.zeros((256,), tl.int32)
        for begin in range(0, n, BLOCK):
            at = begin + tl.arange(0, BLOCK)
            inside = at < n
            ranks = ranked(y, bias, at, inside, step, SELECTION)
            # Two shifts, since one by all the bits of a word is undefined.
            alike = inside & (((ranks ^ last) >> shift) >> 8 == 0)
            count += tl.histogram(((ranks >> shift) & 255).to(tl.int32), 256, mask=alike)
        reached = tl.sum(count) - tl.cumsum(count) + count  # entries whose byte is this or more
        found = tl.sum((reached >= left).to(tl.int32)) - 1
        left -= tl.sum(tl.where(byte > found, count, 0))
        last = last | (found.to(word) << shift)
    above, equal = 0, 0
    for begin in range(0, n, BLOCK):
        at = begin + tl.arange(0, BLOCK)
        inside = at < n
        ranks = ranked(y, bias, at, inside, step, SELECTION)
        ties = (inside & (ranks == last)).to(tl.int32)
        better = (ranks > last).to(tl.int32)
        won = better + (ties * (equal + tl.cumsum(ties) <= left)).to(tl.int32)
        tl.store(chosen + row * k + above + tl.cumsum(won) - 1, at, mask=won > 0)
        above += tl.sum(won)
        equal += tl.sum(ties)


@triton.jit
def order_winners(
    y,
    bias,
    chosen,
    winners,
    indices,
    k,
    stride,
    step,
    BLOCK: tl.constexpr,
    OTHERS: tl.constexpr,
    SELECTION: tl.constexpr,
):
    parts = tl.cdiv(k, BLOCK)
    row = (tl.program_id(0) // parts).to(tl.int64)
    y += row * stride
    chosen += row * k
    mine = (tl.program_id(0) % parts) * BLOCK + tl.arange(0, BLOCK)
    inside = mine < k
    at = tl.load(chosen + mine, mask=inside, other=0)
    ranks = ranked(y, bias, at, inside, step, SELECTION)
    place = tl.zeros((BLOCK,), tl.int32)
    for begin in range(0, k, OTHERS):
        other = begin + tl.arange(0, OTHERS)
        theirs = ranked(y, bias, tl.load(chosen + other, mask=other < k, other=0), other < k, step, SELECTION)
        # `chosen` is in the order of places, so the lower index is the lower number in it.
        ahead = (theirs[None, :] > ranks[:, None]) | (
            (theirs[None, :] == ranks[:, None]) & (other[None, :] < mine[:, None])
        )
        place += tl.sum((ahead & (other < k)[None, :]).to(tl.int32), axis=1)
    value = tl.load(y + at.to(tl.int64) * step, mask=inside, other=0.0)
    tl.store(winners + row * k + place, value, mask=inside)
    tl.store(indices + row * k + place, at.to(tl.int64), mask=inside)
