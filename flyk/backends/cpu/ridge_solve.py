"""ridge_solve on the CPU: LAPACK's Cholesky on one copy of G."""

from __future__ import annotations

from torch import Tensor

from flyk.ops.ridge_solve import factor, substitute

SERVED = "LAPACK's Cholesky, in place"


def ridge_solve(G: Tensor, Q: Tensor, ridge: float) -> Tensor:
    return substitute(factor(G, ridge), Q).contiguous()
