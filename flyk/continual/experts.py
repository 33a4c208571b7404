"""When does the next expert begin? With the task, after so many samples, or when the data no longer looks like it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from flyk.nn import REAR
from flyk.ops import ridge_solve


class BySamples(nn.Module):
    """After every `budget` samples; the stream's length and its tasks need not be known (FlyPrompt's budget w).

    The budget is checked between batches, so an expert may see up to a batch more.
    """

    spent: Tensor

    def __init__(self, budget: int):
        super().__init__()
        if budget < 1:
            raise ValueError(f"budget must be at least 1, got {budget}")
        self.budget = budget
        self.register_buffer("spent", torch.zeros((), dtype=torch.int64))

    def starts(self, rows: int, miss: float) -> bool:
        """Whether the batch that comes, of so many rows, belongs to a new expert."""
        if self.spent >= self.budget:
            self.spent.zero_()
        self.spent += rows
        return int(self.spent) == rows


@torch.no_grad()
def mean_miss(router: REAR, h: Tensor, expert: int) -> float:
    """How unlike the expert's rows a batch h (N, d) is, before it is learned: the mean over rows of ``|1 - s|``.

    s is REAR's score for the expert, which is fitted to 1 on its rows and to 0 on the others'. With one expert there
    are no others, and all rows get about 1: then it is the mean leverage ``φ (G + λI)⁻¹ φᵀ``, near 0 along directions
    that many rows had.
    """
    if int((router.counts > 0).sum()) > 1:
        return (1 - router(h)[:, expert]).abs().mean().item()
    router.flush()
    phi = router._expand(h)
    return (phi * ridge_solve(router.G, phi.t().contiguous(), router.ridge).t()).sum(1).mean().item()


class ByDrift(nn.Module):
    """When a batch is far less like the current expert's rows than that expert's last batches were.

    A batch's miss is `mean_miss`. Mean and variance of the
    misses are averages over about the last five batches, for misses fall as an expert is learned. Once `settle`
    batches of an expert have been seen, `patience` batches in a row whose miss lies more than `threshold` standard
    deviations above the mean start the next expert; they do not move the mean. A batch under suspicion is learned all
    the same, and what was learned surprises less: with a patience above 1, slow changes alone are found.
    """

    RATE = 0.2
    LEAST = 0.02  # a spread below it is taken for this one
    state: Tensor

    def __init__(self, threshold: float = 4.0, settle: int = 4, patience: int = 1):
        super().__init__()
        if threshold <= 0 or settle < 2 or patience < 1:
            got = f"{threshold}, {settle}, {patience}"
            raise ValueError(f"drift needs threshold > 0, settle >= 2 and patience >= 1, got {got}")
        self.threshold, self.settle, self.patience = threshold, settle, patience
        # batches of this expert, mean and variance of their misses, suspicious batches in a row
        self.register_buffer("state", torch.zeros(4, dtype=torch.float64))

    def starts(self, rows: int, miss: float) -> bool:
        """Whether the batch that comes, whose scores miss 1 by so much, belongs to a new expert."""
        seen, mean, variance, suspicious = self.state.tolist()
        if seen >= self.settle and miss > mean + self.threshold * max(variance**0.5, self.LEAST):
            suspicious += 1
        else:
            suspicious = 0
            step = miss - mean if seen > 1 else 0.0  # before its second batch nothing is known of an expert
            mean = mean + self.RATE * step if seen > 1 else miss
            variance = (1 - self.RATE) * (variance + self.RATE * step**2)
        begins = seen == 0 or suspicious >= self.patience
        after = [1, miss, 0, 0] if begins else [seen + 1, mean, variance, suspicious]
        self.state.copy_(torch.tensor(after, dtype=torch.float64))
        return begins
