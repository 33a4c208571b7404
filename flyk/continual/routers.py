"""Routers: which expert's data does a row look like? REAR's rivals, each learning from one pass."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flyk.continual.memory import Memory
from flyk.continual.rivals import NearestClassMean
from flyk.nn import REAR, _check
from flyk.nn._solve import solve


class Router(nn.Module):
    """Learns rows of experts and routes rows to experts it has seen. Its state_dict is all that it has learned."""

    def update(self, h: Tensor, expert: int) -> None:
        """Learns that the rows h (N, d) belong to an expert."""
        raise NotImplementedError

    def route(self, h: Tensor) -> Tensor:
        """(N,) int64, the expert of each row."""
        raise NotImplementedError


class Prototype(Router):
    """The expert whose mean is nearest."""

    def __init__(self, in_features: int, num_experts: int):
        super().__init__()
        self.means = NearestClassMean(num_experts, in_features)

    def update(self, h: Tensor, expert: int) -> None:
        self.means.observe(h, torch.full((len(h),), expert), 0)

    def route(self, h: Tensor) -> Tensor:
        return self.means.predict(h, self.means.counts > 0)


class NaiveBayes(Router):
    """Each feature normal and independent given the expert, experts equally likely; float64.

    A share `smoothing` of the largest variance within an expert is added to all (scikit-learn's GaussianNB adds a share
    of the largest over all rows).
    """

    counts: Tensor
    sums: Tensor
    squares: Tensor

    def __init__(self, in_features: int, num_experts: int, smoothing: float = 1e-3):
        super().__init__()
        self.smoothing = smoothing
        self.register_buffer("counts", torch.zeros(num_experts, dtype=torch.float64))
        self.register_buffer("sums", torch.zeros(num_experts, in_features, dtype=torch.float64))
        self.register_buffer("squares", torch.zeros(num_experts, in_features, dtype=torch.float64))

    def update(self, h: Tensor, expert: int) -> None:
        h = h.double()
        self.counts[expert] += len(h)
        self.sums[expert] += h.sum(0)
        self.squares[expert] += h.square().sum(0)

    def route(self, h: Tensor) -> Tensor:
        n = self.counts.clamp(min=1)[:, None]
        mean = self.sums / n
        variance = self.squares / n - mean.square()
        variance = variance + self.smoothing * variance.max()
        # sum over features of (h - mean)^2 / variance, as products
        h = h.double()
        distance = h.square() @ (1 / variance).T - 2 * h @ (mean / variance).T + (mean.square() / variance).sum(1)
        return (distance + variance.log().sum(1)).masked_fill(self.counts == 0, torch.inf).argmin(1)


class KMeans(Router):
    """Up to `clusters` running means an expert; the expert of the nearest one.

    The first rows of an expert start its means; each later row moves the nearest of them by 1 / its count (MacQueen
    1967).
    """

    counts: Tensor
    means: Tensor

    def __init__(self, in_features: int, num_experts: int, clusters: int = 5):
        super().__init__()
        self.register_buffer("counts", torch.zeros(num_experts, clusters, dtype=torch.float64))
        self.register_buffer("means", torch.zeros(num_experts, clusters, in_features, dtype=torch.float64))

    def update(self, h: Tensor, expert: int) -> None:
        counts, means = self.counts[expert], self.means[expert]
        for row in h.double():
            empty = (counts == 0).nonzero()
            place = int(empty[0]) if len(empty) else int((means - row).square().sum(1).argmin())
            counts[place] += 1
            means[place] += (row - means[place]) / counts[place]

    def route(self, h: Tensor) -> Tensor:
        means = self.means.flatten(0, 1)
        distance = means.square().sum(1) - 2 * h.double() @ means.T
        distance = distance.masked_fill(self.counts.flatten() == 0, torch.inf)
        return distance.argmin(1) // self.counts.shape[1]


class MLP(Router):
    """One hidden layer trained by one step of Adam a batch on the experts' ids; it forgets as any network does."""

    seen: Tensor

    def __init__(self, in_features: int, num_experts: int, hidden: int = 256, learning_rate: float = 1e-3):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(in_features, hidden), nn.ReLU(), nn.Linear(hidden, num_experts))
        self.register_buffer("seen", torch.zeros(num_experts, dtype=torch.bool))
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=learning_rate)

    def update(self, h: Tensor, expert: int) -> None:
        self.seen[expert] = True
        self.optimizer.zero_grad()
        F.cross_entropy(self._scores(h), torch.full((len(h),), expert)).backward()
        self.optimizer.step()

    @torch.no_grad()
    def route(self, h: Tensor) -> Tensor:
        return self._scores(h).argmax(1)

    def _scores(self, h: Tensor) -> Tensor:
        return self.net(h.float()).masked_fill(~self.seen, -torch.inf)

    def get_extra_state(self) -> dict[str, Any]:
        return self.optimizer.state_dict()

    def set_extra_state(self, state: dict[str, Any]) -> None:
        self.optimizer.load_state_dict(state)


