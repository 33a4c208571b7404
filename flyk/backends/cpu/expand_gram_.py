"""expand_gram_ on the CPU: winners are scattered while they are few, then summed by panels, then GEMM panels."""

from __future__ import annotations

import torch
from torch import Tensor

from flyk.backends.cpu._library import _C, call, crossovers
from flyk.backends.cpu.project_topk import project_topk
from flyk.ops.expand_gram_ import BLOCK, reference

# The share of winners up to which scattering them is fastest, and that up to which csrc is.
SCATTER_DENSITY, WINNER_DENSITY = (crossovers("expand_gram_")[f"{name}_density"] for name in ("scatter", "winner"))
SERVED = f"csrc up to {WINNER_DENSITY:.0%} winners in float32; else the reference's GEMM panels"
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
    exact = G.dtype == torch.float32 and precision == "float32"
    if k is None or not exact or k > WINNER_DENSITY * m:
        reference(G, Q, h, values, indices, labels, activation, k, precision)
        return
    h, values = h.float(), values.float()
    for rows, ids in zip(h.split(GATHERED), labels.split(GATHERED), strict=True):
        winners, at = project_topk(rows, values, indices, k, activation=activation)
        call(_C.winner_gram, winners, at, ids.contiguous(), len(rows), k, m, classes, G, Q, k <= SCATTER_DENSITY * m)
