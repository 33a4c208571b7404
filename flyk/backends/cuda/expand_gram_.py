"""expand_gram_ by CUDA C++: with k winners in float32, by owner rows; else the reference's GEMM panels."""

from __future__ import annotations

import torch
from torch import Tensor

from flyk.backends.cuda._library import call
from flyk.backends.cuda.project_topk import project_topk
from flyk.ops.expand_gram_ import BLOCK, reference


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
    if k is None or G.dtype != torch.float32 or precision != "float32":
        reference(G, Q, h, values, indices, labels, activation, k, precision)
        return
    m, classes = Q.shape
    h, values = h.float(), values.float()
    for rows, ids in zip(h.split(BLOCK), labels.split(BLOCK), strict=True):
        winners, at = project_topk(rows, values, indices, k, activation=activation)
        won = torch.zeros(m, (len(rows) + 31) // 32, dtype=torch.int32, device=h.device)  # who won, a bit a sample
        call("winner_gram", winners, at, ids.contiguous(), len(rows), k, m, classes, G, Q, won)
