"""Scaling: the time of each operator as one of its sizes grows, beside the best eager PyTorch and the floor."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from flyk.bench import modules
from flyk.bench._case import Case
from flyk.bench._ceilings import Ceilings, ceilings
from flyk.bench._measure import check, input_sets, rivals_of, time_on_cpu

RIVALS = ("eager", "flyk")
LINES = {"eager": ("s", "#4f6f9f"), "flyk": ("o", "#d9822b"), "floor": ("", "#000000")}  # marker, colour


@dataclass(frozen=True)
class Curve:
    """How one size grows: the `case` of the module of flyk.bench that lists this under SCALING, at each value of it."""

    axis: str
    values: tuple[int, ...]
    fixed: dict[str, Any]


def chosen(operators: Sequence[str]) -> list[tuple[Curve, list[Case]]]:
    """The curves of these operators, or of all that have some, with the case at each value."""
    return [
        (curve, [module.case(**curve.fixed, **{curve.axis: value}) for value in curve.values])
        for module in modules(operators)
        for curve in getattr(module, "SCALING", ())
    ]


def limits_by_threads() -> dict[int, Ceilings]:
    """The ceilings on one thread and on all that torch has."""
    most, found = torch.get_num_threads(), {}
    try:
        for threads in sorted({1, most}):
            torch.set_num_threads(threads)
            found[threads] = ceilings()
    finally:
        torch.set_num_threads(most)
    return found


def measured(
    curve: Curve, cases: Sequence[Case], limits: dict[int, Ceilings], *, least: int, budget: float
) -> dict[str, Any]:
    """One curve on each number of threads. A point that is wrong has no times."""
    points = []
    for value, case in zip(curve.values, cases, strict=True):
        points += [{"value": value} | point for point in _points(case, limits, least, budget)]
    return {"op": cases[0].op, "what": cases[0].what, "axis": curve.axis, "fixed": curve.fixed, "points": points}


def _points(case: Case, limits: dict[int, Ceilings], least: int, budget: float) -> Iterator[dict[str, Any]]:
    most, sets = torch.get_num_threads(), input_sets(case)
    fault = check(case, rivals_of(case, sets[0], RIVALS), sets[:1])
    try:
        for threads, ceiling in limits.items():
            torch.set_num_threads(threads)
            rivals = rivals_of(case, sets[0], RIVALS)
            if not fault:
                time_on_cpu(case, rivals, sets, least, budget)
            medians = {name: rival.summary().get("median") for name, rival in rivals.items()}
            yield {"threads": threads, "fault": fault, **medians, "floor": case.floor.seconds(ceiling)}
    finally:
        torch.set_num_threads(most)


def draw(result: dict[str, Any], path: Path) -> list[Path]:
    """A figure of each operator, `path` with the operator's name before the suffix; the paths written."""
    from matplotlib.figure import Figure

    written = []
    for op in dict.fromkeys(curve["op"] for curve in result["curves"]):
        curves = [curve for curve in result["curves"] if curve["op"] == op]
        figure = Figure(figsize=(1 + 4.2 * len(curves), 4), layout="constrained")
        for axes, curve in zip(figure.subplots(1, len(curves), squeeze=False)[0], curves, strict=True):
            _panel(axes, curve)
        machine = result["machine"]
        figure.suptitle(f"{op}: flyk {machine['flyk']}, torch {machine['torch']}, {machine['processor']}", fontsize=9)
        written.append(path.with_name(f"{path.stem}-{op}{path.suffix}"))
        figure.savefig(written[-1])
    return written


def _panel(axes: Any, curve: dict[str, Any]) -> None:
    """Both rivals and the floor; one thread is dashed with open markers, all threads are solid and filled."""
    ends = {}
    for threads in dict.fromkeys(point["threads"] for point in curve["points"]):
        points = [point for point in curve["points"] if point["threads"] == threads and not point["fault"]]
        if not points:
            continue
        values = [point["value"] for point in points]
        for name, (marker, colour) in LINES.items():
            ms = [1e3 * point[name] for point in points]
            style = {"linestyle": "--", "markerfacecolor": "white"} if threads == 1 else {"linestyle": "-"}
            axes.plot(values, ms, marker=marker, color=colour, linewidth=1 if name == "floor" else 1.8, **style)
            ends[f"{name}, {threads} thread{'s' * (threads > 1)}"] = (values[-1], ms[-1], colour)
    axes.set(xscale="log", yscale="log", xlabel=curve["axis"], ylabel="milliseconds, median")
    axes.set_xticks([], minor=True)
    values = list(dict.fromkeys(point["value"] for point in curve["points"]))
    axes.set_xticks(values, list(map(str, values)))
    fixed = ", ".join(f"{name} {value}" for name, value in curve["fixed"].items())
    axes.set_title(f"{curve['what']}: {fixed}", fontsize=8)
    _label(axes, ends)


def _label(axes: Any, ends: dict[str, tuple[float, float, str]]) -> None:
    """Each line's name beside its end, moved up from the one below where they would touch."""
    low, high = map(math.log, axes.get_ylim())
    at = -math.inf
    for name, (x, y, colour) in sorted(ends.items(), key=lambda end: end[1][1]):
        at = max(math.log(y), at + 0.055 * (high - low))
        axes.annotate(
            name, (x, y), (1.03, (at - low) / (high - low)), textcoords="axes fraction", fontsize=7, color=colour,
            va="center", arrowprops={"arrowstyle": "-", "color": colour, "linewidth": 0.5},
        )  # fmt: skip
