"""project by Triton: dense rows by tiles of both matrices, sparse rows by gathering from the columns of x."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from flyk.backends.triton._floats import narrow
from flyk.backends.triton._launch import blocks, configuration, launch
from flyk.backends.triton._product import dot
from flyk.ops import _check
from flyk.ops.project import reference


def project(
    x: Tensor, values: Tensor, indices: Tensor | None = None, activation: str = "none", precision: str = "float32"
) -> Tensor:
    if (x.dtype == torch.float64) if indices is None else precision.startswith("bf16"):
        return reference(x, values, indices, activation, precision)
    y = x.new_empty(*x.shape[:-1], values.shape[0])
    expand(_check.rows(x), values, indices, activation, precision, _check.rows(y))
    return y


def expand(x: Tensor, values: Tensor, indices: Tensor | None, activation: str, precision: str, y: Tensor) -> None:
    """act(x Rᵀ) of x (N, d), any strides, into a contiguous y (N, M)."""
    (rows, d), m = x.shape, values.shape[0]
    if indices is None:
        c = configuration("project_dense", x.itemsize, x.device)
        grid = (blocks(rows, c["ROWS"]) * blocks(m, c["COLUMNS"]),)
        how = {"RELU": activation == "relu", "PRECISION": precision} | c
        launch(project_dense, grid, x, values, y, rows, m, d, *x.stride(), *values.stride(), **how)
        return
    c = configuration("project_sparse", x.itemsize, x.device)
    grid = (blocks(rows, c["ROWS"]) * blocks(m, c["COLUMNS"]),)
    columns = x.t().contiguous()  # so that neighbouring threads read neighbouring rows of one column
    strides = (*values.stride(), *indices.stride())
    how = {"RELU": activation == "relu"} | c
    launch(project_sparse, grid, columns, values, indices, y, rows, m, values.shape[1], *strides, **how)


def examples() -> Iterator[tuple[Any, ...]]:
    """Calls that between them launch every kernel in every configuration."""
    rows, d, m, nnz = 4096, 768, 10000, 64
    for dtype, precision in (
        *((torch.float32, "float32"), (torch.float32, "tf32"), (torch.float32, "bf16"), (torch.float32, "bf16x3")),
        (torch.bfloat16, "float32"),
    ):
        x, values = (torch.empty(n, d, dtype=dtype, device="meta") for n in (rows, m))
        yield x, values, None, "relu", precision
    for dtype in (torch.float32, torch.bfloat16):
        x, values = (torch.empty(*size, dtype=dtype, device="meta") for size in ((rows, d), (m, nnz)))
        yield x, values, torch.empty(m, nnz, dtype=torch.int32, device="meta"), "relu"


@triton.jit
def tile_of(rows, m, ROWS: tl.constexpr, COLUMNS: tl.constexpr, GROUP: tl.constexpr):
    """This program's rows and columns, in bands of GROUP tiles of rows, which find each other's columns cached."""
    tall, wide = tl.cdiv(rows, ROWS), tl.cdiv(m, COLUMNS)
    group = tl.program_id(0) // (GROUP * wide)
    height = tl.minimum(GROUP, tall - group * GROUP)
    within = tl.program_id(0) % (GROUP * wide)
    row = (group * GROUP + within % height).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = (within // height).to(tl.int64) * COLUMNS + tl.arange(0, COLUMNS)
    return row, column


@triton.jit
def project_dense(
    x, values, y, rows, m, d, x_stride, x_step, stride, step,
    RELU: tl.constexpr, PRECISION: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    row, column = tile_of(rows, m, ROWS, COLUMNS, GROUP)  # pyright: ignore[reportGeneralTypeIssues]
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for begin in range(0, d, DEPTH):
        at = (begin + tl.arange(0, DEPTH)).to(tl.int64)
        here = (row[:, None] < rows) & (at[None, :] < d)
        a = tl.load(x + row[:, None] * x_stride + at[None, :] * x_step, mask=here, other=0.0)
        there = (column[None, :] < m) & (at[:, None] < d)
        b = tl.load(values + column[None, :] * stride + at[:, None] * step, mask=there, other=0.0)
        total = dot(a, b, total, PRECISION)
    if RELU:
        total = tl.where(total < 0, 0.0, total)  # which keeps NaN
    inside = (row[:, None] < rows) & (column[None, :] < m)
    tl.store(y + row[:, None] * m + column[None, :], narrow(total, y.dtype.element_ty), mask=inside)


@triton.jit
def project_sparse(
    columns, values, indices, y, rows, m, nnz, stride, step, i_stride, i_step,
    RELU: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    row, column = tile_of(rows, m, ROWS, COLUMNS, GROUP)  # pyright: ignore[reportGeneralTypeIssues]
    accumulator = tl.float64 if y.dtype.element_ty == tl.float64 else tl.float32
    total = tl.zeros((COLUMNS, ROWS), accumulator)
    for slot in range(nnz):
        at = tl.load(indices + column * i_stride + slot * i_step, mask=column < m, other=0).to(tl.int64)
        value = tl.load(values + column * stride + slot * step, mask=column < m, other=0.0)
        inside = (column[:, None] < m) & (row[None, :] < rows)
        entry = tl.load(columns + at[:, None] * rows + row[None, :], mask=inside, other=0.0)
        total += value.to(accumulator)[:, None] * entry.to(accumulator)
    if RELU:
        total = tl.where(total < 0, 0.0, total)
    inside = (row[:, None] < rows) & (column[None, :] < m)
    tl.store(y + row[:, None] * m + column[None, :], narrow(tl.trans(total), y.dtype.element_ty), mask=inside)
