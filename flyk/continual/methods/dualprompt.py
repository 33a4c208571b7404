"""DualPrompt: general prompts for all tasks in the first blocks, a task's own in the next."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flyk.continual.batch import Batch
from flyk.continual.methods.base import Setting, zero_head
from flyk.continual.methods.prompted import PromptedMethod, make_pool


class DualPrompt(PromptedMethod):
    """DualPrompt (Wang et al., ECCV 2022, arXiv 2204.04799) on the shared prompts.

    A general prompt in the first `general` blocks and, in the next `special` ones, the prompt of the task: in training
    the current one's, whose key is pulled towards the unprompted features (`pull` times their cosine comes off the
    loss), in test that of the key with the largest cosine. The paper gives its prompts to attention as prefixes of
    keys and values, 5 general and 20 special; here they are `length` tokens appended to the block's sequence, in all
    blocks as many.
    """

    met: Tensor

    def __init__(self, setting: Setting, *, general: int = 2, special: int = 3, length: int = 20, pull: float = 1.0):
        super().__init__(setting)
        d, tasks = setting.num_features, setting.num_tasks
        self.pull, self.task = pull, 0
        self.register_buffer("met", torch.zeros(tasks, dtype=torch.bool))
        self.keys = nn.ParameterList(torch.empty(d).uniform_(-1, 1) for _ in range(tasks))
        self.general = nn.Parameter(torch.rand(general, length, d))
        self.special = nn.ParameterList(torch.rand(special, length, d) for _ in range(tasks))
        self.head = zero_head(setting)
        self.attach(make_pool(setting, length, tuple(range(general + special))))
        self.start_training(self.head.parameters(), [*self.keys, self.general, *self.special])

    def start_task(self, task: int) -> None:
        self.task = task
        self.met[task] = True

    def logits(self, batch: Batch) -> Tensor:
        """In training under the current task's prompt, else under that of the nearest key among the tasks met."""
        if torch.is_grad_enabled():
            self._closeness = F.cosine_similarity(batch.features, self.keys[self.task][None]).mean()
            special = self.special[self.task].expand(len(batch), -1, -1, -1)
        else:
            cosines = F.normalize(batch.features, dim=1) @ F.normalize(torch.stack(list(self.keys)), dim=1).T
            tasks = cosines.masked_fill(~self.met, -torch.inf).argmax(1)
            special = torch.stack(list(self.special))[tasks]
        general = self.general.expand(len(batch), -1, -1, -1)
        return self.head(self.prompted(batch, torch.cat([general, special], 1)))

    def penalty(self) -> Tensor:
        return -self.pull * self._closeness

    def get_extra_state(self) -> dict[str, Any]:
        return {"optimizer": super().get_extra_state(), "task": self.task}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        super().set_extra_state(state["optimizer"])
        self.task = state["task"]
