"""ridge_solve: LU of G + ridge I as published, Cholesky, flyk."""

from __future__ import annotations

import torch
from torch import Tensor

from flyk.bench._case import FLOAT, Case, Floor, Inputs, Result, frozen, normal

ROWS, FEATURES = 2048, 768  # of the expanded features whose Gram matrix is solved for


def published(G: Tensor, Q: Tensor, ridge: float) -> Result:
    return torch.linalg.solve(G + ridge * torch.eye(G.shape[0], device=G.device), Q)


def eager(G: Tensor, Q: Tensor, ridge: float) -> Result:
    shifted = G.clone()
    shifted.diagonal().add_(ridge)
    return torch.cholesky_solve(Q, torch.linalg.cholesky(shifted))


def ours(ops, G: Tensor, Q: Tensor, ridge: float) -> Result:
    return ops.ridge_solve(G, Q, ridge)


def floor(m: int, targets: int) -> Floor:
    """The lower triangle of G and Q read, U written; m³/3 flop for the factor, 2 m² a target to use it."""
    return Floor(m * m * FLOAT // 2 + 2 * m * targets * FLOAT, m**3 // 3 + 2 * m * m * targets)


def case(m: int, targets: int = 10, ridge: float = 1e4, *, uncompiled: str = "") -> Case:
    def inputs(generator: torch.Generator) -> Inputs:
        values, _ = frozen(generator, m, FEATURES, None)
        phi = (normal(generator, ROWS, FEATURES) @ values.t()).relu_()
        return {"G": phi.t() @ phi, "Q": phi.t() @ normal(generator, ROWS, targets), "ridge": ridge}

    return Case(
        op="ridge_solve",
        what="factor and solve",
        sizes=f"M {m}, {targets} targets",
        inputs=inputs,
        published=published,
        eager=eager,
        ours=ours,
        floor=floor(m, targets),
        uncompiled=uncompiled,
        bound=1e-2,  # float32 on a matrix of condition 1e5: REAR's own ridge on features of a ViT's scale
    )


CASES = (case(10000),)
QUICK = (case(1000, uncompiled="left out of quick runs: LAPACK's factor, with nothing to fuse"),)
