"""Writes the tables of speed into the README, and those of memory and the figures of scaling into docs/benchmarks.md,
from the newest results of each processor under bench/results/.

python bench/table.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "bench" / "results"
EMPTY = "Not measured yet: no result is committed under `bench/results/`.\n"
HEADER = """\
| case | published, ms | best PyTorch, ms | flyk, ms | over published | over the best | of the floor | error |
|---|--:|--:|--:|--:|--:|--:|--:|
"""


def filled(text: str, name: str, content: str) -> str:
    """The text with what stands between the marks of this name replaced."""
    begin, end = f"<!-- {name} -->\n", f"<!-- /{name} -->\n"
    head, rest = text.split(begin)
    return head + begin + (content or EMPTY) + end + rest.split(end)[1]


def speed(results: list[dict[str, Any]]) -> str:
    return "\n".join(map(section, processors(results)))


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


def memory(results: list[dict[str, Any]]) -> str:
    """The newest whole run of each processor: peaks, and what layers keep."""
    return "\n".join(_memory(runs[-1]) for runs in processors(results))


def _memory(result: dict[str, Any]) -> str:
    about = result["machine"]
    kinds = list(result["activations"][0]["kept"])
    lines = [
        f"{about['processor']}, {about['threads']} threads, kernels {about['kernels']}, torch {about['torch']}, "
        f"{about['date'][:10]}.\n",
        "| peak beyond the inputs, MB | inputs | published | best eager | compiled | flyk |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    for case in result["peaks"]:
        found = [f"{rival['peak'] / 1e6:,.1f}" if "peak" in rival else "none" for rival in case["rivals"].values()]
        name = f"`{case['op']}` {case['what']}, {case['sizes']}"
        lines.append(f"| {name} | {case['inputs'] / 1e6:,.1f} | {' | '.join(found)} |")
    lines += ["", f"| kept for the backward of a layer, MB | {' | '.join(kinds)} |", "|---|" + "--:|" * len(kinds)]
    for layer in result["activations"]:
        kept = [f"{layer['kept'][kind] / 1e6:.2f}" for kind in kinds]
        sizes = f"{layer['sequence']} tokens, {layer['d']} to {layer['d']}, r {layer['r']}, k {layer['k']}"
        lines.append(f"| {sizes} | {' | '.join(kept)} |")
    return "\n".join(lines) + "\n"


def figures(names: list[str]) -> str:
    """Links to the figures of these file names."""
    return "\n".join(f"![{name}](../bench/results/scaling/{name})\n" for name in names)


def committed(kind: str = "") -> list[dict[str, Any]]:
    """The results of a kind: "" speed, "memory"."""
    return [json.loads(path.read_text()) for path in sorted((RESULTS / kind).glob("*.json"))]


def documents() -> dict[Path, str]:
    """The files that hold tables, as the committed results would have them."""
    readme, benchmarks = ROOT / "README.md", ROOT / "docs" / "benchmarks.md"
    drawn = sorted(path.name for path in (RESULTS / "scaling").glob("*.svg"))
    told = filled(benchmarks.read_text(), "memory", memory(committed("memory")))
    return {
        readme: filled(readme.read_text(), "bench-table", speed(committed())),
        benchmarks: filled(told, "scaling", figures(drawn)),
    }


if __name__ == "__main__":
    for path, text in documents().items():
        path.write_text(text)
