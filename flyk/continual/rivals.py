"""What flyk is held against: nearest class mean, a linear head by SGD, and batch ridge, the ceiling."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


class NearestClassMean(torch.nn.Module):
    """Running class means; the class whose mean is nearest (Euclidean). Order-free, as REAR is."""

    sums: Tensor
    counts: Tensor

    def __init__(self, num_classes: int, in_features: int, device: str = "cpu"):
        super().__init__()
        self.register_buffer("sums", torch.zeros(num_classes, in_features, dtype=torch.float64, device=device))
        self.register_buffer("counts", torch.zeros(num_classes, dtype=torch.float64, device=device))

    def observe(self, h: Tensor, labels: Tensor, task: int) -> None:
        """Adds the batch to the sums."""
        self.sums.index_add_(0, labels, h.double())
        self.counts += torch.bincount(labels, minlength=len(self.counts))

    def predict(self, h: Tensor, seen: Tensor) -> Tensor:
        """The nearest mean among the seen classes."""
        means = self.sums / self.counts.clamp(min=1)[:, None]
        distances = means.square().sum(dim=1) - 2 * h.double() @ means.T
        return distances.masked_fill(~seen, torch.inf).argmin(dim=1)


class LinearSGD:
    """One linear layer from zero by SGD with momentum 0.9, one step of cross-entropy over the seen classes a batch.

    Nothing guards it against forgetting: this is what a plain head does on a stream.
    """

    def __init__(self, num_classes: int, in_features: int, learning_rate: float, device: str = "cpu"):
        self.head = torch.nn.Linear(in_features, num_classes, device=device)
        torch.nn.init.zeros_(self.head.weight)
        torch.nn.init.zeros_(self.head.bias)
        self.seen = torch.zeros(num_classes, dtype=torch.bool, device=device)
        self.optimizer = torch.optim.SGD(self.head.parameters(), lr=learning_rate, momentum=0.9)

    def observe(self, h: Tensor, labels: Tensor, task: int) -> None:
        """One step."""
        self.seen[labels] = True
        self.optimizer.zero_grad()
        F.cross_entropy(self.head(h).masked_fill(~self.seen, -torch.inf), labels).backward()
        self.optimizer.step()

    def predict(self, h: Tensor, seen: Tensor) -> Tensor:
        """The largest logit among the seen classes."""
        with torch.no_grad():
            return self.head(h).masked_fill(~seen, -torch.inf).argmax(dim=1)


def batch_ridge(
    h: Tensor, labels: Tensor, num_classes: int, projection: Tensor, ridge: float, rows: int = 2048
) -> Tensor:
    """The ceiling: U = (G + ridge I)^-1 Q of all the data at once, in float64 and plain PyTorch.

    Args:
        h: (N, d) features.
        labels: (N,) int64 classes.
        num_classes: C.
        projection: (M, d), the same expansion as REAR's: phi = relu(h projection^T).
        ridge: lambda, above 0.
        rows: rows expanded at a time; memory is about 2 M^2 + rows * M doubles.

    Returns:
        U (M, C) float64; scores are relu(h projection^T) U.
    """
    size = len(projection)
    gram = torch.zeros(size, size, dtype=torch.float64, device=h.device)
    moment = torch.zeros(size, num_classes, dtype=torch.float64, device=h.device)
    for part, target in zip(h.split(rows), labels.split(rows), strict=True):
        phi = expand(part, projection)
        gram.addmm_(phi.T, phi)
        moment.addmm_(phi.T, F.one_hot(target, num_classes).double())
    gram.diagonal().add_(ridge)
    return torch.cholesky_solve(moment, torch.linalg.cholesky(gram))


def expand(h: Tensor, projection: Tensor) -> Tensor:
    """relu(h projection^T) in float64, (N, M)."""
    return (h.double() @ projection.double().T).relu_()
