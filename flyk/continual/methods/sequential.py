"""A linear head trained as the stream comes."""

from __future__ import annotations

from torch import Tensor

from flyk.continual.batch import Batch
from flyk.continual.methods.base import Setting, TrainedMethod, zero_head


class Sequential(TrainedMethod):
    """One linear layer on the unprompted features: what happens without prompts, router and averages.

    With mask = "none" nothing guards it against forgetting; with mask = "batch" it is the masked baseline of FlyPrompt
    (arXiv 2602.01976, Eq. 6).
    """

    def __init__(self, setting: Setting):
        super().__init__(setting)
        self.head = zero_head(setting)
        self.start_training(self.parameters())

    def logits(self, batch: Batch) -> Tensor:
        return self.head(batch.features)
