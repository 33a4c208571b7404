"""REAR as a strategy of Avalanche 0.6: copy this file beside your script.

    strategy = RearStrategy(model=backbone, in_features=768, num_classes=100, train_mb_size=64)
    for experience in benchmark.train_stream:
        strategy.train(experience)
        strategy.eval(benchmark.test_stream)

The backbone is frozen; each batch is seen once and nothing of it is kept but sums. No optimizer and no replay buffer.
"""

from __future__ import annotations

from typing import Any

import torch
from avalanche.training.templates import SupervisedTemplate
from torch import Tensor, nn

from flyk.nn import REAR


class RearStrategy(SupervisedTemplate):
    """A frozen backbone and `flyk.nn.REAR` over its features (N, in_features)."""

    def __init__(
        self,
        *,
        model: nn.Module,
        in_features: int,
        num_classes: int,
        expansion: int = 10000,
        ridge: float = 1e4,
        seed: int = 0,
        **template: Any,
    ) -> None:
        super().__init__(model=model.eval().requires_grad_(False), optimizer=None, train_epochs=1, **template)
        self.rear = REAR(in_features, num_classes, expansion, ridge=ridge, seed=seed).to(self.device)

    @torch.no_grad()
    def training_epoch(self, **kwargs: Any) -> None:
        for batch in self.dataloader:
            self.mbatch = batch
            self._unpack_minibatch()
            self._before_training_iteration(**kwargs)
            self.loss = self._make_empty_loss()
            features = self.model.eval()(self.mb_x)
            self._before_update(**kwargs)
            self.rear.update(features, self.mb_y)
            self._after_update(**kwargs)
            self._after_training_iteration(**kwargs)

    def forward(self) -> Tensor:
        """Scores (N, num_classes); classes that never came have the smallest number, for a loss needs finite ones."""
        scores = self.rear(self.model.eval()(self.mb_x))
        return scores.nan_to_num(neginf=torch.finfo(scores.dtype).min)

    def make_optimizer(self, **kwargs: Any) -> None:
        """There is none: the solution is in closed form."""
