"""KernelREAR: REAR in its dual form, for fewer rows than the expansion is wide."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from flyk import _memory, distributed
from flyk.nn import _solve
from flyk.nn._router import Router
from flyk.ops import _check as _ops_check
from flyk.ops import gram_, project, winner_take_all
from flyk.ops.expand_gram_ import BLOCK

if TYPE_CHECKING:
    from typing_extensions import Self

PANEL = 2048  # columns of φ held at once


class KernelREAR(Router):
    """What `REAR` learns, by the rows themselves: kernel ridge regression over the same expansion.

    ``(ΦᵀΦ + λI)⁻¹ΦᵀY = Φᵀ(ΦΦᵀ + λI)⁻¹Y``: with N rows and an expansion of M, the right side is a system of N and not of
    M equations, and G (M, M) is never made. So an expansion of 100000, whose G takes 37.3 GiB, fits a machine that has
    room for N² numbers twice. Scores, experts and merging are REAR's; `reduce` sends all rows to all ranks; `ridge`
    must be above 0 where N > M.

    It keeps the rows h (N, d) that it was given, not their sums: a file of it holds the data. When there are about M of
    them, a REAR of the same settings costs less and takes them over by `update(kernel.rows, kernel.labels)`.

    Args:
        the same as of `REAR`, but for flush_rows and keep_factor.

    Attributes:
        rows: (N, d) in `dtype`; labels: (N,) int64; call `flush` before reading either.
        counts, dropped: (T,) int64, as of `REAR`.
    """

    STATISTICS = ("rows", "labels", "counts", "dropped")

    def __init__(self, in_features: int, num_experts: int, expansion: int = 100000, **options: Any) -> None:
        super().__init__(in_features, num_experts, expansion, **options)
        self.rows = torch.zeros(0, in_features, dtype=self.dtype)
        self.labels = torch.zeros(0, dtype=torch.int64)
        self._waiting: list[tuple[Tensor, Tensor]] = []

    def _add(self, rows: Tensor, labels: Tensor) -> None:
        self._waiting.append((rows.clone(), labels.clone()))
        self.counts.scatter_add_(0, labels, torch.ones_like(labels))

    @torch.inference_mode(False)
    def flush(self) -> None:
        """Put the rows of all updates into `rows` and `labels`."""
        with self._lock:
            if self._waiting:
                parts = [(self.rows, self.labels), *self._waiting]
                self.rows, self.labels = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
                self._waiting = []

    def _fit(self) -> Tensor:
        rows = self.rows.shape[0]
        _memory.need("expansion", 2 * rows**2 * self.dtype.itemsize, self.rows.device)
        K, no_label = self.rows.new_zeros(rows, rows), self.rows.new_zeros(rows, 1)
        for panel in self._panels():
            gram_(K, no_label, panel.t(), self.labels.new_zeros(panel.shape[1]), precision=self.precision)
        experts = torch.arange(self.num_experts, device=K.device)
        dual, _ = _solve.solve(K, (self.labels[:, None] == experts).to(self.dtype), self.ridge)
        del K
        return torch.cat([panel.t() @ dual for panel in self._panels()])

    def _panels(self) -> Iterator[Tensor]:
        """φ (N, at most PANEL) of all rows, a few columns at a time, made anew whenever asked for."""
        R = self.projection
        how = {"activation": self.activation, "precision": self.precision}
        if self.k is not None:
            yield from self._winner_panels(self.k, how)
            return
        for begin in range(0, self.expansion, PANEL):
            columns = slice(begin, begin + PANEL)
            yield project(self.rows, R.values[columns], None if R.indices is None else R.indices[columns], **how)

    def _winner_panels(self, k: int, how: dict[str, Any]) -> Iterator[Tensor]:
        """The same where only k winners are kept: which columns win is known from whole rows alone."""
        R = self.projection
        winners, at = self.rows.new_empty(len(self.rows), k), self.labels.new_empty(len(self.rows), k)
        for begin in range(0, len(at), BLOCK):
            some = slice(begin, begin + BLOCK)
            winners[some], at[some] = winner_take_all(project(self.rows[some], R.values, R.indices, **how), k)
        for begin in range(0, self.expansion, PANEL):
            end = min(begin + PANEL, self.expansion)
            inside = (at >= begin) & (at < end)
            phi = self.rows.new_zeros(len(at), end - begin)
            # One that won elsewhere is 0, added to column 0.
            yield phi.scatter_add_(1, torch.where(inside, at - begin, 0), torch.where(inside, winners, 0))

    def _sum(self, group: Any) -> None:
        self.rows, self.labels = (distributed.gather_rows(t, group) for t in (self.rows, self.labels))
        super()._sum(group)

    def _merge(self, other: Any) -> None:
        self._waiting = [(other.rows.to(self.rows), other.labels.to(self.labels))]
        for name in self.BY_EXPERT:
            theirs = getattr(other, name)
            getattr(self, name)[: len(theirs)] += theirs.to(self.counts)
        self.flush()

    @torch.no_grad()
    def _load_statistics(self, *statistics: Tensor) -> None:
        rows, labels, counts, dropped = statistics
        _ops_check.dtype("rows", rows, _ops_check.ACCUMULATORS)
        _ops_check.shape("rows", rows, "N", self.in_features)
        for name, tensor, size in (
            ("labels", labels, len(rows)),
            ("counts", counts, "T"),
            ("dropped", dropped, len(counts)),
        ):
            _ops_check.dtype(name, tensor, (torch.int64,))
            _ops_check.shape(name, tensor, size)
        _ops_check.in_range("labels", labels, len(counts))
        if not torch.equal(torch.bincount(labels, minlength=len(counts)), counts):
            raise ValueError("counts must be how often each label occurs, got others")
        self._widen(len(counts))
        self.rows, self.labels, self._waiting = rows.to(self.rows, copy=True), labels.to(self.labels, copy=True), []
        for name, theirs in (("counts", counts), ("dropped", dropped)):
            getattr(self, name).zero_()[: len(theirs)] = theirs
        self._forget()

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        self.flush()
        return super()._apply(fn, recurse)
