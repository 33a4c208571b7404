"""flyk's layers as learners of a stream: they observe each batch once and predict among the classes seen so far."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from flyk.nn import REAR, TE2Head
from flyk.ops import masked_cross_entropy


class Learner(Protocol):
    """What a stream is played to."""

    def observe(self, h: Tensor, labels: Tensor, task: int) -> None:
        """Learns from one batch: h (N, d) features, labels (N,) int64, all of one task."""

    def predict(self, h: Tensor, seen: Tensor) -> Tensor:
        """(N,) int64 classes, each one of those that `seen` (C,) bool marks."""
        ...


class RearClassifier:
    """REAR with one expert for each class."""

    def __init__(self, rear: REAR):
        self.rear = rear

    def observe(self, h: Tensor, labels: Tensor, task: int) -> None:
        """Adds the batch to the statistics."""
        self.rear.update(h, labels)

    def predict(self, h: Tensor, seen: Tensor) -> Tensor:
        """The class of the largest score; REAR scores unseen classes -inf."""
        return self.rear.route(h)


class RoutedTE2:
    """TE2 heads, one bank for each task, chosen row by row by a REAR whose experts are the tasks.

    Each batch is `steps` steps of Adam on the online head under masked cross-entropy, each followed by one of the
    averages, and one update of the router: FlyPrompt (arXiv 2602.01976) without its prompts, for features are fixed.
    """

    def __init__(self, router: REAR, heads: TE2Head, learning_rate: float, steps: int = 3):
        self.router = router
        self.heads = heads
        self.optimizer = torch.optim.Adam(heads.parameters(), lr=learning_rate)
        self.steps = steps

    def observe(self, h: Tensor, labels: Tensor, task: int) -> None:
        """The steps of the online head and of expert `task`'s averages, and the update of the router."""
        if task != self.heads.current:
            self.heads.start_expert(task)
        for _ in range(self.steps):
            self.optimizer.zero_grad()
            masked_cross_entropy(self.heads(h), labels).backward()
            self.optimizer.step()
            self.heads.ema_step()
        self.router.update(h, task)

    def predict(self, h: Tensor, seen: Tensor) -> Tensor:
        """The class with the largest probability under the heads of the row's expert."""
        return self.predict_and_route(h, seen)[0]

    def predict_and_route(self, h: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
        """(N,) classes, and the (N,) experts to which the rows were routed."""
        routes = self.router.route(h)
        return self.heads.predict(h, routes, seen).argmax(dim=1), routes
