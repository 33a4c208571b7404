"""expand_gram_ by CUDA C++: winners in float32 are scattered by owner rows while they are few, else GEMM panels."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from flyk import tuning
from flyk.backends.cuda._library import call
from flyk.backends.cuda.project_topk import project_topk
from flyk.ops.expand_gram_ import BLOCK, reference


@functools.cache
def scatter_percent(device: torch.device) -> int:
    """The share of winners above which the reference's panels were measured to be faster; 100 where nothing was."""
    measured = tuning.load(tuning.gpu(device.index)) if device.type == "cuda" else {}
    return measured.get("winner_gram", [{}])[0].get("scatter_percent", 100)


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
    exact = G.dtype == torch.float32 and precision == "float32"
    if k is None or not exact or 100 * k > len(G) * scatter_percent(G.device):
        reference(G, Q, h, values, indices, labels, activation, k, precision)
    else:
        scatter(G, Q, h.float(), values.float(), indices, labels, activation, k)


def scatter(
    G: Tensor,
    Q: Tensor,
    h: Tensor,
    values: Tensor,
    indices: Tensor | None,
    labels: Tensor,
    activation: str,
    k: int,
) -> None:
    """The winners of a block of rows, then what each of them adds, by owner rows of G."""
    m, classes = Q.shape
    for rows, ids in zip(h.split(BLOCK), labels.split(BLOCK), strict=True):
        winners, at = project_topk(rows, values, indices, k, activation=activation)
        won = torch.zeros(m, (len(rows) + 31) // 32, dtype=torch.int32, device=h.device)  # who won, a bit a sample
        call("winner_gram", winners, at, ids.contiguous(), len(rows), k, m, classes, G, Q, won)
