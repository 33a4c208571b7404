"""Charts as inline SVG: text and axes take the page's colour, lines differ by marker and dash as well."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from html import escape
from typing import Any

from flyk._packages import need

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


def svg(draw: Callable[[Any], None], title: str, height: float, legend: bool = True) -> str:
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
