"""gram_ by Triton: a program for each tile of G's lower triangle, and one for each column tile of the class sums."""

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
from flyk.ops.gram_ import reference


def gram_(G: Tensor, Q: Tensor, phi: Tensor, labels: Tensor, precision: str = "float32") -> None:
    if G.dtype == torch.float64:
        if precision.startswith("bf16"):  # a product of bfloat16 parts has no tensor core that sums in float64
            reference(G, Q, phi, labels, precision)
            return
        precision = "float32"
    (rows, m), classes = phi.shape, Q.shape[1]
    if rows == 0:
        return
    # 8 for float64, 4 where float32 is multiplied exactly, 2 where tensor cores multiply.
    size = G.itemsize if G.dtype == torch.float64 else 4 if phi.itemsize > 2 and precision == "float32" else 2
    c = configuration("gram_lower", size, G.device)
    tall = blocks(m, c["TILE"])
    launch(gram_lower, (tall * (tall + 1) // 2,), phi, G, rows, m, *phi.stride(), PRECISION=precision, **c)
    c = configuration("class_sums", size, G.device)
    grid = (blocks(m, c["COLUMNS"]), blocks(classes, c["CLASSES"]))
    launch(class_sums, grid, phi, labels.contiguous(), Q, rows, m, classes, *phi.stride(), **c)


def examples() -> Iterator[tuple[Any, ...]]:
    """Calls that between them launch every kernel in every configuration."""
    rows, m, classes = 4096, 10000, 10
    for kind, dtype, precision in (
        *((torch.float32, torch.float32, precision) for precision in ("float32", "tf32", "bf16", "bf16x3")),
        *((torch.float32, torch.bfloat16, "float32"), (torch.float64, torch.float64, "float32")),
    ):
        G, Q = (torch.empty(m, size, dtype=kind, device="meta") for size in (m, classes))
        phi = torch.empty(rows, m, dtype=dtype, device="meta")
        yield G, Q, phi, torch.empty(rows, dtype=torch.int64, device="meta"), precision


@triton.jit
def triangle(place):
    """Row and column of an entry of a lower triangle that is stored row after row."""
    row = ((tl.sqrt(8.0 * place.to(tl.float32) + 1.0) - 1.0) * 0.5).to(tl.int32)
    row -= (row * (row + 1) // 2 > place).to(tl.int32)  # the root was rounded, by less than one row
    row += ((row + 1) * (row + 2) // 2 <= place).to(tl.int32)
    return row, place - row * (row + 1) // 2


@triton.jit
def tile_of_triangle(place, tall, GROUP: tl.constexpr):
    """A tile of the lower triangle of `tall` rows of tiles, in bands of GROUP rows that share the columns they read."""
    row, _ = triangle(place)  # pyright: ignore[reportGeneralTypeIssues]
    top = row // GROUP * GROUP
    height = tl.minimum(GROUP, tall - top)
    within = place - top * (top + 1) // 2
    corner, column = triangle(tl.maximum(within - height * top, 0))  # pyright: ignore[reportGeneralTypeIssues]
    left = within < height * top
    row = top + tl.where(left, within % height, corner)
    return row, tl.where(left, within // height, top + column)


@triton.jit
def multiply_add(a, b, total, PRECISION: tl.constexpr):
    """`total` + a b, in float64 where `total` is, else in `PRECISION` with sums in float32."""
    if total.dtype == tl.float64:
        total = tl.dot(a.to(tl.float64), b.to(tl.float64), total, input_precision="ieee", out_dtype=tl.float64)
    else:
        if a.dtype == tl.float64:
            a, b = a.to(tl.float32), b.to(tl.float32)
        total = dot(a, b, total, PRECISION)
    return total


@triton.jit
def gram_lower(
    phi, G, rows, m, stride, step,
    PRECISION: tl.constexpr, TILE: tl.constexpr, DEPTH: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    at, beside = tile_of_triangle(tl.program_id(0), tl.cdiv(m, TILE), GROUP)  # pyright: ignore[reportGeneralTypeIssues]
    row = at.to(tl.int64) * TILE + tl.arange(0, TILE)
    column = beside.to(tl.int64) * TILE + tl.arange(0, TILE)
    total = tl.zeros((TILE, TILE), G.dtype.element_ty)
    for begin in range(0, rows, DEPTH):
        sample = (begin + tl.arange(0, DEPTH)).to(tl.int64)
        here = (row[:, None] < m) & (sample[None, :] < rows)
        a = tl.load(phi + sample[None, :] * stride + row[:, None] * step, mask=here, other=0.0)
        there = (sample[:, None] < rows) & (column[None, :] < m)
        b = tl.load(phi + sample[:, None] * stride + column[None, :] * step, mask=there, other=0.0)
        total = multiply_add(a, b, total, PRECISION)
    inside = (row[:, None] < m) & (column[None, :] < m)
    to = G + row[:, None] * m + column[None, :]
    tl.store(to, tl.load(to, mask=inside, other=0.0) + total, mask=inside)


@triton.jit
def class_sums(
    phi, labels, Q, rows, m, classes, stride, step,
    COLUMNS: tl.constexpr, CLASSES: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    column = tl.program_id(0).to(tl.int64) * COLUMNS + tl.arange(0, COLUMNS)
    label = tl.program_id(1).to(tl.int64) * CLASSES + tl.arange(0, CLASSES)
    total = tl.zeros((COLUMNS, CLASSES), Q.dtype.element_ty)
    for begin in range(0, rows, DEPTH):
        sample = (begin + tl.arange(0, DEPTH)).to(tl.int64)
        own = tl.load(labels + sample, mask=sample < rows, other=-1)
        one_hot = narrow((own[:, None] == label[None, :]).to(tl.float32), phi.dtype.element_ty)
        here = (column[:, None] < m) & (sample[None, :] < rows)
        a = tl.load(phi + sample[None, :] * stride + column[:, None] * step, mask=here, other=0.0)
        total = multiply_add(a, one_hot, total, "float32")
    inside = (column[:, None] < m) & (label[None, :] < classes)
    to = Q + column[:, None] * classes + label[None, :]
    tl.store(to, tl.load(to, mask=inside, other=0.0) + total, mask=inside)
