"""ema_: a product and a sum out of place for each head as published, one interpolation in place, flyk."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from flyk.bench._case import FLOAT, Case, Floor, Inputs, Result, normal
from flyk.bench._scaling import Curve

DECAYS = (0.9, 0.99)


def published(bank: Tensor, online: Tensor, decays: Sequence[float]) -> Result:
    return tuple(decay * head + (1 - decay) * online for head, decay in zip(bank, decays, strict=True))


def eager(bank: Tensor, online: Tensor, weights: Tensor) -> Result:
    return bank.lerp_(online, weights)


def ours(ops, bank: Tensor, online: Tensor, decays: Sequence[float]) -> Result:
    ops.ema_(bank, online, decays)
    return bank


def floor(heads: int, entries: int) -> Floor:
    """The bank read and written once, the online head read once; a decay is a difference, a product and a sum."""
    return Floor((2 * heads + 1) * entries * FLOAT, 3 * heads * entries)


def stacked(result: Result, inputs: Inputs) -> tuple[Tensor, ...]:
    return (torch.stack(tuple(result)),)


def case(classes: int, d: int) -> Case:
    def inputs(generator: torch.Generator) -> Inputs:
        return {
            "bank": normal(generator, len(DECAYS), classes, d),
            "online": normal(generator, classes, d),
            "decays": DECAYS,
            "weights": 1 - torch.tensor(DECAYS, dtype=torch.float64).float().view(-1, 1, 1),
        }

    return Case(
        op="ema_",
        what="in place",
        sizes=f"{len(DECAYS)} heads of {classes} x {d}",
        inputs=inputs,
        published=published,
        eager=eager,
        ours=ours,
        floor=floor(len(DECAYS), classes * d),
        state=("bank",),
        compared=stacked,
    )


CASES = (case(200, 768), case(1000, 1024))
QUICK = CASES[:1]
SCALING = (Curve("classes", (10, 100, 1000, 10000), {"d": 768}),)
