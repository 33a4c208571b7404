"""What REAR is in whatever form its statistics are kept: a frozen expansion, rows taken in, scores given out."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from flyk import _memory, distributed
from flyk.nn import _check
from flyk.nn._keep_dtype import keep_dtype
from flyk.nn._lock import Lock
from flyk.nn._stored import Stored
from flyk.nn.random_projection import RandomProjection
from flyk.ops import _check as _ops_check
from flyk.ops import project, winner_take_all
from flyk.ops.expand_gram_ import BLOCK
from flyk.ops.winner_take_all import scatter

if TYPE_CHECKING:
    from typing_extensions import Self

INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
NONFINITE = ("refuse", "drop", "ignore")


class Router(Stored):
    """The common part of REAR's forms; see `flyk.nn.REAR` for the arguments.

    A form says in STATISTICS which attributes hold what it has learned, by `_add` how rows come in, by `_fit` how U is
    found, by `_merge` how another's statistics are added.
    """

    counts: Tensor
    dropped: Tensor

    def __init__(
        self,
        in_features: int,
        num_experts: int,
        expansion: int = 10000,
        *,
        ridge: float = 1e4,
        kind: str = "gaussian",
        nnz: int | None = None,
        activation: str = "relu",
        k: int | None = None,
        seed: int = 0,
        dtype: torch.dtype = torch.float32,
        precision: str = "float32",
        nonfinite: str = "refuse",
    ) -> None:
        super().__init__()
        self.in_features = _check.integer("in_features", in_features, 1)
        num_experts = _check.integer("num_experts", num_experts, 0)
        self.expansion = _check.integer("expansion", expansion, 1)
        self._lock = Lock()  # of all that changes what was learned or solved
        self._solution: Tensor | None = None  # the last,
        self._solved = False  # which is of all rows so far
        self.ridge = ridge
        _ops_check.choice("activation", activation, _ops_check.ACTIVATIONS)
        _ops_check.choice("precision", precision, _ops_check.PRECISIONS)
        _ops_check.choice("nonfinite", nonfinite, NONFINITE)
        self.activation, self.precision, self.nonfinite = activation, precision, nonfinite
        self.k = None if k is None else _check.integer("k", k, 1, expansion)
        if dtype not in _ops_check.ACCUMULATORS:
            raise TypeError(f"dtype must be torch.float32 or torch.float64, got {dtype}")
        self.dtype = dtype
        entries = in_features if nnz is None else 3 * _check.integer("nnz", nnz, 0)
        _memory.need("expansion", self.expansion * entries * dtype.itemsize)
        self.projection = RandomProjection(in_features, expansion, kind=kind, nnz=nnz, seed=seed).to(dtype)
        self._reduced = False  # holds the rows of all ranks already
        self.counts = torch.zeros(num_experts, dtype=torch.int64)
        self.dropped = torch.zeros(num_experts, dtype=torch.int64)

    @property
    def num_experts(self) -> int:
        return self.counts.shape[0]

    @property
    def ridge(self) -> float:
        """λ; a new one is taken at the next solution."""
        return self._ridge

    @ridge.setter
    def ridge(self, ridge: float) -> None:
        self._ridge = _check.number("ridge", ridge, 0)
        self._forget()

    @torch.no_grad()
    def update(self, h: Tensor, expert: int | Tensor) -> None:
        """Learn that the rows of h belong to an expert.

        Args:
            h: (..., d) of any floating dtype, on the module's device; no gradient is recorded and no reference kept.
            expert: the expert of all rows, or (...) integers one for each, from 0 to T - 1.

        Raises:
            ValueError, TypeError: a shape, dtype, device or id that does not fit, or, with nonfinite="refuse", a row
                that is not finite; nothing has changed then.
        """
        self._check_rows(h)
        labels = self._check_labels(h, expert)
        with self._lock:
            rows, labels = self._finite(_ops_check.rows(h.detach()).to(self.dtype), labels)
            self._solved = False
            self._add(rows, labels)

    def flush(self) -> None:
        """Take in rows that wait in a buffer, if the form has one."""

    @torch.inference_mode(False)  # what is kept must outlive the mode
    @torch.no_grad()
    def solve(self) -> Tensor:
        """U (M, T) of all rows so far; kept until the next update.

        Raises:
            ValueError: ridge is too small for these rows.
        """
        with self._lock:
            self.flush()
            if self._solution is None or not self._solved:
                self._solution = self._fit()
                self._solved = True
            return self._solution

    def forward(self, h: Tensor) -> Tensor:
        """Scores (..., T) of rows h (..., d), in the statistics' dtype; an expert that was never seen has -inf.

        Computed for 1024 rows at a time. Autocast has no part in it. Differentiable in h.
        """
        self._check_rows(h)
        U = self.solve()
        with torch.autocast(h.device.type, enabled=False):
            scores = torch.cat([self._expand(rows) @ U for rows in _ops_check.rows(h).split(BLOCK)])
        return scores.masked_fill(self.counts == 0, -torch.inf).view(*h.shape[:-1], self.num_experts)

    def route(self, h: Tensor) -> Tensor:
        """The expert with the largest score, (...) int64, for rows h (..., d); ties go to the lower id.

        Raises:
            RuntimeError: no expert has been seen.
            ValueError: a row has no scores, as one with NaN has none; with nonfinite="ignore" that is not looked for.
        """
        if not self.counts.any():
            raise RuntimeError("route needs at least one row to have been given to update")
        scores = self(h)
        if self.nonfinite != "ignore" and (bad := scores.isnan().any(-1).flatten()).any():
            raise ValueError(f"h must be finite to be routed, got row {int(bad.nonzero()[0])} with NaN or inf")
        return scores.argmax(-1)

    @torch.no_grad()
    def merge_(self, other: Self) -> Self:
        """Add what another router has learned; it stays as it is. The larger number of experts is kept.

        Raises:
            ValueError: other has another expansion, activation, k, seed or ridge.
            TypeError: other is no router of this form.
        """
        if not isinstance(other, type(self)):
            raise TypeError(f"other must be a {type(self).__name__}, got {type(other).__name__}")
        for (name, mine), theirs in zip(self._meaning().items(), other._meaning().values(), strict=True):
            if mine != theirs:
                raise ValueError(f"other must have {name} {mine!r}, got {theirs!r}")
        with self._lock:
            self.flush()
            other.flush()
            self._widen(other.num_experts)
            self._merge(other)
            self._reduced |= other._reduced
            self._solved = False
        return self

    @torch.no_grad()
    def reduce(self, group: Any = None) -> Self:
        """A router of the rows of all ranks of torch.distributed, the same on each; every rank must call this.

        This router keeps the rows of its own rank alone and goes on learning from them, so that reducing again later
        counts no row twice. It is one sum for a solution: the lower triangle of G in panels, Q and counts. Ranks may
        have seen any number of rows, none among them, and of experts. A rank that joins late starts empty, or with
        what a file held that no other rank has loaded: `merge_`, then `reduce`. Without torch.distributed, or with one
        rank, it is a copy.

        Raises:
            ValueError: on every rank, where a rank's router is of another kind, seed, ridge or dtype.
            RuntimeError: this router is itself the result of a reduction, or one was merged into it.
        """
        self.flush()
        meaning = self._meaning() | {"dtype": str(self.dtype), "reduced": self._reduced}
        widest = max(distributed.agree(meaning, self.num_experts, group))
        if self._reduced:
            raise RuntimeError("reduce needs a router of one rank's rows, got one that holds those of all ranks")
        with self.counts.device:
            total = type(self)(**{**self.settings(), "num_experts": widest, "dtype": self.dtype})
        total.merge_(self)
        total._sum(group)
        total._reduced = True
        return total

    def _sum(self, group: Any) -> None:
        """Make the statistics those of all ranks."""
        for name in self.BY_EXPERT:
            distributed.sum_(getattr(self, name), group)

    def add_expert(self) -> int:
        """Make room for one more expert, unseen so far, and return its id."""
        self._widen(self.num_experts + 1)
        return self.num_experts - 1

    def settings(self) -> dict[str, Any]:
        """The arguments that make a router of this kind, number of experts and seed, as JSON has them."""
        names = ("activation", "k", "precision", "nonfinite", "ridge")
        R = self.projection
        return {
            **{"in_features": self.in_features, "num_experts": self.num_experts, "expansion": self.expansion},
            **{"kind": R.kind, "nnz": R.nnz, "seed": int(R.seed), "dtype": str(self.dtype).removeprefix("torch.")},
            **{name: getattr(self, name) for name in names},
        }

    def _add(self, rows: Tensor, labels: Tensor) -> None:
        """Take in rows that were checked, and count each when it is in, should a signal come between."""
        raise NotImplementedError

    def _fit(self) -> Tensor:
        raise NotImplementedError

    def _merge(self, other: Any) -> None:
        """Add the statistics of `other`, which has no more experts than this."""
        for name in self.STATISTICS:
            mine, theirs = getattr(self, name), getattr(other, name)
            mine[..., : theirs.shape[-1]].add_(theirs.to(mine))

    def _forget(self) -> None:
        """No solution is kept."""
        self._solution, self._solved = None, False

    @torch.inference_mode(False)
    def _widen(self, num_experts: int) -> None:
        more = max(0, num_experts - self.num_experts)
        for name in self.BY_EXPERT:
            setattr(self, name, F.pad(getattr(self, name), (0, more)))
        if self._solution is not None:
            self._solution = F.pad(self._solution, (0, more))  # a column of zeros is solved by zeros

    def _expand(self, h: Tensor) -> Tensor:
        """φ (N, M) of rows (N, d)."""
        R = self.projection
        phi = project(h.to(self.dtype), R.values, R.indices, activation=self.activation, precision=self.precision)
        return phi if self.k is None else scatter(*winner_take_all(phi, self.k), self.expansion)

    def _kind(self) -> dict[str, Any]:
        """What φ is made of, but for the seed."""
        R = self.projection
        names = {"in_features": self.in_features, "expansion": self.expansion, "kind": R.kind, "nnz": R.nnz}
        return names | {"activation": self.activation, "k": self.k}

    def _meaning(self) -> dict[str, Any]:
        """What two routers must share for their statistics to be of one kind."""
        return self._kind() | {"seed": int(self.projection.seed), "ridge": self.ridge}

    def _finite(self, rows: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """The rows whose norm is a finite number, NaN and inf having none; the others are refused, or dropped."""
        if self.nonfinite == "ignore" or not rows.shape[0]:
            return rows, labels
        norms = torch.linalg.vector_norm(rows, dim=1)
        finite = norms.isfinite()
        if finite.all():
            return rows, labels
        if self.nonfinite == "refuse":
            row = int((~finite).nonzero()[0])
            raise ValueError(f"h must be finite, got row {row} of norm {norms[row].item()} in {self.dtype}")
        bad = labels[~finite]
        self.dropped.scatter_add_(0, bad, torch.ones_like(bad))
        return rows[finite], labels[finite]

    def _check_rows(self, h: Tensor) -> None:
        _check.features("h", h, self.in_features)
        _ops_check.dtype("h", h)
        if h.device != self.counts.device:
            raise ValueError(f"h must be on the module's device, {self.counts.device}, got {h.device}")
        _ops_check.precision(self.precision, h.device)

    def _check_labels(self, h: Tensor, expert: int | Tensor) -> Tensor:
        """The labels of h's rows, (N,) int64."""
        if not isinstance(expert, Tensor):
            expert = _check.integer("expert", expert, 0, self.num_experts - 1)
            return torch.full((h.shape[:-1].numel(),), expert, dtype=torch.int64, device=h.device)
        _ops_check.dtype("expert", expert, INTEGERS)
        _ops_check.shape("expert", expert, *h.shape[:-1])
        _ops_check.same_device(h=h, expert=expert)
        _ops_check.in_range("expert", expert, self.num_experts)
        return expert.reshape(-1).to(torch.int64)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        move = keep_dtype(fn)
        super()._apply(move, recurse)
        for name in self.STATISTICS:
            setattr(self, name, move(getattr(self, name)))
        self._forget()
        return self

    def extra_repr(self) -> str:
        return (
            f"in_features={self.in_features}, num_experts={self.num_experts}, expansion={self.expansion}, "
            f"ridge={self.ridge:g}, activation={self.activation!r}, k={self.k}, precision={self.precision!r}"
        )
