"""What all methods share: their protocol, and the training step of those that train by gradient."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flyk.continual.batch import Batch
from flyk.ops import masked_cross_entropy


@dataclass(frozen=True)
class Setting:
    """What a method is told at its start.

    Attributes:
        num_features: d of the unprompted features.
        num_classes: C.
        num_tasks: T; a method that must not know it has no use for it.
        backbone: the frozen network that prompts are put into (see flyk.continual.vit), None where there is none.
        learning_rate, prompt_rate, online_iter, mask, precision, checkpointing, seed: see Config.
    """

    num_features: int
    num_classes: int
    num_tasks: int = 1
    backbone: Any = None
    learning_rate: float = 5e-3
    prompt_rate: float | None = None
    online_iter: int = 3
    mask: str = "batch"
    precision: str = "float32"
    checkpointing: bool = False
    seed: int = 0


@dataclass(frozen=True)
class Prediction:
    """What a method says about a batch of test samples.

    Attributes:
        classes: (N,) int64.
        routes: (N,) int64, the expert that each sample was given to, where the method has experts.
        heads: (K, N) int64, what each of the method's heads alone would say, the trained one first.
        also: (N,) classes under other names: the same samples predicted in other ways.
    """

    classes: Tensor
    routes: Tensor | None = None
    heads: Tensor | None = None
    also: dict[str, Tensor] = field(default_factory=dict)


class Method(nn.Module):
    """A learner of a stream. Its state_dict is all that it has learned, so that a run can be resumed exactly.

    Randomness at the start comes from the setting's seed, later from torch's global generator, which a run saves.
    """

    expert: int | None = None  # that learns now, where the method has experts

    def __init__(self, setting: Setting):
        super().__init__()
        self.setting = setting

    def start_task(self, task: int) -> None:
        """A task begins. Called by streams with known borders; a method may leave it be."""

    def observe(self, batch: Batch) -> None:
        """Learns from one batch, all of one task."""
        raise NotImplementedError

    def predict(self, batch: Batch, seen: Tensor, home: Tensor | None = None) -> Prediction:
        """Predicts among the classes that `seen` (C,) bool marks.

        Args:
            home: (N,) int64, the expert that saw most samples of each sample's class: for the accuracy under a perfect
                router, by methods that route. None where it is not asked for.
        """
        raise NotImplementedError

    def expert_features(self, batch: Batch, expert: int) -> Tensor:
        """(N, d) features as this expert sees them, by methods that have experts."""
        raise NotImplementedError

    def close(self) -> None:
        """Takes off what the method put on the backbone."""

    def numbers(self) -> dict[str, int]:
        """Parameters trained, and all numbers that are stored beside the backbone."""
        state = [value for value in self.state_dict().values() if isinstance(value, Tensor)]
        return {
            "trained": sum(p.numel() for p in self.parameters() if p.requires_grad),
            "stored": sum(value.numel() for value in state),
        }


class TrainedMethod(Method):
    """A method that trains by gradient: `online_iter` steps of Adam a batch, each on a fresh augmentation.

    A subclass makes its parameters, calls `start_training`, and gives `logits`. Gradients that a step does not reach
    are None, and Adam leaves such parameters as they are.
    """

    optimizer: torch.optim.Optimizer
    seen: Tensor

    def start_training(self, head: Iterable[nn.Parameter], rest: Iterable[nn.Parameter] = ()) -> None:
        """The optimizer: the head learns at `learning_rate`, the rest at `prompt_rate`."""
        rate = self.setting.learning_rate
        groups = [{"params": list(head)}, {"params": list(rest), "lr": self.setting.prompt_rate or rate}]
        self.optimizer = torch.optim.Adam([group for group in groups if group["params"]], lr=rate)
        self.register_buffer("seen", torch.zeros(self.setting.num_classes, dtype=torch.bool))

    def logits(self, batch: Batch) -> Tensor:
        """(N, C), with a gradient."""
        raise NotImplementedError

    def penalty(self) -> Tensor | float:
        """What is added to the loss of the logits that were made last."""
        return 0.0

    def after_step(self) -> None:
        """Called after each step of the optimizer."""

    def observe(self, batch: Batch) -> None:
        self.seen[batch.labels] = True
        for _ in range(self.setting.online_iter):
            fresh = batch.fresh()
            loss = self.loss(self.logits(fresh).float(), fresh.labels) + self.penalty()
            if not loss.isfinite():
                raise ValueError(f"learning_rate and prompt_rate must be lower for these data: the loss is {loss:g}")
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.after_step()

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Cross-entropy over the classes that the setting's mask lets take part."""
        if self.setting.mask == "batch":
            return masked_cross_entropy(logits, labels)
        return F.cross_entropy(logits.masked_fill(~self.allowed(labels), -torch.inf), labels)

    def allowed(self, labels: Tensor) -> Tensor:
        """(C,) bool, the classes that take part in the loss of a batch of these labels."""
        allowed = torch.zeros_like(self.seen)
        if self.setting.mask == "random":
            allowed = torch.rand(len(allowed)) < 0.5
        elif self.setting.mask != "batch":
            allowed = self.seen.clone() if self.setting.mask == "seen" else ~allowed
        allowed[labels] = True
        return allowed

    def predict(self, batch: Batch, seen: Tensor, home: Tensor | None = None) -> Prediction:
        with torch.no_grad():
            return Prediction(self.logits(batch).float().masked_fill(~seen, -torch.inf).argmax(1))

    def get_extra_state(self) -> dict[str, Any]:
        return self.optimizer.state_dict()

    def set_extra_state(self, state: dict[str, Any]) -> None:
        self.optimizer.load_state_dict(state)


def zero_head(setting: Setting) -> nn.Linear:
    """A linear head (d to C) of zeros: every class is equally likely before the first step."""
    head = nn.Linear(setting.num_features, setting.num_classes)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    return head
