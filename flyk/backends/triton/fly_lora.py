"""fly_lora by Triton: one kernel reads x once and finds each row's winners, one adds their columns of B to the output.

Few ranks make both products thin, so they are taken densely, on tensor cores. A sparse A is laid out for that; a row of
x that holds NaN or infinity, which 0 would not silence, is then summed over A's own entries alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from flyk.backends.triton._floats import narrow
from flyk.backends.triton._launch import blocks, configuration, launch
from flyk.backends.triton._product import dot_float32, multiply, spread
from flyk.backends.triton._ranking import next_best, rank, score
from flyk.backends.triton.winner_take_all import pick
from flyk.ops import _check
from flyk.ops.fly_lora import fake_backward as empty_gradients
from flyk.ops.fly_lora import reference, reference_backward
from flyk.ops.project import dense

MOST_RANKS = 256


def fly_lora(
    x: Tensor,
    base: Tensor | None,
    values: Tensor,
    indices: Tensor | None,
    B: Tensor,
    k: int,
    bias: Tensor | None = None,
    scale: float = 1.0,
    selection: str = "magnitude",
) -> tuple[Tensor, Tensor, Tensor]:
    (m, r), lead = B.shape, x.shape[:-1]
    if x.dtype == torch.float64 or r > MOST_RANKS:
        return reference(x, base, values, indices, B, k, bias, scale, selection)
    out, winners = x.new_empty(*lead, m), x.new_empty(*lead, k)
    winner_indices = winners.new_empty(winners.shape, dtype=torch.int64)
    found = _check.rows(winners), _check.rows(winner_indices)
    _winners(_check.rows(x), values, indices, bias, selection, *found)
    _add(None if base is None else _check.rows(base), *found, B, scale, _check.rows(out))
    return out, winners, winner_indices


def stacked(
    x: Tensor, weight: Tensor, B: Tensor, k: int, bias: Tensor | None, scale: float, selection: str
) -> tuple[Tensor, Tensor, Tensor]:
    """`fly_lora` beside its frozen linear layer, by one GEMM: `weight` (m + r, d) is the layer's with A beneath it.

    The first result is a view (..., m) of the product (..., m + r), added to in place. No gradient.

    Predicted, not measured: it saves a row's d elements read again and costs one more tile of 128 columns, 256 d flop.
    That pays where the GPU does more than 256 / itemsize flop for each byte that it can read: for bfloat16, 128, which
    A100 (156), H100 (295), H200 (206), B200 (281) and MI300X (247) all do by their data sheets; in float32 none does.
    """
    m = len(B)
    both = _check.rows(F.linear(x, weight))
    y, out = both[:, m:], both[:, :m]
    winners, indices = y.new_empty(len(y), k), y.new_empty(len(y), k, dtype=torch.int64)
    if k:
        pick(y, k, bias, selection, winners, indices)
    _add(out, winners, indices, B, scale, out)
    lead = x.shape[:-1]
    return out.unflatten(0, lead), winners.view(*lead, k), indices.view(*lead, k)


def backward(
    grad: Tensor,
    winners: Tensor,
    winner_indices: Tensor,
    values: Tensor,
    indices: Tensor | None,
    B: Tensor,
    scale: float,
    in_features: int,
    need_x: bool,
    need_B: bool,
) -> tuple[Tensor, Tensor]:
    given = (grad, winners, winner_indices, values, indices, B, scale, in_features, need_x, need_B)
    if B.dtype == torch.float64 or B.shape[1] > MOST_RANKS:
        return reference_backward(*given)
    grad_x, grad_B = empty_gradients(*given)
    g, (m, r), k = _check.rows(grad), B.shape, winners.shape[-1]
    found = tuple(_check.rows(t).contiguous() for t in (winners, winner_indices))
    ranks = _ranks(r)
    sizes = (len(g), m, r, k, scale, *g.stride())
    if need_x:
        A = dense(values, indices, in_features).contiguous()
        c = configuration("fly_lora_grad_x", ranks * B.itemsize, B.device) | {"RANKS": ranks}
        grid = (blocks(len(g), c["ROWS"]),)
        launch(fly_lora_grad_x, grid, g, found[1], B, A, grad_x, in_features, *sizes, *B.stride(), **c)
    if need_B:
        c = configuration("fly_lora_grad_B", ranks * B.itemsize, B.device) | {"RANKS": ranks}
        launch(fly_lora_grad_B, (blocks(m, c["COLUMNS"]),), g, *found, grad_B, *sizes, **c)
    return grad_x, grad_B


def _ranks(r: int) -> int:
    """The width of a tile that holds r ranks; tensor cores take no less than 16."""
    return max(16, 1 << (r - 1).bit_length())


def _winners(
    x: Tensor,
    values: Tensor,
    indices: Tensor | None,
    bias: Tensor | None,
    selection: str,
    winners: Tensor,
    winner_indices: Tensor,
) -> None:
    (rows, d), r, k = x.shape, values.shape[0], winners.shape[1]
    if k == 0:
        return
    A = dense(values, indices, d).contiguous()
    sparse = (None, None, 0) if indices is None else (values.contiguous(), indices.contiguous(), values.shape[1])
    bias = None if bias is None else bias.contiguous()
    ranks = _ranks(r)
    c = configuration("fly_lora_winners", ranks * x.itemsize, x.device)
    how = {"RANKS": ranks, "SELECTION": selection} | c
    arguments = (x, A, *sparse, bias, winners, winner_indices, rows, d, r, k, *x.stride())
    launch(fly_lora_winners, (blocks(rows, c["ROWS"]),), *arguments, **how)


def _add(base: Tensor | None, winners: Tensor, indices: Tensor, B: Tensor, scale: float, out: Tensor) -> None:
    """out = base + scale W Bᵀ, for the matrix W (N, r) that holds the winners; base may be out."""
    (rows, k), (m, r) = winners.shape, B.shape
    ranks = _ranks(r)
    c = configuration("fly_lora_add", ranks * B.itemsize, B.device)
    grid = (blocks(rows, c["ROWS"]) * blocks(m, c["COLUMNS"]),)
    strides = (*((0, 0) if base is None else base.stride()), *B.stride(), *out.stride())
    launch(fly_lora_add, grid, base, winners, indices, B, out, rows, m, r, k, scale, *strides, RANKS=ranks, **c)


def examples() -> Iterator[tuple[Any, ...]]:
    """Calls that between them launch every kernel in every configuration."""
    rows, d, m = 4096, 4096, 11008
    for r, k in ((32, 8), (256, 64)):
        for dtype in (torch.bfloat16, torch.float32):
            x, base, A, B = (
                torch.empty(*size, dtype=dtype, device="meta") for size in ((rows, d), (rows, m), (r, d), (m, r))
            )
            yield x, base, A, None, B, k, torch.empty(r, device="meta"), 2.0
            if r == 32:
                A = torch.empty(r, d * k // r, dtype=dtype, device="meta")
                yield x, base, A, torch.empty(A.shape, dtype=torch.int32, device="meta"), B, k, None, 2.0


def backward_examples() -> Iterator[tuple[Any, ...]]:
    for x, _, A, indices, B, k, *_ in examples():
        winners = torch.empty(len(x), k, dtype=x.dtype, device="meta")
        grad = torch.empty(len(x), len(B), dtype=x.dtype, device="meta")
        if indices is None:
            yield grad, winners, winners.long(), A, None, B, 2.0, x.shape[1], True, True


@triton.jit
def fly_lora_winners(
    x, A, values, indices, nnz, bias, winners, winner_indices, rows, d, r, k, stride, step,
    RANKS: tl.constexpr, SELECTION: tl.constexpr, ROWS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    at = tl.arange(0, RANKS)
    y = tl.zeros((ROWS, RANKS), tl.float32)
    spoiled = tl.zeros((ROWS,), tl.int32)
    for begin in range(0, d, DEPTH):
        depth = (begin + tl.arange(0, DEPTH)).to(tl.int64)
        here = (row[:, None] < rows) & (depth[None, :] < d)
        a = tl.load(x + row[:, None] * stride + depth[None, :] * step, mask=here, other=0.0)
        there = (at[None, :] < r) & (depth[:, None] < d)
        b = tl.load(A + at[None, :].to(tl.int64) * d + depth[:, None], mask=there, other=0.0)
        y = multiply(a, b, y, "ieee")
        if values is not None:
            spoiled = tl.maximum(spoiled, tl.max((tl.abs(a.to(tl.float32)) < float("inf")).to(tl.int32) ^ 1, axis=1))
    if values is not None:  # noqa: SIM102 (known when compiled, the other when run)
        if tl.max(spoiled) > 0:
            alone = tl.zeros((ROWS, RANKS), tl.float32)
            for slot in range(nnz):
                entry = at.to(tl.int64) * nnz + slot
                column = tl.load(indices + entry, mask=at < r, other=0).to(tl.int64)
                value = tl.load(values + entry, mask=at < r, other=0.0).to(tl.float32)
                here = (row[:, None] < rows) & (at[None, :] < r)
                a = tl.load(x + row[:, None] * stride + column[None, :] * step, mask=here, other=0.0)
                alone += a.to(tl.float32) * value[None, :]
            y = tl.where(spoiled[:, None] > 0, alone, y)
    inside = (row[:, None] < rows) & (at[None, :] < r)
    ranks = rank(score(y, bias, at[None, :], (at < r)[None, :], SELECTION), inside)
    for place in range(k):
        best = next_best(ranks, at[None, :], RANKS)
        won = at[None, :] == best[:, None]
        ranks = tl.where(won, tl.zeros_like(ranks), ranks)
        value = narrow(tl.sum(tl.where(won, y, 0.0), axis=1), winners.dtype.element_ty)
        tl.store(winners + row * k + place, value, mask=row < rows)
        tl.store(winner_indices + row * k + place, best.to(tl.int64), mask=row < rows)


@triton.jit
def fly_lora_add(
    base, winners, indices, B, out, rows, m, r, k, scale, base_stride, base_step, stride, step, out_stride, out_step,
    RANKS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    wide = tl.cdiv(m, COLUMNS)
    row = (tl.program_id(0) // wide).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = (tl.program_id(0) % wide).to(tl.int64) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for first in range(0, RANKS, DEPTH):
        at = (first + tl.arange(0, DEPTH)).to(tl.int64)
        there = (at[:, None] < r) & (column[None, :] < m)
        b = tl.load(B + column[None, :] * stride + at[:, None] * step, mask=there, other=0.0)
        total = multiply(spread(winners, indices, row, rows, k, first, ROWS, DEPTH), b, total, "ieee")
    total *= scale
    inside = (row[:, None] < rows) & (column[None, :] < m)
    if base is not None:
        start = base + row[:, None] * base_stride + column[None, :] * base_step
        total += tl.load(start, mask=inside, other=0.0).to(tl.float32)
    end = out + row[:, None] * out_stride + column[None, :] * out_step
    tl.store(end, narrow(total, out.dtype.element_ty), mask=inside)


@triton.jit
def fly_lora_grad_x(
    grad, winner_indices, B, A, grad_x, d, rows, m, r, k, scale, grad_stride, grad_step, stride, step,
    RANKS: tl.constexpr, ROWS: tl.constexpr, DEPTH: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    at = tl.arange(0, RANKS).to(tl.int64)
    total = tl.zeros((ROWS, RANKS), tl.float32)  # the gradient to y
    for begin in range(0, m, DEPTH):
        output = (begin + tl.arange(0, DEPTH)).to(tl.int64)
        here = (row[:, None] < rows) & (output[None, :] < m)
        g = tl.load(grad + row[:, None] * grad_stride + output[None, :] * grad_step, mask=here, other=0.0)
        there = (output[:, None] < m) & (at[None, :] < r)
        b = tl.load(B + output[:, None] * stride + at[None, :] * step, mask=there, other=0.0)
        total = multiply(g, b, total, "ieee")
    kept = tl.zeros((ROWS, RANKS), tl.int32)
    for i in range(k):
        winner = tl.load(winner_indices + row * k + i, mask=row < rows, other=-1)
        kept = kept | (at[None, :] == winner[:, None]).to(tl.int32)
    total = tl.where(kept > 0, scale * total, 0.0)
    for begin in range(0, d, COLUMNS):
        column = (begin + tl.arange(0, COLUMNS)).to(tl.int64)
        there = (at[:, None] < r) & (column[None, :] < d)
        a = tl.load(A + at[:, None] * d + column[None, :], mask=there, other=0.0)
        out = dot_float32(total, a, tl.zeros((ROWS, COLUMNS), tl.float32))
        inside = (row[:, None] < rows) & (column[None, :] < d)
        tl.store(grad_x + row[:, None] * d + column[None, :], narrow(out, grad_x.dtype.element_ty), mask=inside)


@triton.jit
def fly_lora_grad_B(
    grad, winners, winner_indices, grad_B, rows, m, r, k, scale, grad_stride, grad_step,
    RANKS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    output = tl.program_id(0).to(tl.int64) * COLUMNS + tl.arange(0, COLUMNS)
    at = tl.arange(0, RANKS)
    total = tl.zeros((COLUMNS, RANKS), tl.float32)
    for begin in range(0, rows, DEPTH):
        row = (begin + tl.arange(0, DEPTH)).to(tl.int64)
        here = (output[:, None] < m) & (row[None, :] < rows)
        g = tl.load(grad + row[None, :] * grad_stride + output[:, None] * grad_step, mask=here, other=0.0)
        total = multiply(g, spread(winners, winner_indices, row, rows, k, 0, DEPTH, RANKS), total, "ieee")
    inside = (output[:, None] < m) & (at[None, :] < r)
    total = narrow(scale * total, grad_B.dtype.element_ty)
    tl.store(grad_B + output[:, None] * r + at[None, :], total, mask=inside)
