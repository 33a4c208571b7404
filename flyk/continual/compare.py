"""Runs side by side: mean and spread over seeds, as text, JSON or Markdown."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

COLUMNS = {
    "a_auc": "A_auc",
    "a_avg": "A_avg",
    "a_last": "A_last",
    "forgetting": "F_last",
    "bwt": "BWT",
    "routing": "routing",
    "oracle router": "A_last, oracle router",
}


def read_results(folders: Iterable[Path]) -> dict[str, list[dict[str, Any]]]:
    """The finished runs in these folders: <name>/seed-N/result.json or <name>/seed-N.json, by name.

    Raises:
        ValueError: there is none, a file can't be read, or the runs of a name differ in more than the seed.
    """
    results: dict[str, list[dict[str, Any]]] = {}
    for folder in folders:
        for path in sorted([*folder.glob("**/seed-*/result.json"), *folder.glob("**/seed-*.json")]):
            try:
                result = json.loads(path.read_text())
                result["config"]["seed"], result["measures"]["a_last"] + 0, sum(result["seconds"].values())
            except (ValueError, KeyError, TypeError) as error:
                raise ValueError(f"runs: {path} can't be read as the result of a run: {error!r}") from error
            named = path.parent if path.name == "result.json" else path
            name = named.parent.relative_to(folder).as_posix()
            results.setdefault(folder.name if name == "." else name, []).append(result)
    if not results:
        raise ValueError("runs must be folders that hold finished runs, and none was found")
    for name, runs in results.items():
        configs = [{key: value for key, value in one["config"].items() if key != "seed"} for one in runs]
        if any(config != configs[0] for config in configs):
            raise ValueError(f"runs: those of {name} have different settings and can't be one row")
        if len({one["config"]["seed"] for one in runs}) < len(runs):
            raise ValueError(f"runs: {name} holds a seed twice")
    return results


def summarise(results: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """A row for each name: `runs`, and of each measure mean and standard deviation (over n - 1; None for one seed)."""
    rows = []
    for name, runs in results.items():
        row: dict[str, Any] = {"name": name, "runs": len(runs)}
        for key in COLUMNS:
            values = [one["measures"][key] for one in runs if one["measures"].get(key) is not None]
            row[key] = spread(values) if len(values) == len(runs) else None
        row["minutes"] = spread([(one["seconds"]["training"] + one["seconds"]["testing"]) / 60 for one in runs])
        rows.append(row)
    return sorted(rows, key=lambda row: -row["a_last"]["mean"])


def spread(values: Sequence[float]) -> dict[str, float | None]:
    """Mean and standard deviation."""
    mean = sum(values) / len(values)
    over = len(values) - 1
    return {"mean": mean, "sd": math.sqrt(sum((v - mean) ** 2 for v in values) / over) if over else None}


def as_text(rows: list[dict[str, Any]], markdown: bool = False) -> str:
    """The rows as a table, accuracies in %."""
    head = ["", *COLUMNS.values(), "minutes", "seeds"]
    body = [
        [row["name"], *(cell(row[key], 100) for key in COLUMNS), cell(row["minutes"], 1), str(row["runs"])]
        for row in rows
    ]
    if markdown:
        lines = ["| " + " | ".join(line) + " |" for line in [head, *body]]
        return "\n".join([lines[0], "|---|" + "--:|" * (len(head) - 1), *lines[1:]])
    widths = [max(len(line[i]) for line in [head, *body]) for i in range(len(head))]
    return "\n".join(
        "  ".join(
            cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(line, widths, strict=True))
        )
        for line in [head, *body]
    )


def cell(value: dict[str, float | None] | None, scale: float) -> str:
    """Mean ± standard deviation, a dash for None."""
    if value is None:
        return "–"
    mean = f"{scale * value['mean']:.1f}" if value["mean"] is not None else "–"
    return mean if value["sd"] is None else f"{mean} ± {scale * value['sd']:.1f}"
