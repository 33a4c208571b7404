"""When does the next expert begin? With the task, after so many samples, or when the data no longer looks like it."""

from __future__ import annotations

from torch import Tensor, nn

import torch


class BySamples(nn.Module):
    """After every `budget` samples; the stream's length and its tasks need not be known (FlyPrompt's budget w).

    The budget is checked between batches, so an expert may see up to a batch more.
    """

    def __init__(self, budget: int):
        super().__init__()
        if budget < 1:
            raise ValueError(f"budget must be at least 1, got {budget}")
        self.budget = budget
        self.register_buffer("spent", torch.zeros((), dtype=torch.int64))

    def starts(self, rows: int, score: float) -> bool:
        """Whether the batch that comes, of so many rows, belongs to a new expert."""
        if self.spent >= self.budget:
            self.spent.zero_()
        self.spent += rows
        return int(self.spent) == rows


class ByDrift(nn.Module):
    """When the router's score for the current expert falls far below what it was for that expert's own batches.

    A score is the mean over a batch of REAR's output for the current expert, before the batch is learned; it nears 1
    where the rows look like the expert's. The first `settle` batches of an expert are only learned from. After them
    the mean and the spread of the scores are kept (Welford), and `patience` batches in a row whose score lies more
    than `threshold` spreads below the mean start the next expert. Batches under suspicion do not move the mean.
    """

    state: Tensor

    def __init__(self, threshold: float = 4.0, settle: int = 4, patience: int = 2):
        super().__init__()
        if threshold <= 0 or settle < 2 or patience < 1:
            raise ValueError(f"drift needs threshold > 0, settle >= 2, patience >= 1; got {threshold}, {settle}, {patience}")
        self.threshold, self.settle, self.patience = threshold, settle, patience
        # batches seen, scores kept, their mean, their sum of squared distances from it, suspicious batches in a row
        self.register_buffer("state", torch.zeros(5, dtype=torch.float64))

    def starts(self, rows: int, score: float) -> bool:
        """Whether the batch that comes, whose rows score so for the current expert, belongs to a new expert."""
        seen, kept, mean, squares, suspicious = self.state.tolist()
        if seen == 0:
            self.state[0] = 1
            return True  # the first batch of all
        seen += 1
        spread = max((squares / (kept - 1)) ** 0.5 if kept > 1 else 0.0, 0.02)
        if kept >= self.settle and score < mean - self.threshold * spread:
            suspicious += 1
            if suspicious >= self.patience:
                self.state.copy_(torch.tensor([1.0, 0, 0, 0, 0]))
                return True
        elif seen > 2:  # an expert's first batch is scored before anything of it is known
            suspicious, kept = 0, kept + 1
            step = score - mean
            mean += step / kept
            squares += step * (score - mean)
        self.state.copy_(torch.tensor([seen, kept, mean, squares, suspicious], dtype=torch.float64))
        return False