class KNN(Router):
    """The most frequent expert among the `neighbours` rows of largest cosine; every row is kept, so memory grows."""

    def __init__(self, in_features: int, num_experts: int, neighbours: int = 5):
        super().__init__()
        self.num_experts, self.neighbours = num_experts, neighbours
        self.memory = Memory(in_features)

    def update(self, h: Tensor, expert: int) -> None:
        self.memory.add(F.normalize(h.float(), dim=1), torch.full((len(h),), expert))

    def route(self, h: Tensor) -> Tensor:
        rows, experts = self.memory.rows, self.memory.labels
        near = (F.normalize(h.float(), dim=1) @ rows.T).topk(min(self.neighbours, len(rows)), dim=1)
        # the cosine breaks ties: a vote weighs 1 and a little of it
        votes = torch.zeros(len(h), self.num_experts)
        return votes.scatter_add_(1, experts[near.indices], 1 + 1e-3 * near.values).argmax(1)


def ridge_router(
    in_features: int,
    num_experts: int,
    *,
    expansion: int = 10000,
    ridge: float = 1e4,
    sparse: int | None = None,
    winners: int | None = None,
    keep_factor: bool = False,
    seed: int = 0,
) -> REAR:
    """REAR over an expansion to that size.

    Args:
        sparse: entries of each row of the random matrix, of -1 or 1; None for a dense Gaussian one.
        winners: entries kept of each expanded row; None for all.
        keep_factor: solve faster after a few more rows, see REAR; a run that was resumed then ends with the same
            numbers but for rounding, since checkpoints do not have the factor.

    Raises:
        ValueError: an argument is out of range.
    """
    for name, value, high in (("sparse", sparse, in_features), ("winners", winners, expansion)):
        if value is not None:  # REAR would speak of nnz and k
            _check.integer(name, value, 1, high)
    matrix = "gaussian" if sparse is None else "sparse_sign"
    options = {"kind": matrix, "nnz": sparse, "k": winners, "keep_factor": keep_factor}
    return REAR(in_features, num_experts, expansion, ridge=ridge, seed=seed, **options)


def solution(G: Tensor, Q: Tensor, ridge: float) -> Tensor | None:
    """U (M, T) under a ridge of a grid; None where that is too small beside the rounding of G."""
    try:
        return solve(G, Q, ridge, warn=False)[0]
    except ValueError:
        return None


ROUTERS = {"prototype": Prototype, "naive-bayes": NaiveBayes, "k-means": KMeans, "mlp": MLP, "k-nn": KNN}


def make_router(kind: str, in_features: int, num_experts: int, **of_rear: Any) -> REAR | Router:
    """A router by name; "ridge" is REAR, for which the further arguments are, see `ridge_router`.

    Raises:
        ValueError: the kind is unknown.
    """
    if kind == "ridge":
        return ridge_router(in_features, num_experts, **of_rear)
    if kind not in ROUTERS:
        raise ValueError(f"router must be one of {', '.join(('ridge', *ROUTERS))}, got {kind!r}")
    return ROUTERS[kind](in_features, num_experts)
