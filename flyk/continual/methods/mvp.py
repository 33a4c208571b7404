"""MVP: each sample picks one prompt, and that prompt's learned mask weighs its logits."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flyk.continual.batch import Batch
from flyk.continual.methods.base import Setting, zero_head
from flyk.continual.methods.prompted import PromptedMethod, make_pool


class MVP(PromptedMethod):
    """Mask and Visual Prompt tuning (Moon et al., ICCV 2023, arXiv 2308.09303) on the shared prompts.

    - Prompts: the entry of the pool whose key has the largest cosine with the unprompted feature gives its tokens.
    - Mask: each entry has a weight for each class, ``2 sigmoid(m)``, and the logits are multiplied by it.
    - Contrast: the feature is pulled to its own key and away from the others, cross-entropy of the cosines over
      `temperature`, times `contrast`.
    - Focus: a sample whose gradient on the head points another way than the batch's counts more, by
      ``1 + focus (1 - cos)``, so that what most samples want does not drown a rare class.

    This is flyk's reading of the paper; its scaling of features by a class's margin is left out. The stream's borders
    are not used.

    Args:
        pool_size: entries.
        length: tokens of an entry for each block.
        prompt_layers: how many of the first blocks are prompted.
        contrast, temperature, focus: see above.

    Raises:
        ValueError: temperature is not above 0, or the setting has no backbone for prompts.
    """

    def __init__(
        self,
        setting: Setting,
        *,
        pool_size: int = 10,
        length: int = 20,
        prompt_layers: int = 5,
        contrast: float = 0.1,
        temperature: float = 0.1,
        focus: float = 1.0,
    ):
        super().__init__(setting)
        if temperature <= 0:
            raise ValueError(f"temperature must be above 0, got {temperature}")
        d = setting.num_features
        self.contrast, self.temperature, self.focus = contrast, temperature, focus
        self.keys = nn.Parameter(torch.empty(pool_size, d).uniform_(-1, 1))
        self.masks = nn.Parameter(torch.zeros(pool_size, setting.num_classes))
        self.head = zero_head(setting)
        self.attach(make_pool(setting, length, tuple(range(prompt_layers)), pool_size))
        self.start_training(self.head.parameters(), [self.keys, self.masks, *self.pool.parameters()])

    def logits(self, batch: Batch) -> Tensor:
        cosines = F.normalize(batch.features, dim=1) @ F.normalize(self.keys, dim=1).T
        entries = cosines.detach().argmax(1)
        self._contrast = F.cross_entropy(cosines / self.temperature, entries)
        self._features = self.prompted(batch, entries)
        return self.head(self._features) * 2 * torch.sigmoid(self.masks[entries])

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Cross-entropy over the classes of the setting's mask, weighed sample by sample."""
        masked = logits.masked_fill(~self.allowed(labels), -torch.inf)
        losses = F.cross_entropy(masked, labels, reduction="none")
        with torch.no_grad():
            error = masked.softmax(1) - F.one_hot(labels, logits.shape[1])
            gradient = (error[:, :, None] * self._features[:, None]).flatten(1)
            weight = 1 + self.focus * (1 - F.cosine_similarity(gradient, gradient.mean(0, keepdim=True)))
        return (weight * losses).sum() / weight.sum()

    def penalty(self) -> Tensor:
        return self.contrast * self._contrast
