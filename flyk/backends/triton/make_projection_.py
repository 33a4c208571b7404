"""make_projection_ by Triton, bit for bit as everywhere."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from flyk.backends.triton._launch import blocks, configuration, launch
from flyk.backends.triton._matrix import GAUSSIAN, distinct, entries, words
from flyk.ops.make_projection_ import KINDS, reference

MOST_SLOTS = 4096  # entries of a row that fit the registers


def make_projection_(
    values: Tensor, indices: Tensor | None, kind: str, in_features: int, std: float, seed: int, first: int = 0
) -> None:
    rows, nnz = values.shape
    if indices is None:
        c = configuration("make_dense", nnz, values.device)
        given = (values, values.numel(), first * nnz, std, seed)
        launch(make_dense, (blocks(values.numel(), c["BLOCK"]),), *given, enable_fp_fusion=False, **c)
    elif nnz > MOST_SLOTS:
        reference(values, indices, kind, in_features, std, seed, first)
    elif nnz:
        slots = 1 << (nnz - 1).bit_length()
        c = configuration("make_sparse", slots, values.device)
        how = {"KIND": KINDS.index(kind), "SLOTS": slots, "enable_fp_fusion": False} | c
        given = (values, indices, rows, in_features, nnz, std, seed, first)
        launch(make_sparse, (blocks(rows, c["ROWS"]),), *given, **how)


def examples() -> Iterator[tuple[Any, ...]]:
    """Calls that between them launch every kernel in every configuration."""
    yield torch.empty(10000, 768, device="meta"), None, "gaussian", 768, 1.0, 2**40
    for rows, d, nnz in ((10000, 768, 64), (32, 4096, 1024), (32, 16384, 4096)):
        values = torch.empty(rows, nnz, device="meta")
        yield values, values.to(torch.int32), "sparse_gaussian", d, 1.0, 2**40


@triton.jit
def make_dense(values, size, start, std, seed, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    _, u, v, _ = words(start + at, seed)  # pyright: ignore[reportGeneralTypeIssues]
    tl.store(values + at, entries(u, v, GAUSSIAN) * std, mask=at < size)


@triton.jit
def make_sparse(
    values, indices, rows, n, nnz, std, seed, first, KIND: tl.constexpr, ROWS: tl.constexpr, SLOTS: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    slot = tl.arange(0, SLOTS)[None, :]
    word, u, v, _ = words((first + row)[:, None] * nnz + slot, seed)  # pyright: ignore[reportGeneralTypeIssues]
    columns = distinct(word, n, nnz, ROWS, SLOTS)
    place = tl.zeros((ROWS, SLOTS), tl.int64)  # of each entry, once its row is in ascending order of columns
    for s in range(nnz):
        column = tl.sum(tl.where(slot == s, columns, 0), axis=1)
        place += (column[:, None] < columns).to(tl.int64)
    out = row[:, None] * nnz + place
    inside = (row[:, None] < rows) & (slot < nnz)
    tl.store(values + out, entries(u, v, KIND) * std, mask=inside)
    tl.store(indices + out, columns, mask=inside)
