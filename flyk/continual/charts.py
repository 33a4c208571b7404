"""The report's charts as inline SVG: text and axes take the page's colour, lines differ by marker and dash as well."""

from __future__ import annotations

import io
import re
from html import escape
from typing import Any

import numpy as np

from flyk.continual.files import need

INK = "#010203"  # stands for the page's text colour until the SVG is inlined
STYLES = [("#2f81d6", "o", "-"), ("#d9622b", "s", "--"), ("#1a9a74", "^", "-."), ("#b069c2", "D", ":")]
RC = {
    "svg.fonttype": "none",
    "svg.hashsalt": "flyk",
    "font.size": 11,
    "font.family": "sans-serif",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "hatch.linewidth": 0.8,
} | dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color", "hatch.color"), INK)


def need_matplotlib() -> Any:
    """matplotlib with its figures, or ModuleNotFoundError with the pip command."""
    matplotlib = need("matplotlib", "pip install matplotlib (it is in the extra flyk[demo])")
    need("matplotlib.figure", "pip install matplotlib")
    return matplotlib


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

    return _svg(draw, "Accuracy over the stream for each learner", height=6)


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

    return _svg(draw, "Routing accuracy over the stream", height=3.4)


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

    return _svg(draw, "Samples of each task", height=3.4)


def curves_chart(tests: list[dict[str, Any]], curves: dict[str, list[float]], label: str) -> str:
    """Shares in % against training samples seen, a line each; `tests` tell the samples and the task ends."""

    def draw(axes: Any) -> None:
        samples = [test["samples"] for test in tests]
        for i, (name, values) in enumerate(curves.items()):
            colour, marker, dash = STYLES[i % len(STYLES)]
            axes.plot(samples, _percent(values), label=name, color=colour, marker=marker, linestyle=dash, markersize=5)
        _task_ends(axes, {"samples": samples, "at_task_end": [test["at_task_end"] for test in tests]})
        axes.set(xlabel="training samples seen", ylabel=label)

    return _svg(draw, label, height=4)


def matrix_chart(rows: list[list[float | None]], across: str, down: str, title: str) -> str:
    """A matrix in shades from its least value to its largest, NaN and None left empty."""

    def draw(axes: Any) -> None:
        values = np.array(rows, dtype=np.float64)
        mesh = axes.pcolormesh(np.ma.masked_invalid(values), cmap="viridis")
        axes.invert_yaxis()
        axes.figure.colorbar(mesh, ax=axes).solids.set_rasterized(False)
        axes.set(xlabel=across, ylabel=down)

    return _svg(draw, title, height=4, legend=False)


def _percent(values: list[float]) -> list[float]:
    return [100 * value for value in values]


def _task_ends(axes: Any, tests: dict[str, Any]) -> None:
    for samples, end in zip(tests["samples"], tests["at_task_end"], strict=True):
        if end:
            axes.axvline(samples, color=INK, alpha=0.25, linewidth=0.8)


def _svg(draw: Any, title: str, height: float, legend: bool = True) -> str:
    """Draws on fresh axes and returns the <svg> element, as wide as its place."""
    matplotlib = need_matplotlib()
    with matplotlib.rc_context(RC):
        figure = matplotlib.figure.Figure(figsize=(5, height), layout="constrained")
        axes = figure.add_subplot()
        draw(axes)
        if legend:
            axes.grid(axis="y", color=INK, alpha=0.15, linewidth=0.8)
            figure.legend(loc="outside lower left", ncols=1, fontsize=10)
        out = io.StringIO()
        figure.savefig(out, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = out.getvalue()
    text = text[text.index("<svg") :].replace(INK, "currentColor")
    text = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", text, count=1)
    text = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", text, count=1)
    return text.replace("<svg", f'<svg role="img" aria-label="{escape(title)}"', 1)
