"""MISA without its pretraining: one prompt for the whole stream and a mask on the logits."""

from __future__ import annotations

from torch import Tensor

from flyk.continual.batch import Batch
from flyk.continual.methods.base import Setting, zero_head
from flyk.continual.methods.prompted import PromptedMethod, make_pool


class MISA(PromptedMethod):
    """MISA (Kang et al., ICLR 2025) on the shared prompts, without what gave it its name.

    What it does on the stream: one prompt shared by all tasks, a linear head, and a loss whose mask, without
    parameters, lets the classes at hand alone take part (set mask = "batch"). What it does before the stream is left
    out: it pretrains its prompts on ImageNet, to forget less, and no such data are at hand here. So this is a lower
    bound for it.

    Args:
        length: tokens for each block.
        prompt_layers: how many of the first blocks are prompted.

    Raises:
        ValueError: the setting has no backbone for prompts.
    """

    def __init__(self, setting: Setting, *, length: int = 20, prompt_layers: int = 5):
        super().__init__(setting)
        self.head = zero_head(setting)
        self.attach(make_pool(setting, length, tuple(range(prompt_layers))))
        self.start_training(self.head.parameters(), self.pool.parameters())

    def logits(self, batch: Batch) -> Tensor:
        return self.head(self.prompted(batch, 0))
