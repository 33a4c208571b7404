"""masked_cross_entropy: an (N, C) mask of -inf as published, the columns of the classes present, flyk."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from flyk.bench._case import FLOAT, INT64, Case, Floor, Inputs, Result, choose, normal


def published(logits: Tensor, target: Tensor) -> Result:
    mask = torch.full_like(logits, -torch.inf)
    mask[:, target.unique()] = 0
    return F.cross_entropy(logits + mask, target)


def eager(logits: Tensor, target: Tensor) -> Result:
    classes, place = target.unique(return_inverse=True)
    return F.cross_entropy(logits.index_select(1, classes), place)


def ours(ops, logits: Tensor, target: Tensor) -> Result:
    return ops.masked_cross_entropy(logits, target)


def floor(rows: int, classes: int, present: int, backward: bool) -> Floor:
    """The present columns and the targets read once; backward, read again and the whole gradient written."""
    moved = rows * present * FLOAT + rows * INT64
    if backward:
        moved += rows * present * FLOAT + rows * INT64 + rows * classes * FLOAT
    return Floor(moved, 0)


def case(rows: int, classes: int, present: int, *, backward: bool = False) -> Case:
    def inputs(generator: torch.Generator) -> Inputs:
        kinds = torch.randperm(classes, generator=generator)[:present]
        each = torch.cat((torch.arange(present), choose(generator, present, rows - present)))
        return {"logits": normal(generator, rows, classes), "target": kinds[each], "grad": torch.ones(())}

    return Case(
        op="masked_cross_entropy",
        what="forward and backward" if backward else "forward",
        sizes=f"{rows} rows, {present} of {classes} classes present",
        inputs=inputs,
        published=published,
        eager=eager,
        ours=ours,
        floor=floor(rows, classes, present, backward),
        gradients=("logits",) if backward else (),
    )


CASES = (case(256, 1000, 40), case(256, 1000, 40, backward=True))
QUICK = CASES[1:]
