"""winner_take_all: torch.topk of the magnitudes and a gather, which an expert cannot better in eager PyTorch, flyk."""

from __future__ import annotations

import torch
from torch import Tensor

from flyk.bench._case import FLOAT, INT64, Case, Floor, Inputs, Result, decided, normal, placed
from flyk.bench._scaling import Curve


def published(y: Tensor, k: int) -> Result:
    indices = torch.topk(torch.abs(y), k, dim=-1)[1]
    return torch.gather(y, -1, indices), indices


# Sorting whole rows, even of 32, or an unsorted topk whose winners are sorted after, took longer.
eager = published


def ours(ops, y: Tensor, k: int) -> Result:
    return ops.winner_take_all(y, k)


def floor(rows: int, n: int, k: int) -> Floor:
    """Each row read once, winners and indices written once."""
    return Floor(rows * (n * FLOAT + k * (FLOAT + INT64)), 0)


def compared(result: Result, inputs: Inputs) -> tuple[Tensor, ...]:
    winners, indices = result
    return placed(winners, indices, inputs["y"].shape[-1])


def case(rows: int, n: int, k: int) -> Case:
    def inputs(generator: torch.Generator) -> Inputs:
        y = normal(generator, rows, n)
        return {"y": decided(y, y.double().abs(), k), "k": k}

    return Case(
        op="winner_take_all",
        what="by magnitude",
        sizes=f"{rows} rows of {n}, k {k}",
        inputs=inputs,
        published=published,
        eager=eager,
        ours=ours,
        floor=floor(rows, n, k),
        compared=compared,
    )


CASES = (
    case(256, 10000, 500),
    case(256, 10000, 100),
    case(4096, 1024, 32),
    case(256, 32768, 64),
    case(16384, 32, 8),
)
QUICK = (case(256, 2000, 100),)
SCALING = (
    Curve("n", (256, 1024, 4096, 16384, 65536), {"rows": 256, "k": 64}),
    Curve("k", (8, 32, 128, 512, 2048), {"rows": 256, "n": 10000}),
    Curve("rows", (1, 16, 256, 4096), {"n": 1024, "k": 32}),
)
