"""When does the next expert begin? With the task, after so many samples, or when the data no longer looks like it."""

from __future__ import annotations

import torch
from torch import Tensor, nn


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


class ByDrift(nn.Module):
    """When the router's scores for the current expert miss 1 by far more than they did on that expert's last batches.

    A miss is the mean over a batch of ``|1 - s|``, s REAR's score of a row for the current expert before the batch is
    learned; 1 is what REAR is fitted to, and it nears that on rows like those it has seen. Mean and variance of the
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
