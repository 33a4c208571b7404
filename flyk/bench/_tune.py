"""Crossovers: the size at which one way of an operator's work overtakes another, found by timing both."""

from __future__ import annotations

import functools
import importlib
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from flyk import ops
from flyk.bench import modules
from flyk.bench._case import Case
from flyk.bench._measure import bind, fresh, gradients, interleaved


@dataclass(frozen=True)
class Crossover:
    """One choice of the CPU's dispatch, as a module of flyk.bench lists it under CROSSOVERS.

    flyk/backends/cpu/<operator>.py reads `crossovers(operator)[name]` into a constant, the name in capitals, and goes
    one way for sizes up to it and another beyond. So both ways are the dispatch's own, with that constant set for them.
    """

    name: str
    sweep: tuple[float, ...]  # sizes in ascending order
    case: Callable[[float], Case]


def chosen(operators: Sequence[str]) -> list[Crossover]:
    """The crossovers of these operators, or of all that have some."""
    return [crossover for module in modules(operators) for crossover in getattr(module, "CROSSOVERS", ())]


def find(crossover: Crossover, *, least: int = 3, budget: float = 0.5) -> dict[str, Any]:
    """Time both ways at each size of the sweep: where they cross, and the median seconds that say so."""
    cases = [crossover.case(size) for size in crossover.sweep]
    medians = [_both(case, crossover.name, least, budget) for case in cases]
    below, above = ([median[way] for median in medians] for way in ("below", "above"))
    return {
        "op": cases[0].op,
        "name": crossover.name,
        "crossover": crossing(crossover.sweep, below, above),
        "sweep": list(crossover.sweep),
        "below": below,
        "above": above,
    }


def _both(case: Case, name: str, least: int, budget: float) -> dict[str, float]:
    """Median seconds of the way below the crossover and of that above it."""
    dispatch, constant = importlib.import_module(f"flyk.backends.cpu.{case.op}"), name.upper()
    call = bind(case, functools.partial(case.ours, ops), fresh(case, case.inputs(torch.Generator().manual_seed(0))))

    def way(crossover: float) -> None:
        setattr(dispatch, constant, crossover)
        call()

    tuned = getattr(dispatch, constant)
    try:
        with gradients(case):
            ways = {"below": functools.partial(way, math.inf), "above": functools.partial(way, 0.0)}
            seconds = interleaved([ways], least, budget)
    finally:
        setattr(dispatch, constant, tuned)
    return {name: float(np.median(each)) for name, each in seconds.items()}


def crossing(sweep: Sequence[float], below: Sequence[float], above: Sequence[float]) -> float:
    """Where to change from one way to the other, to three figures.

    The change stands between the two values of the sweep where it costs least over all of them, by the logarithms of
    the times, so that one disturbed measurement moves nothing; within those two, where the straight line through the
    logarithms of both ratios says that the ways are equal. It is 0 where `above` is better from the start, and the
    last value where `below` is better to the end.
    """
    ratio = np.log(below) - np.log(above)  # negative where `below` is faster
    cut = int(np.argmin(np.concatenate(([0.0], np.cumsum(ratio)))))
    if cut == 0:
        return 0.0
    if cut == len(sweep):
        return float(sweep[-1])
    low, high = np.log(sweep[cut - 1 : cut + 1])
    share = ratio[cut - 1] / (ratio[cut - 1] - ratio[cut])  # the one is negative or 0, the other positive or 0
    return float(f"{np.exp(low + share * (high - low)):.3g}")


def write(found: Sequence[dict[str, Any]], path: Path) -> None:
    """Put what was found into a file of flyk/tuning; what else it holds stays."""
    tuning = json.loads(path.read_text()) if path.exists() else {}
    for each in found:
        tuning.setdefault(each["op"], {})[each["name"]] = each["crossover"]
    path.write_text(json.dumps(tuning, indent=2) + "\n")
