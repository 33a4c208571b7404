"""What the adapters share: a frozen base, a frozen random A, a trained B, and merging into an nn.Linear."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook

from flyk.nn import _check
from flyk.nn.random_projection import RandomProjection
from flyk.ops._check import accumulator
from flyk.ops.fly_lora import fly_lora_with_winners
from flyk.ops.fly_lora_linear import fly_lora_linear
from flyk.ops.project import dense


class Adapter(nn.Module):
    """A base and an update of low rank: A (rank, in) is frozen and random, B (out, rank) is trained from zero.

    The base is frozen too. B and A are made on its device and in its dtype.
    """

    base: nn.Module | None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        rank: int,
        *,
        nnz: int,
        alpha: float | None,
        base: nn.Module | None,
        seed: int,
    ) -> None:
        super().__init__()
        self.in_features = _check.integer("in_features", in_features, 1)
        self.out_features = _check.integer("out_features", out_features, 1)
        self.alpha = 2.0 * rank if alpha is None else _check.number("alpha", alpha, 0)
        self.scale = self.alpha / rank
        self._check_base(base)
        parameters = () if base is None else base.parameters()
        like = next((p for p in parameters if p.is_floating_point()), torch.empty(0))
        self.B = nn.Parameter(like.new_zeros(out_features, rank))
        self.projection = RandomProjection(
            in_features, rank, kind="sparse_gaussian", nnz=nnz, std=1 / rank, seed=seed
        ).to(self.B)
        self.base = None if base is None else base.requires_grad_(False)

    def _adapted(
        self,
        x: Tensor,
        seen: Tensor,
        B: Tensor,
        k: int,
        bias: Tensor | None,
        selection: str,
        base_out: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """base(x) plus fly_lora's update of `seen`, which is x or what dropout left of it; and the winners."""
        A = self.projection
        update = A.values, A.indices, B, k, bias, self.scale, selection
        linear = self._owned_linear() if seen is x and base_out is None else None
        if linear is not None:
            out, _, winners = fly_lora_linear(x, linear.weight, linear.bias, *update)
        else:
            if base_out is None and self.base is not None:
                base_out = self.base(x)
            out, _, winners = fly_lora_with_winners(seen, base_out, *update)
        return out, winners

    def _owned_linear(self) -> nn.Linear | None:
        """The base, where calling it is F.linear on frozen parameters and no more: nobody else then sees its output."""
        base = self.base
        if type(base) is not nn.Linear or "forward" in base.__dict__ or _has_any_global_hook():
            return None
        if base._forward_hooks or base._forward_pre_hooks or base._backward_hooks or base._backward_pre_hooks:
            return None
        tensors = (base.weight,) if base.bias is None else (base.weight, base.bias)
        return base if all(type(t) is nn.Parameter and not t.requires_grad for t in tensors) else None

    def _check_base(self, base: object) -> None:
        if base is None:
            return
        if not isinstance(base, nn.Module):
            raise TypeError(f"base must be a module or None, got {type(base).__name__}")
        for name in ("in_features", "out_features"):
            have, wanted = getattr(base, name, getattr(self, name)), getattr(self, name)
            if have != wanted:
                raise ValueError(f"base must have {name} {wanted}, got {have}")

    def _delta(self, B: Tensor) -> Tensor:
        """alpha / rank * B A, (out, in), in the dtype in which products of B's dtype are summed."""
        acc = accumulator(B.dtype)
        A = dense(self.projection.values.to(acc), self.projection.indices, self.in_features)
        return self.scale * (B.to(acc) @ A)

    @torch.no_grad()
    def _merge(self, delta: Tensor) -> nn.Linear:
        """A new nn.Linear of the base's weight plus delta, with the base's bias; of GPT-2's Conv1D a new Conv1D."""
        base: Any = self.base
        if type(base).__name__ == "Conv1D":  # a linear layer that keeps its weight transposed
            base = copy.deepcopy(base)
            base.weight.data += delta.t()
            return base
        weight, bias = self.B.new_zeros(self.out_features, self.in_features), None
        if self.base is not None:
            weight, bias = getattr(self.base, "weight", None), getattr(self.base, "bias", None)
            if not (isinstance(self.base, nn.Linear) and isinstance(weight, Tensor) and weight.is_floating_point()):
                raise TypeError(
                    f"base must be an nn.Linear of floating weights to merge, got {type(self.base).__name__}"
                )
        linear = nn.Linear(self.in_features, self.out_features, bias=bias is not None, device="meta")
        linear.weight = nn.Parameter((weight + delta).to(weight.dtype))
        if bias is not None:
            linear.bias = nn.Parameter(bias.detach().clone())
        return linear

    def settings(self) -> dict[str, Any]:
        """The arguments that make a layer like this one, beside its sizes and base."""
        raise NotImplementedError

    def extra_repr(self) -> str:
        p = self.projection
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, rank={self.B.shape[1]}, "
            f"nnz={p.nnz}, alpha={self.alpha:g}"
        )
