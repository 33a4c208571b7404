"""expand_gram_: REAR's update over a run of batches: each on its own as published, or buffered."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from flyk import reference
from flyk.bench._case import FLOAT, Case, Floor, Inputs, Result, choose, decided, frozen, normal
from flyk.bench._scaling import Curve
from flyk.bench._tune import Crossover
from flyk.bench.gram_ import BATCH, UNFUSED, add_panels, lower
from flyk.bench.gram_ import published as published_gram_
from flyk.ops.project import dense

BUFFER = 1024  # rows that the expert gathers before G is touched


def published(G: Tensor, Q: Tensor, h: Tensor, R: Tensor, labels: Tensor, k: int | None) -> Result:
    for rows, ids in zip(h.split(BATCH), labels.split(BATCH), strict=True):
        phi = torch.relu(rows @ R)
        if k is not None:
            winners = torch.topk(phi, k, dim=-1)[1]
            phi = phi * torch.zeros_like(phi).scatter_(-1, winners, 1.0)
        G, Q = published_gram_(G, Q, phi, ids)
    return G, Q


def eager(
    G: Tensor, Q: Tensor, h: Tensor, R: Tensor, columns: Tensor | None, values: Tensor, labels: Tensor, k: int | None
) -> Result:
    # The batches come one by one and are gathered first; so too below.
    for rows, ids in zip(torch.cat(h.split(BATCH)).split(BUFFER), labels.split(BUFFER), strict=True):
        if columns is None:
            phi = torch.mm(rows, R).relu_()
        else:
            phi = F.embedding_bag(columns, rows.t().contiguous(), mode="sum", per_sample_weights=values).t().relu_()
        if k is not None:
            winners, places = phi.topk(k, sorted=False)
            phi = phi.zero_().scatter_(-1, places, winners)
        add_panels(G, Q, phi, ids)
    return G, Q


def ours(
    ops,
    G: Tensor,
    Q: Tensor,
    h: Tensor,
    values: Tensor,
    indices: Tensor | None,
    labels: Tensor,
    k: int | None,
    precision: str,
) -> Result:
    rows = torch.cat(h.split(BATCH))
    precision = "float32" if ops is reference else precision  # the answer is the exact one
    ops.expand_gram_(G, Q, rows, values, indices, labels, activation="relu", k=k, precision=precision)
    return G, Q


def floor(rows: int, d: int, m: int, classes: int, k: int | None, nnz: int | None = None) -> Floor:
    """h and R read once, the lower triangle of G and Q read and written once. Per row 2 d m flop to expand (2 nnz m
    where R has nnz entries a row) and m² for the triangle, or k² for k winners.
    """
    active = m if k is None else k
    matrix, entries = (m * d * FLOAT, d) if nnz is None else (m * nnz * 2 * FLOAT, nnz)
    moved = rows * d * FLOAT + matrix + 4 * m * m + 2 * m * classes * FLOAT
    return Floor(moved, rows * (2 * entries * m + active * active + active))


def case(
    batches: int,
    d: int,
    m: int,
    k: int | None = None,
    nnz: int | None = None,
    classes: int = 10,
    *,
    precision: str = "float32",
    share: int = 1,
    uncompiled: str = "",
) -> Case:
    rows = batches * BATCH

    def inputs(generator: torch.Generator) -> Inputs:
        values, indices = frozen(generator, m, d, nnz)
        R = dense(values, indices, d).t().contiguous()
        h = normal(generator, rows, d)
        if k is not None:
            h = torch.cat([decided(part, (part.double() @ R.double()).relu(), k) for part in h.split(BUFFER)])
        return {
            "G": torch.zeros(m, m),
            "Q": torch.zeros(m, classes),
            "h": h,
            "values": values,
            "indices": indices,
            "columns": None if indices is None else indices.long(),
            "R": R,
            "labels": choose(generator, classes, rows),
            "k": k,
            "precision": precision,
        }

    return Case(
        op="expand_gram_",
        what=("all active" if k is None else "k winners") + (f", {precision}" * (precision != "float32")),
        sizes=f"{batches} batches of {BATCH}, {d} to {m}"
        + (f", nnz {nnz}" if nnz else "")
        + ("" if k is None else f", k {k}"),
        inputs=inputs,
        published=published,
        eager=eager,
        ours=ours,
        floor=floor(rows, d, m, classes, k, nnz),
        state=("G", "Q"),
        compared=lower,
        stream=("h", "labels"),
        share=share,
        uncompiled=uncompiled,
        bound=5e-3 if precision == "bf16" else 1e-5,
    )


CASES = (
    case(64, 768, 10000, share=16),
    case(64, 768, 10000, precision="bf16", share=16),
    case(64, 768, 10000, precision="bf16x3", share=16),
    case(64, 768, 10000, k=100, share=16),
    case(64, 768, 10000, k=500, share=16),
    case(64, 768, 10000, k=100, nnz=8, share=16),
)
QUICK = (
    case(8, 768, 1000, uncompiled=UNFUSED),
    case(8, 768, 1000, precision="bf16x3", uncompiled=UNFUSED),
    case(8, 768, 1000, k=50, uncompiled=UNFUSED),
)
SCALING = (
    Curve("batches", (1, 4, 16, 64), {"d": 768, "m": 2000}),
    Curve("m", (500, 1000, 2000, 4000), {"batches": 16, "d": 768}),
    Curve("k", (10, 40, 160, 640), {"batches": 16, "d": 768, "m": 2000}),
)


def winners(share: float) -> Case:
    """A short stream in which this share of the 10000 entries wins."""
    return case(8, 64, 10000, k=round(share * 10000))


CROSSOVERS = (
    Crossover("scatter_density", (0.005, 0.01, 0.02, 0.05, 0.1), winners),  # then the winners' own panels
    Crossover("winner_density", (0.05, 0.1, 0.2, 0.35, 0.5), winners),  # then the panels of a GEMM
)
