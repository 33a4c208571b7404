"""Methods with prompts: the frozen backbone's features under tokens that they choose or compute for each row."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from flyk.continual.batch import Batch
from flyk.continual.methods.base import Setting, TrainedMethod
from flyk.nn import PromptPool


class PromptedMethod(TrainedMethod):
    """A method that holds a `PromptPool`, hooked into the setting's backbone until `close` is called."""

    pool: PromptPool

    def attach(self, pool: PromptPool) -> None:
        """Makes this pool the method's own.

        Raises:
            ValueError: the setting has no backbone that prompts can be put into.
        """
        backbone = self.setting.backbone
        if not hasattr(backbone, "prompted"):
            name = getattr(backbone, "name", None)
            raise ValueError(f"backbone must be vit-s or minilm for a method with prompts, got {name}")
        self.pool = pool
        self._handle = pool.attach(backbone.model)
        backbone.checkpoint(self.setting.checkpointing)

    def close(self) -> None:
        if hasattr(self, "_handle"):
            self._handle.remove()

    def observe(self, batch: Batch) -> None:
        with sdpa_kernel(SDPBackend.MATH):  # for short sequences the CPU's fused attention is slower backward
            super().observe(batch)

    def prompted(self, batch: Batch, prompts: int | Tensor) -> Tensor:
        """(N, d) float32 features under an expert's prompts, each row's expert's (N,), or given ones (N, L, P, D)."""
        with self._shown(prompts), self._autocast():
            return self.setting.backbone.prompted(batch.inputs).float()

    def _shown(self, prompts: int | Tensor) -> AbstractContextManager[None]:
        if isinstance(prompts, Tensor) and prompts.is_floating_point():
            return self.pool.show(prompts)
        return self.pool.use(prompts)

    @contextlib.contextmanager
    def _autocast(self) -> Iterator[None]:
        with torch.autocast("cpu", torch.bfloat16, enabled=self.setting.precision == "bf16"):
            yield


def make_pool(setting: Setting, length: int, layers: tuple[int, ...], num_experts: int = 1) -> PromptPool:
    """Prompts as wide as the backbone's tokens."""
    return PromptPool(num_experts, length, setting.num_features, layers)
