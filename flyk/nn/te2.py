"""TE2Head: one online linear head, and for each expert a bank of its exponential moving averages."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from flyk.nn import _check
from flyk.nn._keep_dtype import keep_dtype
from flyk.ops import ema_, ensemble
from flyk.ops._check import dtype, in_range, shape


class TE2Head(nn.Module):
    """The temporal ensemble of FlyPrompt, arXiv 2602.01976, Eq. 7 to 10.

    All experts share the online head. While an expert is current, its n averages of that head follow it, each at its
    own time scale; they rest when the next expert starts, and `predict` takes the best opinion of the n + 1 heads.

        head.start_expert(0)
        for h, labels in stream:
            loss(head(h), labels).backward()
            optimizer.step()
            head.ema_step()
        p = head.predict(h, expert_ids)

    Args:
        in_features: d.
        num_classes: C.
        num_experts: E.
        decays: n numbers from 0 to 1; 0.99 averages over about 100 steps.

    Attributes:
        online: nn.Linear(in_features, num_classes), the one trained part.
        bank_weight: (E, n, C, d) buffer, bank_bias: (E, n, C) buffer. They keep their dtype when the module is cast:
            in a half type an average with decay 0.99 stands still.
        started: (E,) bool buffer, the experts that have a bank.
        current: the expert that `ema_step` moves, None before any; part of the state.

    Raises:
        ValueError, TypeError: an argument that does not fit.
    """

    bank_weight: Tensor
    bank_bias: Tensor
    started: Tensor

    def __init__(
        self, in_features: int, num_classes: int, num_experts: int, decays: Sequence[float] = (0.9, 0.99)
    ) -> None:
        super().__init__()
        self.in_features = _check.integer("in_features", in_features, 1)
        self.num_classes = _check.integer("num_classes", num_classes, 1)
        self.num_experts = _check.integer("num_experts", num_experts, 1)
        self.decays = tuple(_check.number("decays", decay, 0, 1) for decay in _check.items("decays", decays))
        self.online = nn.Linear(in_features, num_classes)
        bank = (num_experts, len(self.decays), num_classes)
        self.register_buffer("bank_weight", torch.zeros(*bank, in_features))
        self.register_buffer("bank_bias", torch.zeros(bank))
        self.register_buffer("started", torch.zeros(num_experts, dtype=torch.bool))
        self.current: int | None = None

    def forward(self, h: Tensor) -> Tensor:
        """The online head's logits: h (..., d), result (..., C)."""
        return self.online(h)

    @torch.no_grad()
    def start_expert(self, expert: int) -> None:
        """Copy the online head into all heads of this expert's bank and make it the current one.

        An expert that is started again starts over.
        """
        expert = _check.integer("expert", expert, 0, self.num_experts - 1)
        self.bank_weight[expert].copy_(self.online.weight)
        self.bank_bias[expert].copy_(self.online.bias)
        self.started[expert] = True
        self.current = expert

    @torch.no_grad()
    def ema_step(self) -> None:
        """Eq. 7 for the current expert, ``W_j = decays[j] W_j + (1 - decays[j]) W``: call it after an optimizer step.

        Raises:
            RuntimeError: no expert has been started.
        """
        if self.current is None:
            raise RuntimeError("ema_step needs a current expert: call start_expert first")
        for bank, online in ((self.bank_weight, self.online.weight), (self.bank_bias, self.online.bias)):
            ema_(bank[self.current], online.to(bank.dtype), self.decays)

    @torch.no_grad()
    def predict(self, h: Tensor, expert_ids: int | Tensor, seen: Tensor | None = None) -> Tensor:
        """Eq. 8 to 10: the elementwise maximum of the softmax of the online head and of the expert's EMA heads.

        Args:
            h: (N, d), any floating dtype.
            expert_ids: the expert of all rows, or (N,) int64 one for each, from 0 to E - 1.
            seen: (C,) bool; a class that is False gets probability 0. None for all.

        Returns:
            p: (N, C) in the banks' dtype, under autocast in its own. Rows are scores and need not sum to 1.

        Raises:
            ValueError, TypeError: a shape, dtype or id that does not fit, or an expert that was never started.
        """
        shape("h", h, "N", self.in_features)
        if not isinstance(expert_ids, Tensor):
            expert = _check.integer("expert_ids", expert_ids, 0, self.num_experts - 1)
            expert_ids = torch.full((h.shape[0],), expert, dtype=torch.int64, device=h.device)
        self._check_started(expert_ids)
        weight, bias = (t.to(self.bank_weight.dtype) for t in (self.online.weight, self.online.bias))
        h = h.to(self.bank_weight.dtype)
        return ensemble(h, weight, bias, self.bank_weight, self.bank_bias, expert_ids, seen)

    def _check_started(self, expert_ids: Tensor) -> None:
        dtype("expert_ids", expert_ids, (torch.int64,))
        in_range("expert_ids", expert_ids, self.num_experts)
        started = self.started[expert_ids]
        if started.device.type != "cpu":  # asserted on the device, so that nothing waits
            torch.ops.aten._assert_async(started.all())
        elif not started.all():
            raise ValueError(f"expert_ids must be of experts that were started, got {int(expert_ids[~started][0])}")

    def get_extra_state(self) -> Tensor:
        """The current expert, -1 for none."""
        return torch.tensor(-1 if self.current is None else self.current)

    def set_extra_state(self, state: Tensor) -> None:
        current = _check.integer("current", int(state), -1, self.num_experts - 1)
        self.current = None if current < 0 else current

    def extra_repr(self) -> str:
        return f"num_experts={self.num_experts}, decays={self.decays}, current={self.current}"

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> TE2Head:
        banks = self.bank_weight, self.bank_bias
        super()._apply(fn, recurse)
        self.bank_weight, self.bank_bias = (keep_dtype(fn)(bank) for bank in banks)
        return self
