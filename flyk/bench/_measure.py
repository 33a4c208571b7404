"""Measuring a case: first every rival's error against float64, then interleaved rounds, if nothing is wrong."""

from __future__ import annotations

import functools
import gc
import inspect
import math
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch._dynamo.utils import counters

from flyk import ops, reference
from flyk.bench._case import Case, Inputs
from flyk.bench._ceilings import Ceilings

RIVALS = ("published", "eager", "compiled", "flyk")
INPUTS = 4  # sets of inputs, by different seeds, that the rounds go through ...
INPUT_BYTES = 2**28  # ... as far as they fit into this
CHUNK = 1024  # rows of a result compared at once


@dataclass
class Rival:
    """One of the four in one case: how it is called, and what was found."""

    function: Callable[..., Any] | None = None
    absent: str = ""  # why there is no such rival here
    error: float | None = None  # largest, relative to the largest entry of the answer
    seconds: list[float] = field(default_factory=list)  # of each round, scaled to the whole work

    def summary(self) -> dict[str, Any]:
        found: dict[str, Any] = {"absent": self.absent} if self.absent else {"error": self.error}
        if self.seconds:
            q1, median, q3 = np.percentile(self.seconds, (25, 50, 75)).tolist()
            found |= {"median": median, "q1": q1, "q3": q3, "rounds": len(self.seconds)}
        return found


def measure(
    case: Case,
    ceilings: Ceilings,
    *,
    least: int,
    budget: float,
    place: Callable[[list[Inputs]], list[Inputs]] = list,
    time_rounds: Callable[..., None] | None = None,
) -> dict[str, Any]:
    """Check and time a case: at least `least` rounds, and more until `budget` seconds have gone.

    Another device has its own way to place the sets of inputs and to time rounds, see `flyk.bench._cuda`.
    """
    sets = place(input_sets(case))
    rivals = rivals_of(case, sets[0])
    fault = check(case, rivals, sets[:INPUTS])  # what follows them are copies
    if not fault:
        (time_rounds or time_on_cpu)(case, rivals, sets, least, budget)
    return {
        "op": case.op,
        "what": case.what,
        "sizes": case.sizes,
        "bound": case.bound,
        "check": "red" if fault else "green",
        "fault": fault,
        "floor": {
            "bytes": case.floor.bytes,
            "flop": case.floor.flop,
            "seconds": case.floor.seconds(ceilings),
        },
        "published_share": case.share,
        "rivals": {name: rival.summary() for name, rival in rivals.items()},
    }


