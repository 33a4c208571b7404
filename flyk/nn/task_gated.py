"""TaskGatedFlyLoRALinear: groups of ranks as experts, weighed by a gate that each task learns."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flyk.nn import _check
from flyk.nn._adapter import Adapter
from flyk.ops import winner_take_all
from flyk.ops._check import accumulator
from flyk.ops.winner_take_all import scatter


class TaskGatedFlyLoRALinear(Adapter):
    """``base(x) + alpha / rank * (w ⊙ A x) Bᵀ``: each rank weighed by its expert's share w of the current task's gate.

    The grouped form of FlyLoRA that popular summaries describe (the paper's is `FlyLoRALinear`): the ranks are split
    over experts as evenly as they go, the first experts taking one more where they do not divide. The weights are the
    softmax of the task's gate, kept to the largest ``max(1, round(num_experts * (1 - sparsity)))`` (ties to the lower
    expert) and renormalised. They do not depend on the input, so each task merges exactly. Where one expert is kept its
    weight is 1 whatever the gate, which then learns nothing.

    Args:
        in_features, out_features: as of nn.Linear.
        rank: ranks in all.
        num_experts: groups of ranks, from 1 to rank.
        base: any module that maps (..., in_features) to (..., out_features), usually an nn.Linear; its parameters
            are frozen here. None for 0. B, A and the gate are made on its device and in its dtype.
        sparsity: share of A's entries that are zero and of the experts that a task leaves out, from 0 to 1; each row
            of A has ``max(1, round(in_features * (1 - sparsity)))`` entries N(0, 1/rank²).
        num_tasks: rows of the gate.
        temperature: in training the softmax is a Gumbel-softmax of this temperature, drawn anew in each forward; None
            for a plain one.
        learn_temperature: True to train the temperature from there on, through its logarithm, so that it stays above 0.
        alpha: the update is scaled by alpha / rank; 2 * rank where None.
        seed: of A and of the gate's start, from 0 to 2^63 - 1.

    Attributes:
        B: (out_features, rank) parameter, zero at the start.
        gate: (num_tasks, num_experts) parameter, N(0, 0.01²) at the start.
        log_temperature: () parameter where it is trained, else None.
        projection: `RandomProjection`, A (rank, in_features); frozen and not saved, only its seed is.
        task: the current task, 0 at the start; see `set_task`. Not saved.

    Raises:
        ValueError, TypeError: an argument that does not fit.
    """

    expert_of_rank: Tensor

    def __init__(
        self,
        in_features: int,
        out_features: int,
        rank: int = 8,
        num_experts: int = 4,
        *,
        base: nn.Module | None = None,
        sparsity: float = 0.8,
        num_tasks: int = 1,
        temperature: float | None = None,
        learn_temperature: bool = False,
        alpha: float | None = None,
        seed: int = 0,
    ) -> None:
        rank = _check.integer("rank", rank, 1)
        num_experts = _check.integer("num_experts", num_experts, 1, rank)
        num_tasks = _check.integer("num_tasks", num_tasks, 1)
        share = 1 - _check.number("sparsity", sparsity, 0, 1)
        if temperature is not None and _check.number("temperature", temperature, 0) == 0:
            raise ValueError(f"temperature must be above 0 or None, got {temperature}")
        kept = max(1, round(num_experts * share))
        if _check.flag("learn_temperature", learn_temperature) and temperature is None:
            raise ValueError("temperature must be given to be learned, got None")
        if learn_temperature and kept == 1:
            raise ValueError(f"sparsity must leave a task two experts for it to learn a temperature, got {sparsity}")
        nnz = max(1, round(_check.integer("in_features", in_features, 1) * share))
        super().__init__(in_features, out_features, rank, nnz=nnz, alpha=alpha, base=base, seed=seed)
        self.rank, self.num_experts, self.num_tasks, self._temperature = rank, num_experts, num_tasks, temperature
        self.sparsity, self.experts_kept = float(sparsity), kept
        self.task = 0
        start = torch.randn(num_tasks, num_experts, generator=torch.Generator().manual_seed(seed), device="cpu")
        self.gate = nn.Parameter((0.01 * start).to(self.B))
        log_temperature = self.B.new_tensor(temperature).log() if learn_temperature else None
        self.log_temperature = None if log_temperature is None else nn.Parameter(log_temperature)
        expert_of_rank = torch.arange(rank, device=self.B.device) * num_experts // rank
        self.register_buffer("expert_of_rank", expert_of_rank, persistent=False)

    @property
    def temperature(self) -> float | None:
        """That of the Gumbel-softmax as it is now."""
        return self._temperature if self.log_temperature is None else float(self.log_temperature.detach().exp())

    def set_task(self, task: int) -> None:
        """Make `task`, from 0 to num_tasks - 1, the one whose gate forward uses."""
        self.task = _check.integer("task", task, 0, self.num_tasks - 1)

    def forward(self, x: Tensor) -> Tensor:
        """base(x) plus the current task's update: x (..., in_features), out (..., out_features) in x's dtype."""
        _check.features("x", x, self.in_features)
        B = self._weighed(self._shares(self.task, self.training)).to(self.B.dtype)
        return self._adapted(x, x, B, self.rank, None, "magnitude")[0]

    def shares(self, task: int) -> Tensor:
        """(num_experts,) the weight of each expert in `task` outside training; they sum to 1, in float32 at least."""
        return self._shares(_check.integer("task", task, 0, self.num_tasks - 1), noisy=False)

    def _shares(self, task: int, noisy: bool) -> Tensor:
        gate = self.gate[task].to(accumulator(self.gate.dtype))
        learned = self.log_temperature
        temperature: Any = self._temperature if learned is None else learned.to(gate.dtype).exp()
        p = F.gumbel_softmax(gate, temperature) if noisy and temperature is not None else gate.softmax(0)
        kept, experts = winner_take_all(p, self.experts_kept)
        return scatter(kept / kept.sum(), experts, self.num_experts)

    def _weighed(self, shares: Tensor) -> Tensor:
        return self.B * shares[self.expert_of_rank]

    def dense_delta(self, task: int) -> Tensor:
        """``alpha / rank * B diag(w) A`` of `task`, (out_features, in_features) in B's dtype."""
        return self._delta(self._weighed(self.shares(task))).to(self.B.dtype)

    def merge(self, task: int) -> nn.Linear:
        """A new nn.Linear that gives this layer's output for `task` outside training; this layer stays as it is.

        Raises:
            TypeError: the base is not an nn.Linear with floating weights.
            ValueError: there is no such task.
        """
        return self._merge(self._delta(self._weighed(self.shares(task))))

    def settings(self) -> dict[str, Any]:
        return {
            "rank": self.rank,
            "num_experts": self.num_experts,
            "num_tasks": self.num_tasks,
            "alpha": self.alpha,
            "sparsity": self.sparsity,
            "temperature": self.temperature,
            "learn_temperature": self.log_temperature is not None,
            "seed": int(self.projection.seed),
        }

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, num_experts={self.num_experts}, num_tasks={self.num_tasks}, task={self.task}"
