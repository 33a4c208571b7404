"""REAR: a router that learns in one pass, by ridge regression over a random expansion, solved in closed form."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from flyk import _memory, distributed
from flyk._triangle import pack, rows, size, unpack_
from flyk.nn import _check, _solve
from flyk.nn._choose_ridge import choose
from flyk.nn._keep_dtype import keep_dtype
from flyk.nn._resolve import resolve, worth
from flyk.nn._router import Router
from flyk.ops import _check as _ops_check
from flyk.ops import expand_gram_
from flyk.ops.expand_gram_ import BLOCK

if TYPE_CHECKING:
    from typing_extensions import Self


class REAR(Router):
    """Random expanded analytic router, arXiv 2602.01976, Eq. 2 to 4.

    ``φ = act(h Rᵀ)`` with R (expansion, in_features) frozen; ``G += φᵀφ`` and ``Q[:, e] += Σ φ`` over the rows of
    expert e; ``U = (G + ridge I)⁻¹ Q``; the scores of a row are ``φ U``. G and Q are sums, so any order and any split
    of a stream give the same router up to rounding, `merge_` of two routers is the router of both streams, and
    `reduce` is that of all processes. It serves as a classifier just as well: experts are then classes.

    Rows are buffered and added `flush_rows` at a time, for G is large: at expansion 10000 it takes 381.5 MiB, and each
    addition reads and writes all of it. `G`, `Q`, `counts` and `dropped` are plain tensors and not buffers, because DDP
    overwrites the buffers of a process with those of the first, which would lose sums without a word.
    `state_dict` holds them all the same, of R the seed alone, and as `kind` what else R and φ are made of: a state of
    another kind is refused, and one of an earlier flyk, without `kind`, is missing it. They are statistics of the
    data: who has G and Q of few rows may learn something about those rows.

    Args:
        in_features: d.
        num_experts: T; `add_expert` adds one.
        expansion: M.
        ridge: λ, at least 0; read it against the mean of G's diagonal, about N E|h|² / 2 for N rows and "relu".
            `choose_ridge` finds one.
        kind, nnz: of R, see `RandomProjection`; its std is 1.
        activation: "relu" or "none".
        k: winners of largest magnitude kept of each φ, from 1 to M; None for all.
        seed: of R.
        dtype: float32 or float64, of G, Q and all that is computed; it stays when the module is cast, and h is
            converted to it.
        precision: of the products with R and of φᵀφ: "float32", "tf32", "bf16x3" or "bf16", see `flyk.ops.gram_`.
        nonfinite: what becomes of a row with NaN or inf, or too long for its norm to be a number of `dtype`: "refuse"
            raises and takes no row of the batch, "drop" leaves it out and counts it in `dropped`, "ignore" does not
            look, for where it is known that there are none. Looking reads h once; on an accelerator it waits for it.
        flush_rows: rows buffered.
        keep_factor: keep the Cholesky factor of the last solution, which takes as much memory as G. After a few more
            rows the next solution then takes a few conjugate gradient iterations, each a pass over G and the factor,
            in place of M³ / 3 operations; where they do not suffice the factor is made anew. Below M = 15 (T + 110) a
            new factor is faster, and none is kept.

    Attributes:
        G: (M, M), of which the lower triangle is meant; Q: (M, T); call `flush` before reading either.
        counts: (T,) int64, rows given to each expert, buffered ones included; dropped: (T,) int64, rows left out.

    Raises:
        ValueError, TypeError: an argument that does not fit, or more memory than there is.
    """

    STATISTICS = ("G", "Q", "counts", "dropped")
    BY_EXPERT = ("Q", "counts", "dropped")

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
        flush_rows: int = BLOCK,
        keep_factor: bool = False,
    ) -> None:
        how = {"kind": kind, "nnz": nnz, "activation": activation, "k": k, "seed": seed, "dtype": dtype}
        how |= {"precision": precision, "nonfinite": nonfinite, "ridge": ridge}
        super().__init__(in_features, num_experts, expansion, **how)
        self.flush_rows = _check.integer("flush_rows", flush_rows, 1)
        _memory.need("expansion", expansion**2 * dtype.itemsize)
        _memory.need("flush_rows", flush_rows * in_features * dtype.itemsize)
        self.G = torch.zeros(expansion, expansion, dtype=dtype)
        self.Q = torch.zeros(expansion, num_experts, dtype=dtype)
        self._rows = torch.zeros(flush_rows, in_features, dtype=dtype)
        self._labels = torch.zeros(flush_rows, dtype=torch.int64)
        self._filled = 0
        self.keep_factor = _check.flag("keep_factor", keep_factor)
        self._factor: Tensor | None = None  # of G as it was at the last solution or before
        self._warned = False  # that it took float64

    def _add(self, rows: Tensor, labels: Tensor) -> None:
        while rows.shape[0]:
            end = min(self._filled + rows.shape[0], self.flush_rows)
            taken = end - self._filled
            self._rows[self._filled : end].copy_(rows[:taken])
            self._labels[self._filled : end].copy_(labels[:taken])
            self._filled, some, rows, labels = end, labels[:taken], rows[taken:], labels[taken:]
            self.counts.scatter_add_(0, some, torch.ones_like(some))
            if end == self.flush_rows:
                self.flush()

    def flush(self) -> None:
        """Add the buffered rows to G and Q."""
        with self._lock:
            if self._filled:
                rows, labels = self._rows[: self._filled], self._labels[: self._filled]
                R, how = self.projection, {"activation": self.activation, "k": self.k, "precision": self.precision}
                expand_gram_(self.G, self.Q, rows, R.values, R.indices, labels, **how)
            self._filled = 0

    def _fit(self) -> Tensor:
        """U from the factor that was kept, which rows have only added to; where that does not do, from a new one."""
        if self._factor is not None and self._solution is not None:
            U = resolve(self.G, self.Q, self.ridge, self._factor, self._solution)
            if U is not None:
                return U
            self._factor = None  # its memory goes before the new one comes
        U, factor = _solve.solve(self.G, self.Q, self.ridge, warn=not self._warned)
        self._warned |= factor is None
        self._factor = factor if self.keep_factor and worth(self.expansion, self.num_experts) else None
        return U

    @torch.no_grad()
    def choose_ridge(self, ridges: Sequence[float] | None = None) -> float:
        """The λ of least generalised cross-validation score over the rows so far, from now on this router's.

        ``GCV(λ) = N |Y - ΦU|² / (N - tr Φ(G + λI)⁻¹Φᵀ)²`` (Golub, Heath and Wahba 1979, Eq. 1.4), Y being one-hot. It
        needs G, Q and N alone and so no rows held out, and no order of the stream can mislead it. Takes the
        eigenvalues and vectors of G in float64: about 10 M³ operations and 3 times the memory of a float64 G.

        Args:
            ridges: candidates above 0; None for 25 from 1e-8 to 1e4 times the mean of G's diagonal.

        Raises:
            ValueError: a candidate that does not fit, or no row so far.

        Warns:
            UserWarning: the best is the smallest or the largest candidate.
        """
        self.flush()
        self.ridge = choose(self.G, self.Q, self.counts, ridges)
        return self.ridge

    def _sum(self, group: Any) -> None:
        distributed.sum_lower_(self.G, group)
        super()._sum(group)

    def settings(self) -> dict[str, Any]:
        return super().settings() | {"flush_rows": self.flush_rows, "keep_factor": self.keep_factor}

    def _forget(self) -> None:
        super()._forget()
        self._factor = None

    def _stored(self) -> dict[str, Tensor]:
        return super()._stored() | {"G": pack(self.G)}

    def _restored(self, statistics: dict[str, Tensor]) -> list[Tensor]:
        _ops_check.dtype("G", statistics["G"], (self.dtype,))
        _ops_check.shape("G", statistics["G"], size(self.expansion))
        G = torch.zeros_like(self.G)
        unpack_(rows(G), statistics["G"])
        return super()._restored(statistics | {"G": G})

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        self.flush()
        self.G.tril_()  # what stands above the diagonal is unspecified, so a file need not carry it
        super()._save_to_state_dict(destination, prefix, keep_vars)

    @torch.no_grad()
    def _load_statistics(self, *statistics: Tensor) -> None:
        G, Q, counts, dropped = statistics
        _ops_check.dtype("G", G, _ops_check.ACCUMULATORS)
        _ops_check.shape("G", G, self.expansion, self.expansion)
        _ops_check.dtype("Q", Q, _ops_check.ACCUMULATORS)
        _ops_check.shape("Q", Q, self.expansion, "T")
        for name, tensor in (("counts", counts), ("dropped", dropped)):
            _ops_check.dtype(name, tensor, (torch.int64,))
            _ops_check.shape(name, tensor, Q.shape[1])
        for name, tensor in (("G", G), ("Q", Q)):
            if self.nonfinite != "ignore" and not tensor.isfinite().all():
                raise ValueError(f"{name} must be finite, got NaN or inf in it")
        self._replace(statistics)
        self._filled = 0

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)
        self._rows, self._labels = keep_dtype(fn)(self._rows), keep_dtype(fn)(self._labels)
        return self

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, G of {_memory.text(self.G.numel() * self.G.element_size())}"
