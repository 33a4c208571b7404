"""FlyLoRALinear: a frozen layer and a low-rank update of which each token uses its own k of r ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from flyk.nn import _check
from flyk.nn._adapter import Adapter
from flyk.nn._keep_dtype import keep_dtype
from flyk.ops._check import SELECTIONS, choice
from flyk.ops.count_winners_ import count_winners_


class FlyLoRALinear(Adapter):
    """FlyLoRA: ``base(x) + alpha / r * Σ_{i in winners} (A x)_i B[:, i]``, arXiv 2510.08396, Eq. 11.

    The winners are the k ranks of r with the best score, |A x| + routing_bias by default: the ranks are the experts
    and A is their router. Gradients to x and B are exact, and x is not kept for them.

    A is a pure function of the seed and is not saved; the seed is. Two adapters that will be merged must have
    different seeds, for only then are their updates orthogonal (Cor. 3.5).

    The ranks are balanced without an auxiliary loss (Eq. 9). Call `update_routing_bias` once after each optimizer
    step. In training mode forward counts the winners; in evaluation it changes nothing.

    Args:
        in_features, out_features: as of nn.Linear.
        r: ranks.
        k: ranks that a token uses, from 1 to r.
        base: any module that maps (..., in_features) to (..., out_features), usually an nn.Linear; its parameters
            are frozen here. None for 0. B and A are made on its device and in its dtype.
        nnz: entries of each row of A that are not zero; in_features * k // r (at least 1) where None.
        alpha: the update is scaled by alpha / r; 2r where None.
        selection: "magnitude", "signed" or "biased_magnitude", see `flyk.ops.winner_take_all`.
        bias_update_rate: u of Eq. 9, what `update_routing_bias` moves a bias by.
        dropout: probability with which entries of the adapter's input are zeroed in training.
        seed: of A, from 0 to 2^63 - 1.
        detach_input: True to send no gradient to x through the adapter, as the published PEFT fork; it saves nothing.

    Attributes:
        B: (out_features, r), the one trained parameter, zero at the start.
        projection: `RandomProjection`, A (r, in_features) with entries N(0, 1/r²).
        routing_bias: (r,) float32 buffer, whatever dtype the layer is cast to.
        counts: (r,) int64, winners since the last `update_routing_bias`. Not a buffer, and not saved: DDP overwrites
            the buffers of a process with those of the first.

    Raises:
        ValueError, TypeError: an argument that does not fit.
    """

    routing_bias: Tensor

    def __init__(
        self,
        in_features: int,
        out_features: int,
        r: int = 32,
        k: int = 8,
        *,
        base: nn.Module | None = None,
        nnz: int | None = None,
        alpha: float | None = None,
        selection: str = "magnitude",
        bias_update_rate: float = 1e-3,
        dropout: float = 0.0,
        seed: int = 0,
        detach_input: bool = False,
    ) -> None:
        r = _check.integer("r", r, 1)
        k = _check.integer("k", k, 1, r)
        choice("selection", selection, SELECTIONS)
        rate = _check.number("bias_update_rate", bias_update_rate, 0)
        dropout = _check.number("dropout", dropout, 0, 1)
        if nnz is None:
            nnz = max(1, _check.integer("in_features", in_features, 1) * k // r)
        super().__init__(in_features, out_features, r, nnz=nnz, alpha=alpha, base=base, seed=seed)
        self.r, self.k, self.selection, self.bias_update_rate = r, k, selection, rate
        self.dropout, self.detach_input = nn.Dropout(dropout), _check.flag("detach_input", detach_input)
        self.register_buffer("routing_bias", torch.zeros(r, dtype=torch.float32, device=self.B.device))
        self.counts = torch.zeros(r, dtype=torch.int64, device=self.B.device)

    def forward(self, x: Tensor, mask: Tensor | None = None, base_out: Tensor | None = None) -> Tensor:
        """base(x) plus the update.

        Args:
            x: (..., in_features) in the layer's dtype; under autocast any.
            mask: (...) bool, True where a row is real; the others are left out of the counts. None where all are.
                It has no part in the output.
            base_out: (..., out_features), what the base gave where it was called before; the layer's own is not
                called then.

        Returns:
            out: (..., out_features) in x's dtype; under autocast in autocast's.

        Raises:
            ValueError, TypeError: a shape, dtype or device that does not fit.
        """
        _check.features("x", x, self.in_features)
        how = self.B, self.k, self.routing_bias, self.selection
        out, winners = self._adapted(x, self._seen(x), *how, base_out=base_out)
        self._count(winners, mask)
        return out

    def _seen(self, x: Tensor) -> Tensor:
        """What the adapter sees of x; x itself where nothing changes it."""
        x = x.detach() if self.detach_input else x
        return self.dropout(x) if self.training and self.dropout.p else x

    def _count(self, winners: Tensor, mask: Tensor | None) -> None:
        if self.training:
            if self.counts.device != winners.device:
                self.counts = torch.zeros_like(self.counts, device=winners.device)
            count_winners_(self.counts, winners, mask)

    @torch.no_grad()
    def update_routing_bias(self) -> None:
        """Eq. 9, ``d_i += u * sign(mean(c) - c_i)`` for the counts c since the last call, which are then zeroed.

        A rank that won less than its share gains a larger bias. Where torch.distributed runs, the counts of all
        processes are summed first, so every process must call this. Without counts nothing changes.
        """
        counts = self.counts.to(self.routing_bias.device)
        if dist.is_available() and dist.is_initialized():
            dist.all_reduce(counts)
        # The mean is taken times r, in integers, so that an even load is exactly even.
        self.routing_bias += self.bias_update_rate * torch.sign(counts.sum() - self.r * counts)
        self.counts.zero_()

    def dense_delta(self) -> Tensor:
        """``alpha / r * B A``, (out_features, in_features) in B's dtype: what all r ranks together would add."""
        return self._delta(self.B).to(self.B.dtype)

    def merge(self, approximate: bool = False) -> nn.Linear:
        """A new nn.Linear that holds base and update, ``W + alpha / r * B A`` (Eq. 12); this layer stays as it is.

        Exact for k = r alone. For k < r the winners depend on the input, so no single weight gives this layer's
        output; the merged layer then uses all ranks for every token.

        Args:
            approximate: True to merge a layer with k < r all the same.

        Raises:
            ValueError: k < r and not `approximate`.
            TypeError: the base is not an nn.Linear with floating weights.
        """
        if self.k < self.r and not _check.flag("approximate", approximate):
            raise ValueError(
                f"approximate must be True to merge with k = {self.k} of r = {self.r} ranks, got {approximate}: "
                "the winners depend on the input, so no single weight gives the same output unless k = r"
            )
        return self._merge(self._delta(self.B))

    def without_base(self) -> FlyLoRALinear:
        """The update alone: a layer of the same settings that shares B and has no base; its routing bias is a copy."""
        layer = FlyLoRALinear(**self.settings(), in_features=self.in_features, out_features=self.out_features)
        layer.to(self.B)
        layer.B = self.B
        layer.routing_bias = self.routing_bias.clone()
        return layer.train(self.training)

    def settings(self) -> dict[str, Any]:
        return {
            "r": self.r,
            "k": self.k,
            "nnz": self.projection.nnz,
            "alpha": self.alpha,
            "selection": self.selection,
            "bias_update_rate": self.bias_update_rate,
            "dropout": self.dropout.p,
            "seed": int(self.projection.seed),
            "detach_input": self.detach_input,
        }

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, k={self.k}, selection={self.selection!r}"

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> FlyLoRALinear:
        bias = self.routing_bias
        super()._apply(fn, recurse)
        self.routing_bias = keep_dtype(fn)(bias)  # steps of 1e-3 vanish beside 0.5 in bfloat16
        return self
