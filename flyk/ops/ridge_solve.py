"""ridge_solve: ridge regression in closed form, from its statistics."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from flyk.ops import _check
from flyk.ops._operator import Operator


def ridge_solve(G: Tensor, Q: Tensor, ridge: float) -> Tensor:
    """``U = (G + ridge I)⁻¹ Q`` by Cholesky of the lower triangle of G.

    REAR's router, arXiv 2602.01976, Eq. 4. What stands above the diagonal of G is not read.

    Args:
        G: (M, M) float32 or float64, any strides; its lower triangle is the truth.
        Q: (M, T) in G's dtype.
        ridge: λ >= 0, in units of G's diagonal: read it against trace(G) / M.

    Returns:
        U: (M, T) in G's dtype. Differentiable in G (in its lower triangle) and Q.

    Raises:
        ValueError: G + ridge I is not positive definite, or ridge is negative or not finite.
        ValueError, TypeError: a shape, dtype or device that does not fit.
    """
    return OPERATOR(G, Q, ridge)


def check(G: Tensor, Q: Tensor, ridge: float) -> None:
    _check.dtype("G", G, _check.ACCUMULATORS)
    _check.shape("G", G, "M", "M")
    _check.shape("G", G, G.shape[0], G.shape[0])
    _check.shape("Q", Q, G.shape[0], "T")
    _check.alike(G=G, Q=Q)
    if not (math.isfinite(ridge) and ridge >= 0):
        raise ValueError(f"ridge must be finite and at least 0, got {ridge}")


def reference(G: Tensor, Q: Tensor, ridge: float) -> Tensor:
    shifted = G.clone(memory_format=torch.contiguous_format)
    shifted.diagonal().add_(ridge)
    factor, fault = torch.linalg.cholesky_ex(shifted)
    check_factor(fault, ridge)
    return torch.cholesky_solve(Q, factor).contiguous()


def check_factor(fault: Tensor, ridge: float) -> None:
    if int(fault):
        raise ValueError(f"ridge must make G + ridge I positive definite, got {ridge}: pivot {int(fault)} is not")


def factor(G: Tensor, ridge: float, dtype: torch.dtype | None = None) -> Tensor:
    """The upper triangular F of ``G + ridge I = Fᵀ F``, made in one copy of G, in G's dtype or another."""
    # The transpose of a row-major copy is what LAPACK wants, so it is factored in place: one copy of G where the
    # reference makes three.
    F = G.to(dtype or G.dtype, copy=True, memory_format=torch.contiguous_format).mT
    F.diagonal().add_(ridge)
    fault = torch.empty((), dtype=torch.int32, device=G.device)
    torch.linalg.cholesky_ex(F, upper=True, out=(F, fault))
    check_factor(fault, ridge)
    return F


def substitute(F: Tensor, Q: Tensor) -> Tensor:
    """``(Fᵀ F)⁻¹ Q``, of any strides."""
    return torch.linalg.solve_triangular(F, torch.linalg.solve_triangular(F.mT, Q, upper=False), upper=True)


def fake(G: Tensor, Q: Tensor, ridge: float) -> Tensor:
    return torch.empty_like(Q, memory_format=torch.contiguous_format)


def setup_context(ctx, inputs, output) -> None:
    G, _, ctx.ridge = inputs
    ctx.save_for_backward(G, output)


def backward(ctx, grad: Tensor):
    # U = S⁻¹ Q gives dQ = S⁻¹ dU and dS = -dQ Uᵀ; an entry of the lower triangle stands at two places of S.
    G, U = ctx.saved_tensors
    grad_Q = ridge_solve(G, grad.contiguous(), ctx.ridge)
    grad_G = None
    if ctx.needs_input_grad[0]:
        full = -(grad_Q @ U.t())
        grad_G = (full + full.t()).tril(-1) + torch.diag(full.diagonal())
    return grad_G, grad_Q if ctx.needs_input_grad[1] else None, None


OPERATOR = Operator(
    "ridge_solve(Tensor G, Tensor Q, float ridge) -> Tensor",
    reference=reference,
    check=check,
    fake=fake,
    setup_context=setup_context,
    backward=backward,
    autocast=("G", "Q"),
    autocast_dtype=torch.float32,
)
