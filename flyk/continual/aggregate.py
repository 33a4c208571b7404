"""Ways to make one opinion of several heads'."""

from __future__ import annotations

import torch
from torch import Tensor

AGGREGATIONS = ("softmax-max", "softmax-mean", "mean", "max", "min-entropy")


def aggregate(kind: str, logits: Tensor) -> Tensor:
    """Scores (N, C) from the logits (K, N, C) of K heads; classes that take no part have logits -inf.

    "softmax-max" is FlyPrompt's (arXiv 2602.01976, Eq. 10), "softmax-mean" the mean of the probabilities, "mean" and
    "max" the same of the logits, and "min-entropy" takes for each row the head whose
    probabilities are surest.

    Raises:
        ValueError: the kind is unknown.
    """
    if kind == "softmax-max":
        return logits.softmax(-1).amax(0)
    if kind == "softmax-mean":
        return logits.softmax(-1).mean(0)
    if kind == "mean":
        return logits.mean(0)
    if kind == "max":
        return logits.amax(0)
    if kind == "min-entropy":
        p = logits.softmax(-1)
        surest = torch.special.entr(p).sum(-1).argmin(0)
        return p[surest, torch.arange(p.shape[1])]
    raise ValueError(f"aggregate must be one of {', '.join(AGGREGATIONS)}, got {kind!r}")
