"""A ridge regression solved again after more rows: conjugate gradients, preconditioned by the factor from before."""

from __future__ import annotations

import torch
from torch import Tensor

from flyk.ops.ridge_solve import substitute

PANEL = 128  # rows of G multiplied at once, each time both as they stand and transposed
LIMIT = 12  # iterations; at M = 10000 this many cost less than half of a new factor


def resolve(G: Tensor, Q: Tensor, ridge: float, F: Tensor, start: Tensor) -> Tensor | None:
    """``U = (G + ridge I)⁻¹ Q``, or None where `LIMIT` iterations do not bring it to what a new factor would give.

    Hestenes and Stiefel's method on each column, preconditioned by ``A₀ = Fᵀ F`` of an earlier, smaller G. Rows add to
    A = G + ridge I a positive semidefinite matrix, so for a residual r the energy of the error, rᵀ A⁻¹ r, is at most
    rᵀ A₀⁻¹ r, which each iteration computes: it stops when that is M eps² of the energy of U, Uᵀ Q. An iteration takes
    4 M² T operations and reads the lower triangle of G and twice that of F; of memory it takes a few (M, T).

    Args:
        G, Q: (M, M), whose lower triangle is the truth, and (M, T).
        F: upper triangular (M, M).
        start: (M, T), a guess at U.
    """
    # All that follows is transposed, (T, M): products with rows of G are fastest so.
    U = start.t().clone(memory_format=torch.contiguous_format)
    residual = Q.t() - _times(U, G, ridge)
    direction, before = torch.zeros_like(U), Q.new_ones(Q.shape[1], 1)
    for _ in range(LIMIT):
        z = substitute(F, residual.t()).t()
        energy = (residual * z).sum(1, keepdim=True)
        allowed = G.shape[0] * torch.finfo(G.dtype).eps ** 2 * (U * Q.t()).sum(1, keepdim=True)
        open_ = ~(energy <= allowed)  # NaN stays open
        if not open_.any():
            return U.t().contiguous()
        direction = z + torch.where(open_, energy / before, 0) * direction
        product = _times(direction, G, ridge)
        step = torch.where(open_, energy / (direction * product).sum(1, keepdim=True), 0)
        U += step * direction
        residual -= step * product
        before = energy
    return None


def _times(x: Tensor, G: Tensor, ridge: float) -> Tensor:
    """``x (G + ridge I)`` for x (T, M), from the lower triangle of G."""
    y = x * ridge
    for begin in range(0, G.shape[0], PANEL):
        rows = slice(begin, begin + PANEL)
        square, left = G[rows, rows], G[rows, :begin]
        y[:, rows].addmm_(x[:, rows], square.tril().t()).addmm_(x[:, rows], square.tril(-1))
        y[:, rows].addmm_(x[:, :begin], left.t())
        y[:, :begin].addmm_(x[:, rows], left)
    return y
