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
    return head + BEGIN + ("\n".join(map(section, processors(results))) or EMPTY) + END + tail


def processors(results: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """The whole runs of each processor in order of time; a quick run's cases are too small to tell."""
    found: dict[str, list[dict[str, Any]]] = {}
    for result in sorted(results, key=lambda r: r["machine"]["date"]):
        if not result["quick"]:
            found.setdefault(result["machine"]["processor"], []).append(result)
    return list(found.values())


def section(runs: list[dict[str, Any]]) -> str:
    """One processor: a sentence and a table of each operator's newest run."""
    about, newest = runs[-1]["machine"], {case["op"]: run for run in runs for case in run["cases"]}
    cases = [case for op, run in sorted(newest.items()) for case in run["cases"] if case["op"] == op]
    sentence = (
        f"{about['processor']}, {about['threads']} threads, kernels {about['kernels']}, torch {about['torch']}, "
        f"{about['date'][:10]}; error is flyk's largest against float64, relative to the largest entry.\n"
    )
    return f"{sentence}\n{HEADER}{''.join(map(row, cases))}"


def row(case: dict[str, Any]) -> str:
    name = f"`{case['op']}` {case['what']}, {case['sizes']}"
    if case["check"] == "red":
        return f"| {name} | wrong, so not timed |||||||\n"
    rivals = case["rivals"]
    published, flyk = rivals["published"]["median"], rivals["flyk"]["median"]
    best = min(rivals[rival]["median"] for rival in ("eager", "compiled") if "median" in rivals[rival])
    reached = case["floor"]["seconds"] / flyk
    return (
        f"| {name} | {_ms(published)} | {_ms(best)} | {_ms(flyk)} | {published / flyk:.1f}x "
        f"| {best / flyk:.1f}x | {reached:.0%} | {rivals['flyk']['error']:.0e} |\n"
    )


def _ms(seconds: float) -> str:
    ms = seconds * 1e3
    return f"{ms:,.0f}" if ms >= 100 else f"{ms:.3g}"


def committed() -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted((ROOT / "bench" / "results").glob("*.json"))]


if __name__ == "__main__":
    readme = ROOT / "README.md"
    readme.write_text(filled(readme.read_text(), committed()))
