"""Frozen backbones that take prompts: what all share, and the one of images."""

from __future__ import annotations

import warnings
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flyk.continual.backbone import resized
from flyk.nn._families import Family, find


class Promptable:
    """A frozen transformer whose features are taken with prompts and without.

    Attributes:
        model: one that flyk.nn.PromptPool knows.
        num_features: d of its features.
    """

    model: Any
    num_features: int
    _checkpointing = False

    @cached_property
    def family(self) -> Family:
        """What flyk.nn knows of the model."""
        return find(self.model)

    def checkpoint(self, wanted: bool) -> None:
        """Whether the backward pass computes the blocks' activations again instead of keeping them."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # the new name is not in all releases that are supported
            if wanted:
                self.model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
            elif self._checkpointing:
                self.model.gradient_checkpointing_disable()
        self.model.train(wanted)  # transformers checkpoints in this mode alone; the models have no dropout
        self._checkpointing = wanted

    def prompted(self, inputs: Any) -> Tensor:
        """(N, d) features of prepared inputs under the prompts that an attached pool shows, with their gradient."""
        return self.family.features(self.model, inputs)


class PromptableViT(Promptable):
    """A vision transformer.

    Images are resized to `resolution` squared (bilinear, antialiased) and normalised with ImageNet's mean and standard
    deviation.

    Args:
        model: a vision transformer that flyk.nn.PromptPool knows.
        name: for reports.
        resolution: pixels at its input.
        identity: tells its weights apart from others', for the cache.
    """

    mean = torch.tensor([0.485, 0.456, 0.406])[:, None, None]
    std = torch.tensor([0.229, 0.224, 0.225])[:, None, None]

    def __init__(self, model: torch.nn.Module, name: str, resolution: int, identity: str):
        self.model = model.requires_grad_(False).eval()
        self.name, self.resolution, self.identity = name, resolution, identity
        self.num_features = self.family.num_features(model)

    def checksum(self) -> str:
        """What tells these weights apart from others."""
        return self.identity

    @torch.no_grad()
    def embed(self, inputs: Tensor) -> Tensor:
        """(N, d) float32 features of prepared images."""
        return self.prompted(inputs).float()

    def prepare(self, image: NDArray[np.uint8]) -> Tensor:
        """One image as the network takes it, (3, resolution, resolution) float32."""
        return (resized(image, self.resolution) / 255 - self.mean) / self.std
