"""ShardedREAR: REAR whose G is dealt out by rows to the ranks of torch.distributed."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from flyk import _memory, distributed
from flyk.nn import _check
from flyk.nn._router import Router
from flyk.ops import _check as _ops_check
from flyk.ops.expand_gram_ import BLOCK
from flyk.ops.gram_ import add_labels
from flyk.ops.ridge_solve import factor, substitute

PANEL = 64  # rows of G turned into float64 at once


class ShardedREAR(Router):
    """`REAR` for an expansion whose G no device can hold: each of W ranks has M / W of its rows.

    Every rank gives `update` rows of its own, any number of them; all are sent to all (d numbers a row), and each rank
    adds ``φ[:, own]ᵀ φ`` to its rows of G. U is found by conjugate gradients on all columns at once, in float64
    whatever G's dtype, preconditioned by each rank's own block of G + λI; an iteration sends U's size to all ranks.
    `update`, `solve`, and `forward` after an update are collective: every rank must call them.

    Args:
        the same as of `REAR`, but for flush_rows and keep_factor: G is read and written at each update, so give large
            batches; and
        group: of torch.distributed.
        tolerance: of the error of the scores on the rows seen, relative, at which the iteration ends.
        limit: iterations at most.

    Attributes:
        G: (m, M), Q: (m, T), rows `begin` to `end` of REAR's, both triangles; counts, dropped: (T,), of all ranks.
    """

    STATISTICS = ("G", "Q", "counts", "dropped")
    BY_EXPERT = ("Q", "counts", "dropped")

    def __init__(
        self,
        in_features: int,
        num_experts: int,
        expansion: int = 100000,
        *,
        group: Any = None,
        tolerance: float = 1e-8,
        limit: int = 1000,
        **options: Any,
    ) -> None:
        super().__init__(in_features, num_experts, expansion, **options)
        self.group, self.tolerance = group, _check.number("tolerance", tolerance, 0, 1)
        self.limit = _check.integer("limit", limit, 0)
        own = torch.arange(expansion, device="cpu").tensor_split(distributed.ranks(group))[distributed.rank(group)]
        self.begin = int(own[0]) if len(own) else expansion
        self.end = self.begin + len(own)
        _memory.need("expansion", len(own) * expansion * self.dtype.itemsize)
        self.G = torch.zeros(len(own), expansion, dtype=self.dtype)
        self.Q = torch.zeros(len(own), num_experts, dtype=self.dtype)
        self.iterations = 0  # of the last solution
        self._reduced = True  # what each rank holds is of the rows of all

    @torch.no_grad()
    def update(self, h: Tensor, expert: int | Tensor) -> None:
        """Learn from the rows of all ranks; see `Router.update`.

        Raises:
            ValueError, TypeError: on the rank whose arguments do not fit, or on all for a row that is not finite, whose
                number is then among the rows of all ranks; nothing has changed on any.
            RuntimeError: on the other ranks.
        """
        fault, rows, labels = None, None, None
        try:
            self._check_rows(h)
            rows, labels = _ops_check.rows(h.detach()).to(self.dtype), self._check_labels(h, expert)
        except Exception as error:  # whatever it is, the other ranks must not wait for this one
            fault = error
        faults = distributed.sum_(torch.tensor(int(fault is not None), device=self.counts.device), self.group)
        if fault is not None:
            raise fault
        if faults or rows is None or labels is None:
            raise RuntimeError("update must be given rows that fit on every rank, got others on another one")
        super().update(distributed.gather_rows(rows, self.group), distributed.gather_rows(labels, self.group))

    def _add(self, rows: Tensor, labels: Tensor) -> None:
        for h, ids in zip(rows.split(BLOCK), labels.split(BLOCK), strict=True):
            phi = self._expand(h)
            own = phi[:, self.begin : self.end]
            self.G.addmm_(own.t(), phi)
            add_labels(self.Q, own, ids)
            self.counts.scatter_add_(0, ids, torch.ones_like(ids))

    def _fit(self) -> Tensor:
        Q, own = self.Q.double(), self.G[:, self.begin : self.end]
        F = factor(own, self.ridge, torch.float64)
        U, self.iterations, left = distributed.conjugate_gradients(
            self._times,
            lambda x: substitute(F, x),
            Q,
            tolerance=self.tolerance,
            limit=self.limit,
            group=self.group,
        )
        if not left <= self.tolerance:
            raise ValueError(
                f"ridge must be large enough for {self.limit} iterations to leave {self.tolerance:g} of the error, "
                f"got {self.ridge}, which leaves {left:.1g}"
            )
        return distributed.gather_rows(U, self.group).to(self.dtype)

    def _times(self, x: Tensor) -> Tensor:
        """This rank's rows of (G + λI) x, of this rank's rows of x (m, T) in float64."""
        whole, y = distributed.gather_rows(x, self.group), self.ridge * x
        for begin in range(0, len(y), PANEL):
            rows = slice(begin, begin + PANEL)
            y[rows].addmm_(self.G[rows].double(), whole)
        return y

    def _kind(self) -> dict[str, Any]:
        return super()._kind() | {"begin": self.begin, "end": self.end}

    def settings(self) -> dict[str, Any]:
        return super().settings() | {"tolerance": self.tolerance, "limit": self.limit}

    @torch.no_grad()
    def _load_statistics(self, *statistics: Tensor) -> None:
        G, Q, counts, dropped = statistics
        _ops_check.dtype("G", G, _ops_check.ACCUMULATORS)
        _ops_check.shape("G", G, *self.G.shape)
        _ops_check.dtype("Q", Q, _ops_check.ACCUMULATORS)
        _ops_check.shape("Q", Q, self.Q.shape[0], "T")
        for name, tensor in (("counts", counts), ("dropped", dropped)):
            _ops_check.dtype(name, tensor, (torch.int64,))
            _ops_check.shape(name, tensor, Q.shape[1])
        self._replace(statistics)
        self._reduced = True
