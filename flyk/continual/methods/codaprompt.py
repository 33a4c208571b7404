"""CODA-Prompt: a prompt mixed for each sample from components, some of them new with each task."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flyk.continual.batch import Batch
from flyk.continual.methods.base import Setting, zero_head
from flyk.continual.methods.prompted import PromptedMethod, make_pool


class CODAPrompt(PromptedMethod):
    """CODA-Prompt (Smith et al., CVPR 2023, arXiv 2211.13218) on the shared prompts.

    In each of the first `prompt_layers` blocks a sample with unprompted feature q gets ``Σ_m cos(q ⊙ A_m, K_m) P_m``
    over the components of the tasks so far; those of earlier tasks are frozen. The loss has `orthogonality` times
    ``|B Bᵀ - I|²`` for the matrices B of A, K and P of the current and earlier tasks, over their number of entries,
    and components start orthogonal. The paper gives prompts to attention as prefixes of keys and values; here they are
    `length` tokens appended to the block's sequence.

    Args:
        components: for each task.

    Raises:
        ValueError: the setting has no backbone for prompts.
    """

    def __init__(
        self,
        setting: Setting,
        *,
        components: int = 10,
        length: int = 8,
        prompt_layers: int = 5,
        orthogonality: float = 0.1,
    ):
        super().__init__(setting)
        d, self.orthogonality, self.task = setting.num_features, orthogonality, 0
        tasks, self.shape = setting.num_tasks, (prompt_layers, components, length, d)

        def rows(width: int) -> list[Tensor]:
            """For each task (layers, components, width): rows that are orthonormal over all tasks of a layer."""
            whole = [nn.init.orthogonal_(torch.empty(tasks * components, width)) for _ in range(prompt_layers)]
            return list(torch.stack(whole).unflatten(1, (tasks, components)).unbind(1))

        self.attention = nn.ParameterList(nn.Parameter(part.contiguous()) for part in rows(d))
        self.keys = nn.ParameterList(nn.Parameter(part.contiguous()) for part in rows(d))
        self.values = nn.ParameterList(nn.Parameter(part.contiguous()) for part in rows(length * d))
        self.head = zero_head(setting)
        self.attach(make_pool(setting, length, tuple(range(prompt_layers))))
        self.start_training(self.head.parameters(), [*self.attention, *self.keys, *self.values])

    def start_task(self, task: int) -> None:
        self.task = task

    def logits(self, batch: Batch) -> Tensor:
        attention, keys, values = (self._so_far(parts) for parts in (self.attention, self.keys, self.values))
        query = batch.features[:, None, None] * attention  # (N, layers, components, d)
        weights = (F.normalize(query, dim=3) * F.normalize(keys, dim=2)).sum(3)
        tokens = torch.einsum("nlm,lmv->nlv", weights, values).unflatten(2, self.shape[2:])
        return self.head(self.prompted(batch, tokens))

    def penalty(self) -> Tensor:
        total = torch.zeros(())
        for parts in (self.attention, self.keys, self.values):
            B = self._so_far(parts)
            total = total + (B @ B.transpose(1, 2) - torch.eye(B.shape[1])).square().mean()
        return self.orthogonality * total

    def _so_far(self, parts: nn.ParameterList) -> Tensor:
        """(layers, components of all tasks so far, width); only the current task's carry a gradient."""
        return torch.cat([*(part.detach() for part in list(parts)[: self.task]), parts[self.task]], dim=1)

    def get_extra_state(self) -> dict[str, Any]:
        return {"optimizer": super().get_extra_state(), "task": self.task}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        super().set_extra_state(state["optimizer"])
        self.task = state["task"]
