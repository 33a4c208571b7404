"""FlyPrompt: prompts, averaged heads and a router, one expert after another, on a frozen backbone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from flyk.nn._families import find
from flyk.nn.prompt_pool import PromptPool, is_attached
from flyk.nn.rear import REAR
from flyk.nn.te2 import TE2Head


class FlyPrompt(nn.Module):
    """FlyPrompt, arXiv 2602.01976: learns from a stream with a frozen backbone f, an expert at a time.

    While expert e is current, its prompts and the shared head train on ``W f(x; P_e)``, its averaged heads follow,
    and the router sums up ``f(x)``, the features without prompts. A test input is routed by f(x) and then classified
    with its expert's prompts and heads: two passes of the backbone.

        model.start_expert(0)
        optimizer = torch.optim.Adam((p for p in model.parameters() if p.requires_grad), lr=5e-3)
        for x, labels in stream:
            for _ in range(3):
                optimizer.zero_grad()
                masked_cross_entropy(model(x), labels).backward()
                optimizer.step()
                model.ema_step()
            model.observe(x)
        p = model.predict(x, seen)

    The backbone is frozen and stays in eval mode, whatever `train` says. It moves with the module, but `state_dict`
    leaves it out: what that holds is what was learned, and it loads into a FlyPrompt of the same backbone.

    Args:
        backbone: a vision or text transformer, or a module around one that returns features (N, d) and has d as
            `num_features`, see docs/prompts.md. It is kept, frozen and hooked.
        num_classes: C.
        num_experts: E.
        prompt_length, prompt_layers: see `PromptPool`.
        expansion, ridge, seed: of the router, see `REAR`.
        decays: of the averaged heads, see `TE2Head`.

    Attributes:
        backbone: the same module; pool: PromptPool; heads: TE2Head; router: REAR.
        handle: `handle.remove()` sets the backbone free; `forward` and `predict` then refuse.

    Raises:
        ValueError, TypeError: an argument that does not fit.
    """

    def __init__(
        self,
        backbone: nn.Module,
        num_classes: int,
        num_experts: int,
        *,
        prompt_length: int = 20,
        prompt_layers: Sequence[int] = (0, 1, 2, 3, 4),
        expansion: int = 10000,
        ridge: float = 1e4,
        decays: Sequence[float] = (0.9, 0.99),
        seed: int = 0,
    ) -> None:
        super().__init__()
        self._family = find(backbone)
        features = self._family.num_features(backbone)
        self.pool = PromptPool(num_experts, prompt_length, self._family.embed_dim, prompt_layers)
        self.heads = TE2Head(features, num_classes, num_experts, decays)
        self.router = REAR(features, num_experts, expansion, ridge=ridge, seed=seed)
        self.handle = self.pool.attach(backbone)
        self.backbone = backbone.requires_grad_(False).eval()
        self.register_state_dict_post_hook(_leave_out_backbone)
        self.register_load_state_dict_pre_hook(_keep_backbone)

    @property
    def current(self) -> int | None:
        """The expert that learns, None before any."""
        return self.pool.current

    def start_expert(self, expert: int) -> None:
        """Make an expert that has not learned yet the current one.

        Its prompts start at the mean of the earlier ones, which are frozen for good (Eq. 5), its averaged heads as
        copies of the shared head. The parameters that require a gradient are then its prompts and the shared head.

        Raises:
            ValueError, TypeError: no id of an expert, or of one that was started before.
        """
        self.pool.start_expert(expert)
        self.heads.start_expert(expert)

    def forward(self, x: Tensor | Mapping[str, Any]) -> Tensor:
        """(N, C) logits of the shared head under the current expert's prompts.

        Args:
            x: what the backbone takes, or a mapping of its arguments by name.

        Raises:
            RuntimeError: no expert has been started, or the prompts are not attached to the backbone any more.
            ValueError, TypeError: a backbone that is no module around a model was given what it does not take.
        """
        return self.heads(self._prompted(x, self._current("forward")))

    def ema_step(self) -> None:
        """Move the current expert's averaged heads (Eq. 7): call it after an optimizer step.

        Raises:
            RuntimeError: no expert has been started.
        """
        self.heads.ema_step()

    @torch.no_grad()
    def observe(self, x: Tensor | Mapping[str, Any]) -> None:
        """Teach the router that these inputs are the current expert's (Eq. 2): once a batch, as test inputs will come.

        Raises:
            RuntimeError: no expert has been started.
        """
        self.router.update(self._features(x), self._current("observe"))

    @torch.no_grad()
    def route(self, x: Tensor | Mapping[str, Any]) -> Tensor:
        """(N,) int64 experts of these inputs (Eq. 4), of those that have observed some.

        Raises:
            RuntimeError: nothing has been observed.
        """
        return self.router.route(self._features(x))

    @torch.no_grad()
    def predict(self, x: Tensor | Mapping[str, Any], seen: Tensor | None = None) -> Tensor:
        """(N, C) probabilities, for each class the largest of the row's heads (Eq. 8 to 10); see `TE2Head.predict`.

        Args:
            x: as in `forward`.
            seen: (C,) bool; a class that is False gets 0. None for all.

        Raises:
            RuntimeError: nothing has been observed, or the prompts are not attached to the backbone any more.
        """
        experts = self.route(x)
        return self.heads.predict(self._prompted(x, experts), experts, seen)

    def train(self, mode: bool = True) -> FlyPrompt:
        """Sets the mode of all but the backbone, which stays in eval mode."""
        super().train(mode)
        self.backbone.eval()
        for block in self._family.blocks:
            # A block of transformers that is to be computed again in the backward pass is so in training mode only.
            # Nothing else in it looks at its own mode, and what it is made of stays in eval mode.
            block.training = mode and getattr(block, "gradient_checkpointing", False)
        return self

    def _current(self, what: str) -> int:
        if self.current is None:
            raise RuntimeError(f"{what} needs a current expert: call start_expert first")
        return self.current

    def _prompted(self, x: Tensor | Mapping[str, Any], experts: int | Tensor) -> Tensor:
        if not is_attached(self.pool, self._family):
            raise RuntimeError("the backbone must be attached to the pool, got one set free: call pool.attach first")
        with self.pool.use(experts):
            return self._features(x)

    def _features(self, x: Tensor | Mapping[str, Any]) -> Tensor:
        if self.backbone is self._family.owner:  # a module around it may take anything
            if not isinstance(x, (Tensor, Mapping)):
                raise TypeError(f"x must be a tensor or a mapping of arguments by name, got {type(x).__name__}")
            if isinstance(x, Mapping) and not x:
                raise ValueError("x must have an argument of the backbone, got an empty mapping")
        return self._family.features(self.backbone, x)


def _leave_out_backbone(module: nn.Module, state_dict: dict[str, Any], prefix: str, local_metadata: object) -> None:
    for key in [key for key in state_dict if key.startswith(f"{prefix}backbone.")]:
        del state_dict[key]


def _keep_backbone(module: Any, state_dict: dict[str, Any], prefix: str, *_: object) -> None:
    """What a state lacks of the backbone stays as it is."""
    for key, value in module.backbone.state_dict(prefix=f"{prefix}backbone.").items():
        state_dict.setdefault(key, value)
