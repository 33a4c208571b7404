"""The lower triangle of a square matrix as one vector, row after row: half of what there is to send or to store."""

from __future__ import annotations

import torch
from torch import Tensor


def size(m: int) -> int:
    """How many entries the triangle of an (m, m) matrix has."""
    return m * (m + 1) // 2


def rows(G: Tensor, begin: int = 0, end: int | None = None) -> list[Tensor]:
    """Views of rows begin .. end - 1 of G (M, M), each up to the diagonal."""
    return [row[: begin + i + 1] for i, row in enumerate(G[begin:end].unbind())]


def pack(G: Tensor) -> Tensor:
    """(M (M + 1) / 2,) of G (M, M); what stands above the diagonal is not read."""
    return torch.cat([*rows(G), G.new_empty(0)])


def unpack_(places: list[Tensor], packed: Tensor) -> None:
    """Put `packed` into the rows that `rows` gave."""
    for place, row in zip(places, packed.split([len(place) for place in places]), strict=True):
        place.copy_(row)
