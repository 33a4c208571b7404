"""ridge_solve on the CPU: LAPACK's Cholesky on one copy of G."""

from __future__ import annotations

import torch
from torch import Tensor

from flyk.ops.ridge_solve import check_factor

SERVED = "LAPACK's Cholesky, in place"


def ridge_solve(G: Tensor, Q: Tensor, ridge: float) -> Tensor:
    # The transpose of a row-major copy is what LAPACK wants, so it is factored in place: one copy of G where the
    # reference makes three.
    factor = G.clone(memory_format=torch.contiguous_format).mT
    factor.diagonal().add_(ridge)
    fault = torch.empty((), dtype=torch.int32)
    torch.linalg.cholesky_ex(factor, upper=True, out=(factor, fault))
    check_factor(fault, ridge)
    half = torch.linalg.solve_triangular(factor.mT, Q, upper=False)
    return torch.linalg.solve_triangular(factor, half, upper=True).contiguous()
