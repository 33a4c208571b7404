"""The lower triangle of a square matrix as one vector, row after row: half of what there is to send or to store."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

PANEL = 1024  # rows packed at once


def size(m: int) -> int:
    """How many entries the triangle of an (m, m) matrix has."""
    return m * (m + 1) // 2


def panels(G: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Views (rows, columns up to the last row's own) of G (M, M), and which entries of each are in the triangle."""
    for begin in range(0, G.shape[0], PANEL):
        view = G[begin : begin + PANEL, : begin + PANEL]
        yield view, torch.ones_like(view, dtype=torch.bool).tril(begin)


def pack(G: Tensor) -> Tensor:
    """(M (M + 1) / 2,) of G (M, M); what stands above the diagonal is not read."""
    packed = G.new_empty(size(G.shape[0]))
    at = 0
    for view, lower in panels(G):
        entries = view[lower]
        packed[at : at + len(entries)] = entries
        at += len(entries)
    return packed


def unpack_(G: Tensor, packed: Tensor) -> Tensor:
    """Put `packed` into the lower triangle of G; what stands above the diagonal stays as it is."""
    at = 0
    for view, lower in panels(G):
        more = size(min(view.shape[1], G.shape[0])) - at
        view[lower] = packed[at : at + more].to(G)
        at += more
    return G
