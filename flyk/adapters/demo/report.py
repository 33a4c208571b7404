"""The report as one HTML page with a chart, and as a page of Markdown."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from flyk import _page
from flyk._charts import INK, STYLES, svg
from flyk._files import write_whole
from flyk.adapters.demo import tables


def write_report(result: dict[str, Any], folder: Path) -> Path:
    """Writes report.json, .html and .md into `folder`, each whole or not at all, and returns the HTML's path."""
    result = _page.finite(result)
    with write_whole(folder / "report.md") as part:
        part.write_text(markdown(result), encoding="utf-8")
    made = tables.tables(result)
    parts = [_head(result), *(_section(table) for table in made[:2]), _chart(result)]
    parts += [_section(table) for table in made[2:]]
    parts.append(
        '<p class="soft">All numbers are in this page as JSON (script element "result") and in report.json.</p>'
    )
    return _page.write_page(result, "flyk demo lora", parts, folder)


def markdown(result: dict[str, Any]) -> str:
    """The same tables as a page of Markdown, of a result that is finite."""
    return "\n".join(["# FlyLoRA on a language model\n", _about(result) + "\n", *map(_lines, tables.tables(result))])


def _lines(table: tables.Table) -> str:
    marks = ["---" if at in table.words else "--:" for at in range(len(table.head))]
    rows = [
        f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |"
        for row in (table.head, marks, *table.rows)
    ]
    caption = [table.caption, ""] if table.caption else []
    return "\n".join([f"## {table.title}", "", *caption, *rows, ""])


def _section(table: tables.Table) -> str:
    return f"<h2>{escape(table.title)}</h2>\n" + _page.table(table.head, table.rows, table.caption, table.words)


def _about(result: dict[str, Any]) -> str:
    seeds = result["settings"]["seeds"]
    return (
        f"LoRA, LoRA-FA (both by PEFT) and FlyLoRA (by flyk) on {result['model']['name']}: each of "
        f"{len(result['tasks'])} tasks learned alone, by {seeds} seed{'s' * (seeds > 1)}, then the adapters of all "
        "tasks merged into one."
    )


def _head(result: dict[str, Any]) -> str:
    fly, r8 = tables.FLY, tables.R8
    alone, merged = ({name: np.mean(found) for name, found in result[key].items()} for key in ("alone", "merged"))
    speed, kept = result["cost"]["tokens a second"], result["cost"]["kept"]
    cards = [
        (f"{tables.points(alone[fly])} %", f"FlyLoRA alone, mean of tasks; LoRA r8 {tables.points(alone[r8])} %"),
        (f"{tables.points(merged[fly])} %", f"FlyLoRA merged; LoRA r8 {tables.points(merged[r8])} %"),
        (
            tables.signed(merged[fly] - alone[fly]),
            f"points by merging FlyLoRA; LoRA r8 {tables.signed(merged[r8] - alone[r8])}",
        ),
        (f"{speed[fly]:,.0f}", f"tokens a second in training; LoRA r8 {speed[r8]:,.0f}"),
        (f"{tables.mebi(kept[fly])} MiB", f"kept for the backward; LoRA r8 {tables.mebi(kept[r8])} MiB"),
    ]
    items = "\n".join(f"<li><b>{escape(value)}</b>{escape(label)}</li>" for value, label in cards)
    return f'<h1>flyk demo lora</h1>\n<p>{escape(_about(result))}</p>\n<ul class="cards">\n{items}\n</ul>'


def _chart(result: dict[str, Any]) -> str:
    names = [*(task["name"] for task in result["tasks"]), "mean"]

    def draw(axes: Any) -> None:
        for at, ((name, after), (colour, marker, _)) in enumerate(zip(result["merged"].items(), STYLES, strict=True)):
            both = zip(tables.columns(after), tables.columns(result["alone"][name]), strict=True)
            change = [100 * (a - b) for a, b in both]
            x = np.arange(len(names)) + 0.16 * (at - 1.5)
            error = [values.std(ddof=1) if len(values) > 1 else 0 for values in change]
            mean = [values.mean() for values in change]
            axes.errorbar(x, mean, error, label=name, color=colour, marker=marker, linestyle="", capsize=3)
        axes.axhline(0, color=INK, linewidth=0.8)
        axes.set_xticks(range(len(names)), [name.replace("_", "\n") for name in names])
        axes.set(ylabel="change by merging, points")

    text = "What merging four tasks changes, with the standard deviation over seeds. Up is better."
    return f"<figure>{svg(draw, 'Change by merging', height=4.2)}<figcaption>{escape(text)}</figcaption></figure>"
