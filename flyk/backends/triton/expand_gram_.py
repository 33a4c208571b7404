"""expand_gram_ by Triton: a block of rows is expanded, then added by gram_'s kernels, or winner by winner.

Few winners are added to G by the programs that own its rows: they are put in order of column, so that a row finds the
samples that won it, and in order of column within a sample, so that what it adds ends where the row itself stands.
Every entry of G is summed by one program in the order of the samples, so there is nothing to make atomic.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from flyk.backends.triton._launch import configuration, launch
from flyk.backends.triton.gram_ import gram_
from flyk.backends.triton.project import expand
from flyk.backends.triton.winner_take_all import winner_take_all
from flyk.ops.expand_gram_ import BLOCK
from flyk.ops.project import reference as reference_project
from flyk.ops.winner_take_all import scatter


def expand_gram_(
    G: Tensor,
    Q: Tensor,
    h: Tensor,
    values: Tensor,
    indices: Tensor | None,
    labels: Tensor,
    activation: str = "relu",
    k: int | None = None,
    precision: str = "float32",
) -> None:
    m = len(G)
    if h.dtype == torch.float64:
        h, values = h.to(G.dtype), values.to(G.dtype)
    most = configuration("expand_gram_", m, G.device)["scatter_percent"] * m // 100
    for rows, ids in zip(h.split(BLOCK), labels.split(BLOCK), strict=True):
        phi = _activations(rows, values, indices, activation, precision, G)
        if k is None:
            gram_(G, Q, phi, ids, precision)
        elif k <= most and precision == "float32":
            _add_winners(G, Q, *winner_take_all(phi, k), ids)
        else:
            gram_(G, Q, scatter(*winner_take_all(phi, k), m), ids, precision)


def _activations(
    h: Tensor, values: Tensor, indices: Tensor | None, activation: str, precision: str, G: Tensor
) -> Tensor:
    """phi of a block of rows in G's dtype, as nothing rounds it on the way."""
    if (G.dtype == torch.float64) if indices is None else precision.startswith("bf16"):
        return reference_project(h.to(G.dtype), values.to(G.dtype), indices, activation, precision)
    phi = G.new_empty(len(h), len(G))
    expand(h, values, indices, activation, precision, phi)
    return phi


def _add_winners(G: Tensor, Q: Tensor, winners: Tensor, indices: Tensor, labels: Tensor) -> None:
    (rows, k), m = winners.shape, len(G)
    if rows * k == 0:
        return
    columns, order = indices.sort(dim=1)
    owners, entries = columns.flatten().sort(stable=True)
    starts = torch.searchsorted(owners, torch.arange(m + 1, device=owners.device))
    c = configuration("add_winners", k, G.device)
    given = winners.gather(1, order), columns, labels.contiguous(), entries, starts, G, Q
    launch(add_winners, (m,), *given, k, m, Q.shape[1], **c)


def examples() -> Iterator[tuple[Any, ...]]:
    """Calls that between them launch every kernel in every configuration."""
    rows, d, m, classes = BLOCK, 768, 10000, 10
    for k in (100, 500):
        G, Q, h, values = (
            torch.empty(*size, device="meta") for size in ((m, m), (m, classes), (rows, d), (m, 64))
        )  # fmt: skip
        labels = torch.empty(rows, dtype=torch.int64, device="meta")
        yield G, Q, h, values, torch.empty(m, 64, dtype=torch.int32, device="meta"), labels, "relu", k


@triton.jit
def add_winners(winners, columns, labels, entries, starts, G, Q, k, m, classes, BLOCK: tl.constexpr):
    row = m - 1 - tl.program_id(0).to(tl.int64)  # long rows first
    for i in range(tl.load(starts + row), tl.load(starts + row + 1)):
        entry = tl.load(entries + i)
        sample = entry // k
        factor = tl.load(winners + entry)
        for begin in range(sample * k, entry + 1, BLOCK):
            at = begin + tl.arange(0, BLOCK)
            column = tl.load(columns + at, mask=at <= entry, other=0)
            value = tl.load(winners + at, mask=at <= entry, other=0.0)
            to = G + row * m + column
            tl.store(to, tl.load(to, mask=at <= entry, other=0.0) + factor * value, mask=at <= entry)
        to = Q + row * classes + tl.load(labels + sample)
        tl.store(to, tl.load(to) + factor)
        tl.debug_barrier()  # the next sample's columns are other threads'