def input_sets(case: Case) -> list[Inputs]:
    """Inputs by several seeds, so that no rival meets the same data each round."""
    sets = [case.inputs(torch.Generator().manual_seed(0))]
    size = sum(t.numel() * t.element_size() for t in sets[0].values() if isinstance(t, Tensor))
    more = min(INPUTS, max(1, INPUT_BYTES // max(1, size)))
    return sets + [case.inputs(torch.Generator().manual_seed(seed)) for seed in range(1, more)]


def rivals_of(case: Case, inputs: Inputs, names: Sequence[str] = RIVALS) -> dict[str, Rival]:
    """The rivals of these names; the compiled one is tried on a copy of the inputs."""
    made = {
        "published": lambda: Rival(case.published),
        "eager": lambda: Rival(case.eager),
        "compiled": lambda: compiled(case, inputs),
        "flyk": lambda: Rival(functools.partial(case.ours, ops)),
    }
    return {name: made[name]() for name in names}


def compiled(case: Case, inputs: Inputs) -> Rival:
    """torch.compile of the expert's code, or why it can't be had."""
    if case.uncompiled:
        return Rival(absent=case.uncompiled)
    torch.compiler.reset()  # shapes of an earlier case must not make this one's code dynamic
    function = torch.compile(case.eager)
    graphs = counters["stats"]["unique_graphs"]
    try:
        with gradients(case), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            bind(case, function, fresh(case, inputs))()
    except Exception as error:  # whatever the compiler of this machine lacks or stumbles on
        return Rival(absent=f"not compilable: {_telling(error)}")
    if counters["stats"]["unique_graphs"] == graphs:
        return Rival(absent="not compilable: torch.compile finds nothing in it that it can trace")
    return Rival(function)


def _telling(error: Exception) -> str:
    """The first line of an error that says something; torch.compile begins with which backend raised it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip() and not line.endswith("raised:")]
    return (lines or [type(error).__name__])[0][:200]


def gradients(case: Case) -> torch.set_grad_enabled:
    return torch.set_grad_enabled(bool(case.gradients))


def fresh(case: Case, inputs: Inputs) -> Inputs:
    """The inputs, with those that are written to copied."""
    return inputs | {name: inputs[name].clone() for name in case.state}


def bind(case: Case, function: Callable[..., Any], inputs: Inputs) -> Callable[[], Any]:
    """The function on the inputs that it names; with gradients, forward and backward: output, then gradients."""
    wanted = inspect.signature(function).parameters
    chosen = {name: value for name, value in inputs.items() if name in wanted}
    if not case.gradients:
        return functools.partial(function, **chosen)
    chosen |= {name: chosen[name].detach().requires_grad_() for name in case.gradients}
    leaves, grad = [chosen[name] for name in case.gradients], inputs["grad"]

    def both() -> tuple[Tensor, ...]:
        out = function(**chosen)
        return out, *torch.autograd.grad(out, leaves, grad)

    return both


def answer(case: Case, inputs: Inputs) -> tuple[Tensor, ...]:
    """The right result: the reference in float64 on the same numbers."""
    ours = functools.partial(case.ours, reference)
    wanted = {*inspect.signature(ours).parameters, "grad"}
    exact = {n: _float64(v) for n, v in inputs.items() if n in wanted}
    with gradients(case):
        return case.compared(bind(case, ours, exact)(), inputs)


def _float64(value: Any) -> Any:
    return value.to(torch.float64, copy=True) if isinstance(value, Tensor) and value.is_floating_point() else value


def check(case: Case, rivals: dict[str, Rival], sets: list[Inputs]) -> str:
    """Fill in every rival's error; returns what is wrong, or "" if all is right."""
    faults = []
    for inputs in sets:
        right = answer(case, inputs)
        for name, rival in rivals.items():
            if rival.function is None:
                continue
            given = case.inputs_of(name, inputs)
            try:
                with gradients(case):
                    result = bind(case, rival.function, fresh(case, given))()
                found = error(case.compared(result, given), right if given is inputs else answer(case, given))
            except Exception as problem:  # a rival that raises is as wrong as one that errs
                return f"{name} raises {type(problem).__name__}: {_telling(problem)}"
            rival.error = max(found, rival.error or 0.0)
    for name, rival in rivals.items():
        if rival.error is not None and not rival.error <= case.bound:
            faults.append(f"{name} is off by {rival.error:.1e}, allowed {case.bound:.0e}")
    return "; ".join(faults)


def error(found: tuple[Tensor, ...], right: tuple[Tensor, ...]) -> float:
    """The largest difference of any pair, relative to the largest entry of the right one; inf for NaN or a shape."""
    worst = 0.0
    for ours, exact in zip(found, right, strict=True):
        ours, exact = ours.detach(), exact.detach()
        if ours.shape != exact.shape:
            return math.inf
        if exact.numel() == 0:
            continue
        pairs = zip(torch.atleast_1d(ours).split(CHUNK), torch.atleast_1d(exact).split(CHUNK), strict=True)
        difference = max(float((a.double() - b).abs().max().nan_to_num(math.inf)) for a, b in pairs)
        largest = float(exact.abs().max())
        worst = max(worst, difference / largest if largest else difference)
    return worst


def time_on_cpu(case: Case, rivals: dict[str, Rival], sets: list[Inputs], least: int, budget: float) -> None:
    """Fill in every rival's seconds."""
    live = {name: rival.function for name, rival in rivals.items() if rival.function is not None}
    calls = [
        {name: bind(case, function, case.inputs_of(name, inputs)) for name, function in live.items()} for inputs in sets
    ]
    with gradients(case):
        for name, seconds in interleaved(calls, least, budget).items():
            rivals[name].seconds = [spent * (case.share if name == "published" else 1) for spent in seconds]


def interleaved(
    calls: Sequence[dict[str, Callable[[], Any]]],
    least: int,
    budget: float,
    before: Callable[[], Any] | None = None,
) -> dict[str, list[float]]:
    """Seconds of each call in rounds of one call each: at least `least` rounds, more until `budget` seconds have gone.

    The order is A B C D, then B C D A and so on, so that none always profits from the one before; a round takes the
    next of the several sets of `calls`, which differ in their inputs alone. `before` each there may be something
    that is not timed.
    """
    names = list(calls[0])
    seconds: dict[str, list[float]] = {name: [] for name in names}
    gc.collect()
    gc.disable()
    try:
        for call in calls[0].values():  # warm up
            call()
        start, done = time.perf_counter(), 0
        while done < least or time.perf_counter() - start < budget:
            turn = done % len(names)
            for name in names[turn:] + names[:turn]:
                call = calls[done % len(calls)][name]
                if before:
                    before()
                begin = time.perf_counter()
                call()
                seconds[name].append(time.perf_counter() - begin)
            done += 1
    finally:
        gc.enable()
    return seconds
