"""REAR: a router that learns in one pass, by ridge regression over a random expansion, solved in closed form."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flyk.nn import _check
from flyk.nn._keep_dtype import keep_dtype
from flyk.nn._resolve import resolve
from flyk.nn.random_projection import RandomProjection
from flyk.ops import _check as _ops_check
from flyk.ops import expand_gram_, project, ridge_solve, winner_take_all
from flyk.ops.expand_gram_ import BLOCK
from flyk.ops.ridge_solve import factor, substitute
from flyk.ops.winner_take_all import scatter

INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
STATISTICS = ("G", "Q", "counts")


class REAR(nn.Module):
    """Random expanded analytic router, arXiv 2602.01976, Eq. 2 to 4.

    ``φ = act(h Rᵀ)`` with R (expansion, in_features) frozen; ``G += φᵀφ`` and ``Q[:, e] += Σ φ`` over the rows of
    expert e; ``U = (G + ridge I)⁻¹ Q``; the scores of a row are ``φ U``. G and Q are sums, so any order and any split
    of a stream give the same router up to rounding, and `merge_` of two routers is the router of both streams.
    It serves as a classifier just as well: experts are then classes.

    Rows are buffered and added `flush_rows` at a time, for G is large: at expansion 10000 it takes 381.5 MiB, and each
    addition reads and writes all of it. `G`, `Q` and `counts` are plain tensors and not buffers, because DDP
    overwrites the buffers of a process with those of the first, which would lose sums without a word.
    `state_dict` holds them all the same, and of R the seed alone. They are statistics of the data: who has G and Q
    of few rows may learn something about those rows.

    Args:
        in_features: d.
        num_experts: T; `add_expert` adds one.
        expansion: M.
        ridge: λ, at least 0; read it against the mean of G's diagonal, about N E|h|² / 2 for N rows and "relu".
        kind, nnz: of R, see `RandomProjection`; its std is 1.
        activation: "relu" or "none".
        k: winners of largest magnitude kept of each φ, from 1 to M; None for all.
        seed: of R.
        dtype: float32 or float64, of G, Q and all that is computed; it stays when the module is cast, and h is
            converted to it.
        precision: of the products with R and of φᵀφ: "float32", "tf32", "bf16x3" or "bf16", see `flyk.ops.gram_`.
        flush_rows: rows buffered.
        keep_factor: keep the Cholesky factor of the last solution, which takes as much memory as G. After a few more
            rows the next solution then takes a few conjugate gradient iterations, each a pass over G and the factor,
            in place of M³ / 3 operations; where they do not suffice the factor is made anew.

    Attributes:
        G: (M, M), of which the lower triangle is meant; Q: (M, T); call `flush` before reading either.
        counts: (T,) int64, rows given to each expert, buffered ones included.

    Raises:
        ValueError, TypeError: an argument that does not fit.
    """

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
        flush_rows: int = BLOCK,
        keep_factor: bool = False,
    ) -> None:
        super().__init__()
        self.in_features = _check.integer("in_features", in_features, 1)
        num_experts = _check.integer("num_experts", num_experts, 0)
        self.expansion = _check.integer("expansion", expansion, 1)
        self.ridge = _check.number("ridge", ridge, 0)
        _ops_check.choice("activation", activation, _ops_check.ACTIVATIONS)
        _ops_check.choice("precision", precision, _ops_check.PRECISIONS)
        self.activation, self.precision = activation, precision
        self.k = None if k is None else _check.integer("k", k, 1, expansion)
        self.flush_rows = _check.integer("flush_rows", flush_rows, 1)
        if dtype not in _ops_check.ACCUMULATORS:
            raise TypeError(f"dtype must be torch.float32 or torch.float64, got {dtype}")
        self.projection = RandomProjection(in_features, expansion, kind=kind, nnz=nnz, seed=seed).to(dtype)
        self.G = torch.zeros(expansion, expansion, dtype=dtype)
        self.Q = torch.zeros(expansion, num_experts, dtype=dtype)
        self.counts = torch.zeros(num_experts, dtype=torch.int64)
        self._rows = torch.zeros(flush_rows, in_features, dtype=dtype)
        self._labels = torch.zeros(flush_rows, dtype=torch.int64)
        self._filled = 0
        self.keep_factor = keep_factor
        self._solution: Tensor | None = None  # the last,
        self._solved = False  # which is of all rows so far,
        self._factor: Tensor | None = None  # and a factor of G as it was then or before

    @property
    def num_experts(self) -> int:
        return self.Q.shape[1]

    @torch.no_grad()
    def update(self, h: Tensor, expert: int | Tensor) -> None:
        """Learn that the rows of h belong to an expert.

        Args:
            h: (..., d) of any floating dtype, on the module's device; no gradient is recorded and no reference kept.
            expert: the expert of all rows, or (...) integers one for each, from 0 to T - 1.

        Raises:
            ValueError, TypeError: a shape, dtype, device or id that does not fit; nothing has changed then.
        """
        self._check_rows(h)
        rows, labels = _ops_check.rows(h.detach()), self._check_labels(h, expert)
        self.counts.scatter_add_(0, labels, torch.ones_like(labels))
        self._solved = False
        while rows.shape[0]:
            end = min(self._filled + rows.shape[0], self.flush_rows)
            taken = end - self._filled
            self._rows[self._filled : end].copy_(rows[:taken])
            self._labels[self._filled : end].copy_(labels[:taken])
            self._filled, rows, labels = end, rows[taken:], labels[taken:]
            if end == self.flush_rows:
                self.flush()

    def flush(self) -> None:
        """Add the buffered rows to G and Q."""
        if self._filled:
            rows, labels = self._rows[: self._filled], self._labels[: self._filled]
            R, how = self.projection, {"activation": self.activation, "k": self.k, "precision": self.precision}
            expand_gram_(self.G, self.Q, rows, R.values, R.indices, labels, **how)
        self._filled = 0

    @torch.inference_mode(False)  # what is kept must outlive the mode
    @torch.no_grad()
    def solve(self) -> Tensor:
        """U (M, T) of all rows so far, by Cholesky, or from the factor that was kept; kept until the next update.

        Raises:
            ValueError: ridge is too small for this G, in this dtype.
        """
        self.flush()
        if self._solution is None or not self._solved:
            self._solution = self._solve_kept() if self.keep_factor else ridge_solve(self.G, self.Q, self.ridge)
            self._solved = True
        return self._solution

    def _solve_kept(self) -> Tensor:
        """U from the factor that was kept, which rows have only added to; where that does not do, from a new one."""
        if self._factor is not None and self._solution is not None:
            U = resolve(self.G, self.Q, self.ridge, self._factor, self._solution)
            if U is not None:
                return U
            self._factor = None  # its memory goes before the new one comes
        self._factor = factor(self.G, self.ridge)
        return substitute(self._factor, self.Q).contiguous()

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
        """
        if not self.counts.any():
            raise RuntimeError("route needs at least one row to have been given to update")
        return self(h).argmax(-1)

    @torch.no_grad()
    def merge_(self, other: REAR) -> REAR:
        """Add what another router has learned; it stays as it is. The larger number of experts is kept.

        Raises:
            ValueError: other has another expansion, activation, k or ridge.
            TypeError: other is no REAR.
        """
        if not isinstance(other, REAR):
            raise TypeError(f"other must be a REAR, got {type(other).__name__}")
        for (name, mine), theirs in zip(self._meaning().items(), other._meaning().values(), strict=True):
            if mine != theirs:
                raise ValueError(f"other must have {name} {mine!r}, got {theirs!r}")
        self.flush()
        other.flush()
        self._widen(other.num_experts)
        for name in STATISTICS:
            mine, theirs = getattr(self, name), getattr(other, name)
            mine[..., : theirs.shape[-1]].add_(theirs.to(mine))
        self._solved = False
        return self

    def add_expert(self) -> int:
        """Make room for one more expert, unseen so far, and return its id."""
        self._widen(self.num_experts + 1)
        return self.num_experts - 1

    @torch.inference_mode(False)
    def _widen(self, num_experts: int) -> None:
        more = max(0, num_experts - self.num_experts)
        self.Q, self.counts = F.pad(self.Q, (0, more)), F.pad(self.counts, (0, more))
        if self._solution is not None:
            self._solution = F.pad(self._solution, (0, more))  # a column of zeros is solved by zeros

    def _expand(self, h: Tensor) -> Tensor:
        """φ (N, M) of rows (N, d)."""
        R = self.projection
        phi = project(h.to(self.G.dtype), R.values, R.indices, activation=self.activation, precision=self.precision)
        return phi if self.k is None else scatter(*winner_take_all(phi, self.k), self.expansion)

    def _meaning(self) -> dict[str, Any]:
        """What two routers must share for their statistics to be of one kind."""
        R = self.projection
        names = {"in_features": self.in_features, "expansion": self.expansion, "kind": R.kind, "nnz": R.nnz}
        return names | {"seed": int(R.seed), "activation": self.activation, "k": self.k, "ridge": self.ridge}

    def _check_rows(self, h: Tensor) -> None:
        _check.features("h", h, self.in_features)
        _ops_check.dtype("h", h)
        if h.device != self.G.device:
            raise ValueError(f"h must be on the module's device, {self.G.device}, got {h.device}")
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

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        self.flush()
        self.G.tril_()  # what stands above the diagonal is unspecified, so a file need not carry it
        destination |= {prefix + name: getattr(self, name) for name in STATISTICS}

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: dict[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        super()._load_from_state_dict(
            state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )
        keys = [prefix + name for name in STATISTICS]
        unexpected_keys[:] = [key for key in unexpected_keys if key not in keys]
        missing = [key for key in keys if key not in state_dict]
        if missing:
            missing_keys += missing if strict else []
            return
        try:
            self._load_statistics(*(state_dict[key] for key in keys))
        except (ValueError, TypeError) as error:
            error_msgs.append(f"{prefix}{error}")

    @torch.no_grad()
    def _load_statistics(self, G: Tensor, Q: Tensor, counts: Tensor) -> None:
        """Take these in place of what was learned, buffered rows included; experts that they lack are unseen."""
        _ops_check.dtype("G", G, _ops_check.ACCUMULATORS)
        _ops_check.shape("G", G, self.expansion, self.expansion)
        _ops_check.dtype("Q", Q, _ops_check.ACCUMULATORS)
        _ops_check.shape("Q", Q, self.expansion, "T")
        _ops_check.dtype("counts", counts, (torch.int64,))
        _ops_check.shape("counts", counts, Q.shape[1])
        self._widen(Q.shape[1])
        for mine, theirs in ((self.G, G), (self.Q, Q), (self.counts, counts)):
            mine[..., : theirs.shape[-1]].copy_(theirs)
            mine[..., theirs.shape[-1] :].zero_()
        self._filled, self._solution, self._factor = 0, None, None

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> REAR:
        move = keep_dtype(fn)
        super()._apply(move, recurse)
        for name in (*STATISTICS, "_rows", "_labels"):
            setattr(self, name, move(getattr(self, name)))
        self._solution = self._factor = None
        return self

    def extra_repr(self) -> str:
        size = self.G.numel() * self.G.element_size() / 2**20
        return (
            f"in_features={self.in_features}, num_experts={self.num_experts}, expansion={self.expansion}, "
            f"ridge={self.ridge:g}, activation={self.activation!r}, k={self.k}, precision={self.precision!r}, "
            f"G of {size:.1f} MiB"
        )
