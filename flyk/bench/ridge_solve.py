"""ridge_solve: LU of G + ridge I as published, Cholesky, flyk; and REAR's solution again after more rows."""

from __future__ import annotations

import torch
from torch import Tensor

from flyk import reference
from flyk.bench._case import FLOAT, Case, Floor, Inputs, Result, choose, frozen, normal
from flyk.nn._resolve import resolve, worth
from flyk.ops import expand_gram_
from flyk.ops.ridge_solve import factor, substitute

ROWS, FEATURES = 2048, 768  # of the expanded features whose Gram matrix is solved for
MORE = 1000  # rows after which it is solved again
UNFUSED = "left out: LAPACK's factor, with nothing to fuse"


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


def ours_again(ops, G: Tensor, Q: Tensor, ridge: float, F: Tensor, start: Tensor) -> Result:
    """What a REAR with keep_factor does; F and start are what it kept."""
    again = resolve(G, Q, ridge, F, start) if ops is not reference and worth(*Q.shape) else None
    return ops.ridge_solve(G, Q, ridge) if again is None else again


def floor_again(m: int, targets: int) -> Floor:
    """The lower triangle of G and the factor read, Q and the old U too, U written; one step of refinement a target."""
    return Floor(m * m * FLOAT + 3 * m * targets * FLOAT, 4 * m * m * targets)


def case_again(m: int, rows: int, targets: int = 10, ridge: float = 1e4) -> Case:
    def inputs(generator: torch.Generator) -> Inputs:
        values, _ = frozen(generator, m, FEATURES, None)
        labels, centres = choose(generator, targets, rows + MORE), normal(generator, targets, FEATURES)
        h = normal(generator, rows + MORE, FEATURES).add_(centres[labels])
        G, Q = torch.zeros(m, m), torch.zeros(m, targets)
        expand_gram_(G, Q, h[:rows], values, None, labels[:rows], activation="relu")
        F = factor(G, ridge)
        start = substitute(F, Q).contiguous()
        expand_gram_(G, Q, h[rows:], values, None, labels[rows:], activation="relu")
        G = G.tril_() + G.tril(-1).t()  # the published rival reads all of it
        return {"G": G, "Q": Q, "ridge": ridge, "F": F, "start": start}

    return Case(
        op="ridge_solve",
        what=f"again after {MORE} rows",
        sizes=f"M {m}, {rows} rows before, {targets} targets",
        inputs=inputs,
        published=published,
        eager=eager,
        ours=ours_again,
        floor=floor_again(m, targets),
        uncompiled=UNFUSED,
        bound=1e-2,
    )


CASES = (case(10000), case_again(10000, 20000))
QUICK = (case(1000, uncompiled=UNFUSED), case_again(2000, 16000))
