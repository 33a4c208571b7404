"""What a method is given: samples as unprompted features, kept from before, and as the backbone's inputs, made anew."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

AUGMENTATIONS = ("none", "flip", "crop")
SHIFT = 1 / 14  # of a side: the largest shift of a random crop


@dataclass(frozen=True)
class Part:
    """The training or the test samples.

    Attributes:
        labels: (N,) int64.
        features: (V, N, d) float32, the frozen backbone's features without prompts: view 0 under the evaluation
            transform and, where V is 2, view 1 mirrored. They never change, so they are made once for all methods.
        inputs: inputs(rows) are these samples under the evaluation transform, as the backbone takes them: images
            (B, 3, H, W) or tokens (B, S); None where there are only features.
        embed: embed(inputs) are their features, for views that are not kept.
    """

    labels: Tensor
    features: Tensor
    inputs: Callable[[Tensor], Tensor] | None = None
    embed: Callable[[Tensor], Tensor] | None = None


class Batch:
    """Some samples of a part, under the evaluation transform; `fresh` gives them augmented.

    Args:
        part: where they come from.
        rows: (B,) int64, which samples.
        augment: what `fresh` does: "none"; "flip", a mirror image or not; "crop", that and a random shift.
        generator: of its draws.

    Attributes:
        labels: (B,) int64.
        features: (B, d), the backbone's without prompts.
        inputs: as the backbone takes them, made when first asked for.
    """

    def __init__(self, part: Part, rows: Tensor, augment: str = "none", generator: torch.Generator | None = None):
        self.part, self.rows, self.augment, self.generator = part, rows, augment, generator
        self.labels = part.labels[rows]

    def __len__(self) -> int:
        return len(self.rows)

    @cached_property
    def features(self) -> Tensor:
        return self.part.features[0, self.rows]

    @cached_property
    def inputs(self) -> Tensor:
        if self.part.inputs is None:
            raise ValueError("data must be images or texts where a method has prompts, got features alone")
        return self.part.inputs(self.rows)

    def fresh(self) -> Batch:
        """The same samples under a new draw of the augmentation."""
        if self.augment == "none":
            return self
        mirrored = torch.rand(len(self), generator=self.generator) < 0.5
        if self.augment == "crop":
            return _Cropped(self, mirrored, torch.rand(len(self), 2, generator=self.generator))
        return _Mirrored(self, mirrored)


class _Augmented(Batch):
    """A batch made from another one."""

    def __init__(self, plain: Batch, mirrored: Tensor):
        super().__init__(plain.part, plain.rows)
        self.plain, self.mirrored = plain, mirrored


class _Mirrored(_Augmented):
    @cached_property
    def features(self) -> Tensor:
        return self.part.features[self.mirrored.long(), self.rows]

    @cached_property
    def inputs(self) -> Tensor:
        return torch.where(self.mirrored[:, None, None, None], self.plain.inputs.flip(-1), self.plain.inputs)


class _Cropped(_Augmented):
    def __init__(self, plain: Batch, mirrored: Tensor, places: Tensor):
        super().__init__(plain, mirrored)
        self.places = places

    @cached_property
    def features(self) -> Tensor:
        embed: Any = self.part.embed
        with torch.no_grad():
            return embed(self.inputs)

    @cached_property
    def inputs(self) -> Tensor:
        images = _Mirrored(self.plain, self.mirrored).inputs
        height, width = images.shape[-2:]
        pad = round(height * SHIFT)
        padded = torch.nn.functional.pad(images, (pad,) * 4, mode="reflect")
        corners = (self.places * (2 * pad + 1)).long().tolist()
        crops = [one[:, y : y + height, x : x + width] for one, (y, x) in zip(padded, corners, strict=True)]
        return torch.stack(crops)
