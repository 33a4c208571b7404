"""L2P: a pool of prompts, of which each sample picks some by their keys."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flyk.continual.batch import Batch
from flyk.continual.methods.base import Setting, zero_head
from flyk.continual.methods.prompted import PromptedMethod, make_pool


class L2P(PromptedMethod):
    """Learning to Prompt (Wang et al., CVPR 2022, arXiv 2112.08654) on the shared prompts.

    The query is the unprompted feature; the `top` entries of the pool whose keys have the largest cosine with it give
    their tokens, and the loss takes off `pull` times the sum of those cosines. The paper puts tokens before the first
    block, where they stay; here each entry has tokens of its own for each of `prompt_layers` blocks, which are cut off
    after the block, as many as FlyPrompt's expert has. The head reads CLS, not the mean of the tokens.

    Args:
        pool_size: entries.
        top: entries for each sample.
        length: tokens of an entry for each block.
        prompt_layers: how many of the first blocks are prompted.
        pull: weight of the cosines.

    Raises:
        ValueError: top is not from 1 to pool_size, or the setting has no backbone for prompts.
    """

    def __init__(
        self,
        setting: Setting,
        *,
        pool_size: int = 10,
        top: int = 4,
        length: int = 5,
        prompt_layers: int = 5,
        pull: float = 0.5,
    ):
        super().__init__(setting)
        if not 1 <= top <= pool_size:
            raise ValueError(f"top must be from 1 to pool_size, {pool_size}, got {top}")
        self.top, self.pull = top, pull
        d = setting.num_features
        self.keys = nn.Parameter(torch.empty(pool_size, d).uniform_(-1, 1))
        self.entries = nn.Parameter(torch.rand(pool_size, prompt_layers, length, d))
        self.head = zero_head(setting)
        self.attach(make_pool(setting, top * length, tuple(range(prompt_layers))))
        self.start_training(self.head.parameters(), [self.keys, self.entries])

    def logits(self, batch: Batch) -> Tensor:
        cosines = F.normalize(batch.features, dim=1) @ F.normalize(self.keys, dim=1).T
        best = cosines.topk(self.top, dim=1)
        self._closeness = best.values.sum(1).mean()
        tokens = self.entries[best.indices].transpose(1, 2).flatten(2, 3)  # (N, layers, top * length, D)
        return self.head(self.prompted(batch, tokens))

    def penalty(self) -> Tensor:
        return -self.pull * self._closeness
