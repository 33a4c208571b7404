"""Ridge regression from its statistics, checked by its residual, and in float64 where its dtype does not do."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from flyk.nn._resolve import times
from flyk.ops.ridge_solve import factor, substitute

SMALL = 1e-3  # a last correction, beside U
TOLD = (
    "ridge is small for statistics in float32, beside the largest eigenvalues of G; solved in float64, which takes "
    "twice the memory and time: a larger ridge or REAR(dtype=torch.float64) is more exact"
)


def solve(G: Tensor, Q: Tensor, ridge: float, *, warn: bool = True) -> tuple[Tensor, Tensor | None]:
    """``U = (G + ridge I)⁻¹ Q`` by Cholesky, and its factor; (M, T) and upper triangular (M, M) in G's dtype.

    U is refined once with a residual in float64, which tells how far off it was; where it was far, until it is not.
    Where that does not converge, or G + ridge I is not positive definite in float32, it is factored in float64, the
    factor is None, and a warning may say so. What refinement adds is a pass over G and one over the factor.

    Raises:
        ValueError: G + ridge I is singular, or not positive definite, even in float64: ridge is too small, or G not
            finite.
    """
    for dtype in dict.fromkeys((G.dtype, torch.float64)):
        try:
            F = factor(G, ridge, dtype)
        except ValueError:
            continue
        U = None if _singular(F) else _refined(G, Q, ridge, F)
        if U is not None and dtype == G.dtype:
            return U, F
        if U is not None:
            if warn:
                warnings.warn(TOLD, stacklevel=6)
            return U, None
    raise ValueError(
        f"ridge must make G + ridge I positive definite, got {ridge}; about {_enough(G):.2g} would, or more rows"
    )


def _singular(F: Tensor) -> bool:
    """Whether the factor shows a condition number that its dtype can't hold: pivots are between A's eigenvalues."""
    pivots = F.diagonal().square()
    return bool(pivots.numel() and pivots.min() <= 8 * torch.finfo(F.dtype).eps * pivots.max())


def _refined(G: Tensor, Q: Tensor, ridge: float, F: Tensor) -> Tensor | None:
    """U by the factor F and refinement (Wilkinson), or None where that does not converge.

    A correction is about as large as the error that it mends, and the next one smaller by the same ratio: one whose
    norm is within SMALL of U's leaves about SMALL² of it. (A residual small beside Q tells nothing: Q has most of its
    length along the largest eigenvectors of G.)
    """
    U, before = substitute(F, Q.to(F.dtype)).double(), None
    while True:
        residual = Q.double() - times(U.t(), G, ridge).t()
        correction = substitute(F, residual.to(F.dtype)).double()
        U += correction
        size = correction.norm(dim=0)
        if (size <= SMALL * U.norm(dim=0)).all():
            return U.to(G.dtype).contiguous()
        if not (before is None or (size <= before / 2).all()) or not size.isfinite().all():
            return None
        before = size


def _enough(G: Tensor) -> float:
    """A ridge that does: above the negative eigenvalues that rounding may have left, and refinement converges."""
    unit = max(16 * torch.finfo(G.dtype).eps, 1e4 * torch.finfo(torch.float64).eps)
    return unit * float(G.diagonal().double().sum())
