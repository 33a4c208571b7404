"""gram_: the whole product out of place for each batch, panels of the lower triangle in place, flyk."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from flyk.bench._case import FLOAT, Case, Floor, Inputs, Result, choose, normal

BATCH = 64  # rows in a batch of the published method
PANELS = 8
UNFUSED = "left out of quick runs: the library's products, with nothing to fuse"


def published(G: Tensor, Q: Tensor, phi: Tensor, labels: Tensor) -> Result:
    for rows, ids in zip(phi.split(BATCH), labels.split(BATCH), strict=True):
        G = G + rows.t() @ rows
        Q = Q + rows.t() @ F.one_hot(ids, Q.shape[1]).to(Q.dtype)
    return G, Q


def eager(G: Tensor, Q: Tensor, phi: Tensor, labels: Tensor) -> Result:
    add_panels(G, Q, phi, labels)
    return G, Q


def add_panels(G: Tensor, Q: Tensor, phi: Tensor, labels: Tensor) -> None:
    """What an expert adds to the statistics: eight panels of G's lower triangle, and Q by a small product."""
    step = -(-G.shape[0] // PANELS)
    for begin in range(0, G.shape[0], step):
        panel = slice(begin, begin + step)
        G[panel, : panel.stop].addmm_(phi[:, panel].t(), phi[:, : panel.stop])
    Q.addmm_(phi.t(), F.one_hot(labels, Q.shape[1]).to(Q.dtype))


def ours(ops, G: Tensor, Q: Tensor, phi: Tensor, labels: Tensor) -> Result:
    ops.gram_(G, Q, phi, labels)
    return G, Q


def floor(rows: int, m: int, classes: int) -> Floor:
    """The lower triangle of G read and written once, Q too, phi read once; rows m² flop for the triangle."""
    return Floor(4 * m * m + 2 * m * classes * FLOAT + rows * m * FLOAT, rows * m * m + rows * m)


def lower(result: Result, inputs: Inputs) -> tuple[Tensor, ...]:
    G, Q = result
    return G.tril_(), Q


def case(rows: int, m: int, classes: int = 10, *, share: int = 1, uncompiled: str = "") -> Case:
    def inputs(generator: torch.Generator) -> Inputs:
        return {
            "G": torch.zeros(m, m),
            "Q": torch.zeros(m, classes),
            "phi": normal(generator, rows, m).relu_(),
            "labels": choose(generator, classes, rows),
        }

    return Case(
        op="gram_",
        what="in place",
        sizes=f"{rows} rows, M {m}, {classes} classes",
        inputs=inputs,
        published=published,
        eager=eager,
        ours=ours,
        floor=floor(rows, m, classes),
        state=("G", "Q"),
        compared=lower,
        stream=("phi", "labels"),
        share=share,
        uncompiled=uncompiled,
    )


CASES = (case(1024, 10000, share=4),)
QUICK = (case(512, 1000, uncompiled=UNFUSED),)
