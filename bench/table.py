"""Writes the README's tables of speeds from the newest results of each processor under bench/results/.

python bench/table.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
BEGIN, END = "<!-- bench-table -->\n", "<!-- /bench-table -->\n"
EMPTY = "Not measured yet: no result is committed under `bench/results/`.\n"
HEADER = """\
| case | published, ms | best PyTorch, ms | flyk, ms | over published | over the best | of the floor | error |
|---|--:|--:|--:|--:|--:|--:|--:|
"""


def filled(readme: str, results: list[dict[str, Any]]) -> str:
    """The README with its table made of these results."""
    head, rest = readme.split(BEGIN)
    _, tail = rest.split(END)
    return head + BEGIN + ("\n".join(map(section, newest(results))) or EMPTY) + END + tail


def newest(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The last run of each processor over the same operators; a quick one's cases are too small to tell."""
    whole = sorted((r for r in results if not r["quick"]), key=lambda r: r["machine"]["date"])
    return list({(r["machine"]["processor"], *sorted({case["op"] for case in r["cases"]})): r for r in whole}.values())


def section(result: dict[str, Any]) -> str:
    """One machine: a sentence and a table."""
    about = result["machine"]
    sentence = (
        f"{about['processor']}, {about['threads']} threads, kernels {about['kernels']}, torch {about['torch']}, "
        f"{about['date'][:10]}; error is flyk's largest against float64, relative to the largest entry.\n"
    )
    return f"{sentence}\n{HEADER}{''.join(map(row, result['cases']))}"


def row(case: dict[str, Any]) -> str:
    name = f"`{case['op']}` {case['what']}, {case['sizes']}"
    if case["check"] == "red":
        return f"| {name} | wrong, so not timed |||||||\n"
    rivals = case["rivals"]
    published, flyk = rivals["published"]["median"], rivals["flyk"]["median"]
    best = min(rivals[rival]["median"] for rival in ("eager", "compiled") if "median" in rivals[rival])
    reached = case["floor"]["seconds"] / flyk
    return (
        f"| {name} | {published * 1e3:.3g} | {best * 1e3:.3g} | {flyk * 1e3:.3g} | {published / flyk:.1f}x "
        f"| {best / flyk:.1f}x | {reached:.0%} | {rivals['flyk']['error']:.0e} |\n"
    )


def committed() -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted((ROOT / "bench" / "results").glob("*.json"))]


if __name__ == "__main__":
    readme = ROOT / "README.md"
    readme.write_text(filled(readme.read_text(), committed()))
