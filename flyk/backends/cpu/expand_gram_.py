"""expand_gram_ on the CPU: winners are scattered while they are few, else GEMM panels."""

from __future__ import annotations

import torch
from torch import Tensor

from flyk.backends.cpu._library import _C, call, crossovers
from flyk.backends.cpu.gram_ import TILES, gram_
from flyk.backends.cpu.project import wide
from flyk.backends.cpu.project_topk import project_topk
from flyk.backends.cpu.winner_take_all import winner_take_all
from flyk.ops.expand_gram_ import BLOCK, reference
from flyk.ops.winner_take_all import scatter

# Above this share of winners the dense panels of the reference are faster than scattering.
SCATTER_DENSITY = crossovers("expand_gram_")["scatter_density"]
SERVED = f"csrc up to {SCATTER_DENSITY:.0%} winners in float32; beyond, {TILES} GEMM panels"


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
    m, classes = Q.shape
    if G.dtype != torch.float32 or h.dtype == torch.float64:
        reference(G, Q, h, values, indices, labels, activation, k, precision)
        return
    few = precision == "float32" and (m if k is None else k) <= SCATTER_DENSITY * m
    if few or h.dtype == torch.float16:
        h, values = h.float(), values.float()
    for rows, ids in zip(h.split(BLOCK), labels.split(BLOCK), strict=True):
        if few and k is not None:
            winners, at = project_topk(rows, values, indices, k, activation=activation)
            call(_C.winner_gram, winners, at, ids.contiguous(), len(rows), k, m, classes, G, Q)
            continue
        phi = wide(rows, values, indices, activation, precision)
        if k is not None:
            phi = scatter(*winner_take_all(phi, k), m)
        gram_(G, Q, phi, ids, precision)
