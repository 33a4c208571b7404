"""project with a matrix that is never stored: every kernel makes the entries that it needs in registers.

It trades the memory of R, and reading it, for making it again in each call; for few rows of x, or an R too large to
keep. Which entries exist, and their bits, are those of `make_projection_`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from flyk.backends.triton._floats import narrow
from flyk.backends.triton._launch import blocks, configuration, launch
from flyk.backends.triton._matrix import GAUSSIAN, distinct, entries, words
from flyk.backends.triton._product import multiply
from flyk.ops import _check
from flyk.ops.make_projection_ import KINDS


def project_from_seed(
    x: Tensor, out_features: int, kind: str, nnz: int | None, std: float, seed: int, activation: str = "none"
) -> Tensor:
    """``act(x Rᵀ)`` for x (..., d), R the matrix of these arguments rounded to x's dtype; nnz None for "gaussian"."""
    rows, d = _check.rows(x), x.shape[-1]
    y = x.new_empty(*x.shape[:-1], out_features)
    given = (rows, y, len(rows), out_features, d)
    how = {"RELU": activation == "relu", "enable_fp_fusion": False}
    if nnz is None:
        c = configuration("project_from_seed_dense", x.itemsize, x.device)
        grid = (blocks(len(rows), c["ROWS"]) * blocks(out_features, c["COLUMNS"]),)
        launch(project_from_seed_dense, grid, *given, std, seed, *rows.stride(), **how, **c)
    else:
        slots = max(1, 1 << (nnz - 1).bit_length())
        c = configuration("project_from_seed_sparse", slots, x.device)
        how |= {"KIND": KINDS.index(kind), "SLOTS": slots}
        grid = (blocks(out_features, c["COLUMNS"]) if len(rows) else 0,)
        launch(project_from_seed_sparse, grid, *given, nnz, std, seed, *rows.stride(), **how, **c)
    return y


def examples() -> Iterator[tuple[Any, ...]]:
    """Calls that between them launch every kernel in every configuration."""
    for dtype in (torch.float32, torch.bfloat16):
        yield torch.empty(16, 768, dtype=dtype, device="meta"), 10000, "gaussian", None, 1.0, 2**40
    yield torch.empty(16, 768, device="meta"), 10000, "sparse_sign", 64, 1.0, 2**40
    yield torch.empty(16, 4096, device="meta"), 32, "sparse_gaussian", 1024, 1.0, 2**40


@triton.jit
def project_from_seed_dense(
    x, y, rows, m, d, std, seed, stride, step,
    RELU: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    wide = tl.cdiv(m, COLUMNS)
    row = (tl.program_id(0) // wide).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = (tl.program_id(0) % wide).to(tl.int64) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for begin in range(0, d, DEPTH):
        at = (begin + tl.arange(0, DEPTH)).to(tl.int64)
        here = (row[:, None] < rows) & (at[None, :] < d)
        a = tl.load(x + row[:, None] * stride + at[None, :] * step, mask=here, other=0.0)
        _, u, v, _ = words(column[None, :] * d + at[:, None], seed)  # pyright: ignore[reportGeneralTypeIssues]
        b = tl.where(at[:, None] < d, entries(u, v, GAUSSIAN) * std, 0.0)
        total = multiply(a, narrow(b, x.dtype.element_ty), total, "ieee")
    if RELU:
        total = tl.where(total < 0, 0.0, total)
    inside = (row[:, None] < rows) & (column[None, :] < m)
    tl.store(y + row[:, None] * m + column[None, :], narrow(total, y.dtype.element_ty), mask=inside)


@triton.jit
def project_from_seed_sparse(
    x, y, rows, m, d, nnz, std, seed, stride, step,
    KIND: tl.constexpr, SLOTS: tl.constexpr, RELU: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    column = tl.program_id(0).to(tl.int64) * COLUMNS + tl.arange(0, COLUMNS)
    slot = tl.arange(0, SLOTS)[None, :]
    word, u, v, _ = words(column[:, None] * nnz + slot, seed)  # pyright: ignore[reportGeneralTypeIssues]
    at = distinct(word, d, nnz, COLUMNS, SLOTS).to(tl.int64)
    value = narrow(entries(u, v, KIND) * std, x.dtype.element_ty).to(tl.float32)
    for _ in range(rows):
        entry = tl.load(x + at * step, mask=slot < nnz, other=0.0).to(tl.float32)
        total = tl.sum(tl.where(slot < nnz, value * entry, 0.0), axis=1)
        if RELU:
            total = tl.where(total < 0, 0.0, total)
        tl.store(y + column, narrow(total, y.dtype.element_ty), mask=column < m)
        x += stride
        y += m
