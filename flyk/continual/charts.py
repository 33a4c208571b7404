"""The report's charts of a stream."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from flyk._charts import INK, STYLES, svg


def accuracy_chart(tests: dict[str, Any], ceiling: float) -> str:
    """Accuracy in % on the classes seen so far against training samples seen, a line for each learner."""

    def draw(axes: Any) -> None:
        for (name, values), (colour, marker, dash) in zip(tests["accuracy"].items(), STYLES, strict=False):
            axes.plot(
                tests["samples"],
                _percent(values),
                label=name,
                color=colour,
                marker=marker,
                linestyle=dash,
                markersize=5,
            )
        axes.plot(
            tests["samples"][-1],
            100 * ceiling,
            marker="*",
            markersize=13,
            color=INK,
            linestyle="",
            clip_on=False,
            label="batch ridge on all data, the ceiling",
        )
        _task_ends(axes, tests)
        axes.set(xlabel="training samples seen", ylabel="accuracy on classes seen, %")

    return svg(draw, "Accuracy over the stream for each learner", height=6)


def routing_chart(tests: dict[str, Any], chance: float) -> str:
    """Share in % of the test samples routed to the home of their class, against training samples seen."""

    def draw(axes: Any) -> None:
        colour, marker, dash = STYLES[0]
        axes.plot(
            tests["samples"],
            _percent(tests["routing"]),
            color=colour,
            marker=marker,
            linestyle=dash,
            markersize=5,
            label="routed to the home task",
        )
        axes.axhline(100 * chance, color=INK, linestyle=":", linewidth=1, label="chance among all tasks")
        axes.set_ylim(0, 103)
        _task_ends(axes, tests)
        axes.set(xlabel="training samples seen", ylabel="routing accuracy, %")

    return svg(draw, "Routing accuracy over the stream", height=3.4)


def stream_chart(stream: list[dict[str, Any]]) -> str:
    """Samples of each task in three stacked parts: disjoint classes, blurry classes at home, mixed in from others."""
    parts = {
        "disjoint": ("disjoint classes", ""),
        "blurry_at_home": ("blurry classes at home", "//"),
        "mixed_in": ("mixed in", "xx"),
    }

    def draw(axes: Any) -> None:
        base = [0] * len(stream)
        for (key, (label, hatch)), (colour, _, _) in zip(parts.items(), STYLES, strict=False):
            heights = [task[key] for task in stream]
            axes.bar(
                range(1, len(stream) + 1),
                heights,
                0.7,
                bottom=base,
                color=colour,
                hatch=hatch,
                edgecolor=INK,
                linewidth=0.8,
                label=label,
            )
            base = [low + height for low, height in zip(base, heights, strict=True)]
        axes.set(xlabel="task", ylabel="training samples")
        axes.xaxis.get_major_locator().set_params(integer=True)

    return svg(draw, "Samples of each task", height=3.4)


def curves_chart(tests: list[dict[str, Any]], curves: dict[str, list[float]], label: str) -> str:
    """Shares in % against training samples seen, a line each; `tests` tell the samples and the task ends."""

    def draw(axes: Any) -> None:
        samples = [test["samples"] for test in tests]
        for i, (name, values) in enumerate(curves.items()):
            colour, marker, dash = STYLES[i % len(STYLES)]
            axes.plot(samples, _percent(values), label=name, color=colour, marker=marker, linestyle=dash, markersize=5)
        _task_ends(axes, {"samples": samples, "at_task_end": [test["at_task_end"] for test in tests]})
        axes.set(xlabel="training samples seen", ylabel=label)

    return svg(draw, label, height=4)


def matrix_chart(rows: list[list[float | None]], across: str, down: str, title: str) -> str:
    """A matrix in shades from its least value to its largest, NaN and None left empty."""

    def draw(axes: Any) -> None:
        values = np.array(rows, dtype=np.float64)
        mesh = axes.pcolormesh(np.ma.masked_invalid(values), cmap="viridis")
        axes.invert_yaxis()
        axes.figure.colorbar(mesh, ax=axes).solids.set_rasterized(False)
        axes.set(xlabel=across, ylabel=down)

    return svg(draw, title, height=4, legend=False)


def _percent(values: Sequence[float | None]) -> list[float]:
    return [math.nan if value is None else 100 * value for value in values]


def _task_ends(axes: Any, tests: dict[str, Any]) -> None:
    for samples, end in zip(tests["samples"], tests["at_task_end"], strict=True):
        if end:
            axes.axvline(samples, color=INK, alpha=0.25, linewidth=0.8)
