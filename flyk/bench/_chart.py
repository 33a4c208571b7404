"""The benchmark as a bar chart: the time of each rival in each case, and the floor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

COLOURS = {"published": "#b0b0b0", "eager": "#7f9fbf", "compiled": "#4f6f9f", "flyk": "#d9822b"}


def draw(result: dict[str, Any], path: Path) -> None:
    """Write the chart to `path`, in the format that its suffix names."""
    cases = result["cases"][::-1]  # the first on top
    figure = Figure(figsize=(9, 1.2 + 0.75 * len(cases)), layout="constrained")
    axes = figure.subplots()
    for at, case in enumerate(cases):
        for slot, (name, rival) in enumerate(case["rivals"].items()):
            if "median" in rival:
                low, high = rival["median"] - rival["q1"], rival["q3"] - rival["median"]
                spread = [[1e3 * low], [1e3 * high]]
                y = at + 0.3 - 0.2 * slot
                axes.barh(y, 1e3 * rival["median"], 0.18, xerr=spread, color=COLOURS[name], ecolor="#404040")
        if case["check"] == "red":
            axes.text(0.01, at, f"RED: {case['fault']}", transform=axes.get_yaxis_transform(), color="red", va="center")
        else:
            axes.plot([1e3 * case["floor"]["seconds"]] * 2, [at - 0.42, at + 0.42], color="black", linewidth=1.5)
    if any(case["check"] == "green" for case in cases):
        axes.set_xscale("log")
    axes.set_xlabel("milliseconds: median, quartiles; black line: floor")
    axes.set_yticks(range(len(cases)), [f"{case['op']} {case['what']}\n{case['sizes']}" for case in cases], fontsize=8)
    axes.set_ylim(-0.6, len(cases) - 0.4)
    bars = [axes.barh(0, 0, color=colour) for colour in COLOURS.values()]
    axes.legend(bars, COLOURS, ncols=4, loc="lower center", bbox_to_anchor=(0.5, 1.0), frameon=False)
    machine = result["machine"]
    figure.suptitle(f"flyk {machine['flyk']}, torch {machine['torch']}, {machine['processor']}", fontsize=9)
    figure.savefig(path)
