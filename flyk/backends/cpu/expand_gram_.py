"""expand_gram_ on the CPU: winners are scattered while they are few, then summed by panels, then GEMM panels."""

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

# The share of winners up to which scattering them is fastest, and that up to which csrc is.
SCATTER_DENSITY, WINNER_DENSITY = (crossovers("expand_gram_")[f"{name}_density"] for name in ("scatter", "winner"))
SERVED = f"csrc up to {WINNER_DENSITY:.0%} winners in float32; beyond, {TILES} GEMM panels"
GATHERED = 4 * BLOCK  # rows whose winners are added at once


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
    few = k is not None and precision == "float32" and k <= WINNER_DENSITY * m
    if few or h.dtype == torch.float16:
        h, values = h.float(), values.float()
    for rows, ids in zip(*(t.split(GATHERED if few else BLOCK) for t in (h, labels)), strict=True):
        if k is not None and few:
            winners, at = project_topk(rows, values, indices, k, activation=activation)
            scatters = k <= SCATTER_DENSITY * m
            call(_C.winner_gram, winners, at, ids.contiguous(), len(rows), k, m, classes, G, Q, scatters)
            continue
        phi = wide(rows, values, indices, activation, precision)
        if k is not None:
            phi = scatter(*winner_take_all(phi, k), m)
        gram_(G, Q, phi, ids, precision)
