"""RanPAC: random projection, then ridge regression onto the classes."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from flyk.continual.batch import Batch
from flyk.continual.memory import Memory
from flyk.continual.methods.base import Method, Prediction, Setting
from flyk.continual.routers import ridge_router, solution

log = logging.getLogger("flyk")
HELD_OUT = 5  # one sample in so many
MIX = 0x9E3779B1  # 2^32 over the golden ratio: multiplying by it scatters neighbouring numbers


class RanPAC(Method):
    """Ridge regression onto classes over a random ReLU expansion (McDonnell et al., NeurIPS 2023, arXiv 2307.02251).

    The ridge is chosen among `ridges` by the accuracy on a fifth of the samples seen so far, which then count again
    in the solution; their features are kept, so its memory grows with the stream. The published code holds out the
    last fifth of a task, which on data in order of class picks the edge of the grid; here a hash of the sample's
    number decides. The paper's first phase, adapters trained on the first task, is left out: the features are the
    frozen backbone's, without adapters or prompts.

    Args:
        expansion, sparse, winners: of the expansion; see ridge_router. The paper's is dense, and all entries count.
        ridges: the grid, rising.

    Raises:
        ValueError: ridges do not rise or are not above 0.
    """

    def __init__(
        self,
        setting: Setting,
        *,
        expansion: int = 5000,
        sparse: int | None = None,
        winners: int | None = None,
        ridges: Sequence[float] = tuple(10.0**e for e in range(-1, 8)),
    ):
        super().__init__(setting)
        if not ridges or sorted(set(ridges)) != list(ridges) or ridges[0] <= 0:
            raise ValueError(f"ridges must rise and be above 0, got {ridges}")
        self.ridges = tuple(ridges)
        d, classes = setting.num_features, setting.num_classes
        shape = {"expansion": expansion, "sparse": sparse, "winners": winners, "seed": setting.seed}
        self.fit, self.rest = (ridge_router(d, classes, **shape) for _ in range(2))
        self.held = Memory(d)
        self._weight: Tensor | None = None  # of all samples so far

    def observe(self, batch: Batch) -> None:
        held = (batch.rows * MIX % 2**32) * HELD_OUT < 2**32
        if not held.all():
            self.fit.update(batch.features[~held], batch.labels[~held])
        if held.any():
            self.rest.update(batch.features[held], batch.labels[held])
            self.held.add(batch.features[held], batch.labels[held])
        self._weight = None

    def predict(self, batch: Batch, seen: Tensor, home: Tensor | None = None) -> Prediction:
        if self._weight is None:
            self._weight = self._solve()
        scores = self.fit._expand(batch.features) @ self._weight
        return Prediction(scores.masked_fill(~seen, -torch.inf).argmax(1))

    def _solve(self) -> Tensor:
        self.fit.flush()
        self.rest.flush()
        G, Q, least = self.fit.G + self.rest.G, self.fit.Q + self.rest.Q, self._choose()
        for ridge in (ridge for ridge in self.ridges if ridge >= least):  # more rows may want more
            if (U := solution(G, Q, ridge)) is not None:
                return U
        raise ValueError(f"ridges must reach higher for these samples, got {self.ridges}")

    def _choose(self) -> float:
        """The ridge of the best accuracy on the samples held out; the larger one in a tie."""
        phi, known = self.fit._expand(self.held.rows), self.fit.counts > 0

        def accuracy(ridge: float) -> float:
            U = solution(self.fit.G, self.fit.Q, ridge)
            if U is None:
                return -1.0
            scores = phi @ U
            return (scores.masked_fill(~known, -torch.inf).argmax(1) == self.held.labels).float().mean().item()

        if not len(phi):
            return self.ridges[len(self.ridges) // 2]
        best = max(reversed(self.ridges), key=accuracy)
        if best in (self.ridges[0], self.ridges[-1]) and len(self.ridges) > 1:
            log.warning("RanPAC chose the ridge %g at the edge of its grid; a wider grid may do better", best)
        return best

    def load_state_dict(self, *args: Any, **options: Any) -> Any:
        self._weight = None
        return super().load_state_dict(*args, **options)
