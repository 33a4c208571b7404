"""Rows with labels, as many as come."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Memory(nn.Module):
    """Keeps every row that it is given; its state has as many as there are, so any number can be loaded.

    Attributes:
        rows: (N, d) float32.
        labels: (N,) int64.
    """

    def __init__(self, in_features: int):
        super().__init__()
        self.rows = torch.zeros(0, in_features)
        self.labels = torch.zeros(0, dtype=torch.int64)

    def add(self, rows: Tensor, labels: Tensor) -> None:
        """Keeps copies."""
        self.rows = torch.cat([self.rows, rows.float()])
        self.labels = torch.cat([self.labels, labels])

    def get_extra_state(self) -> dict[str, Tensor]:
        return {"rows": self.rows, "labels": self.labels}

    def set_extra_state(self, state: dict[str, Tensor]) -> None:
        self.rows, self.labels = state["rows"], state["labels"]
