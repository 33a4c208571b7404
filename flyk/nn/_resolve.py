"""A ridge regression solved again after more rows: conjugate gradients, preconditioned by the factor from before."""

from __future__ import annotations

from itertools import count

import torch
from torch import Tensor

from flyk.ops.ridge_solve import substitute

PANEL = 64  # rows of G multiplied at once, each time both as they stand and transposed
LIMIT = 8  # iterations at most in float32, in float64 for twice the digits twice as many
TRIAL = 2  # those after which it is asked whether that many will do


def worth(size: int, targets: int) -> bool:
    """Whether `resolve` is the faster way for G of this size.

    Its iterations cost a fixed share for each row of G and M² T operations, a new factor M³ / 3. Measured on two cores
    with AVX-512 after eight times as many rows as M: for 10 targets they meet at M 1800, for 100 at 3100.
    """
    return size >= 15 * (targets + 110)


def resolve(G: Tensor, Q: Tensor, ridge: float, F: Tensor, start: Tensor) -> Tensor | None:
    """``U = (G + ridge I)⁻¹ Q`` about as exact as by a new factor without refinement, or None.

    None where `LIMIT` iterations won't do. Hestenes and Stiefel's method on each column, preconditioned by
    ``A₀ = Fᵀ F`` of an earlier, smaller G. Rows that resemble those before leave A₀⁻¹ A near the identity, and a few
    iterations do. Rows in directions that A₀ had at the ridge alone, as where there were fewer than M, take about one
    iteration each: after `TRIAL` the residuals tell. An iteration takes 6 M² T operations and reads the lower triangle
    of G once and that of F twice; of memory it takes a few (M, T).

    Args:
        G, Q: (M, M), whose lower triangle is the truth, and (M, T).
        F: upper triangular (M, M).
        start: (M, T), a guess at U.
    """
    # All that follows is transposed, (T, M): products with rows of G are fastest so.
    U = start.t().clone(memory_format=torch.contiguous_format)
    residual = Q.t() - times(U, G, ridge)
    # Cholesky leaves in each entry of A an error of about eps times A's diagonal, of either sign, so in U's residual
    # sqrt(M) of it for each unit of U. (Measured: 1 to 7 times that; half of what is allowed here is G's own product.)
    allowance = 2 * torch.finfo(G.dtype).eps * G.shape[0] ** 0.5 * (G.diagonal().mean() + ridge)
    direction, before = torch.zeros_like(U), Q.new_ones(Q.shape[1], 1)
    first, limit = residual.norm(dim=1, keepdim=True), LIMIT * G.element_size() // 4
    for i in count():
        size, allowed = residual.norm(dim=1, keepdim=True), allowance * U.norm(dim=1, keepdim=True)
        open_ = ~(size <= allowed)  # NaN stays open
        if not open_.any():
            return U.t().contiguous()
        if i >= TRIAL and not (size * (size / first) ** (limit / i - 1) <= allowed)[open_].all():
            return None
        z = substitute(F, residual.t()).t()
        energy = (residual * z).sum(1, keepdim=True)
        direction = z + torch.where(open_, energy / before, 0) * direction
        product = times(direction, G, ridge)
        step = torch.where(open_, energy / (direction * product).sum(1, keepdim=True), 0)
        U += step * direction
        residual -= step * product
        before = energy


def times(x: Tensor, G: Tensor, ridge: float) -> Tensor:
    """``x (G + ridge I)`` in the dtype of x (T, M), from the lower triangle of G."""
    y = x * ridge
    for begin in range(0, G.shape[0], PANEL):
        rows = slice(begin, begin + PANEL)
        square, left = G[rows, rows].to(x.dtype), G[rows, :begin].to(x.dtype)
        y[:, rows].addmm_(x[:, rows], square.tril().t()).addmm_(x[:, rows], square.tril(-1))
        y[:, rows].addmm_(x[:, :begin], left.t())
        y[:, :begin].addmm_(x[:, rows], left)
    return y
