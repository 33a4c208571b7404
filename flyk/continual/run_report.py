"""The report of one run: curves, matrices, time and memory on one page."""

from __future__ import annotations

import json
from html import escape
from pathlib import Path
from typing import Any

from flyk._files import write_whole
from flyk._page import page, percent, table
from flyk.continual import charts

MEASURES = {
    "a_auc": "A_auc",
    "a_avg": "A_avg",
    "a_last": "A_last",
    "forgetting": "forgetting",
    "bwt": "BWT",
    "routing": "routed to the home expert",
    "oracle router": "A_last under a perfect router",
}


def write_run_report(result: dict[str, Any], name: str, folder: Path) -> Path:
    """Writes report.html into the run's folder and returns its path."""
    parts = [_head(result, name), _charts(result), _tests(result), _cost(result)]
    text = page(f"flyk continual: {name}", parts, json.dumps(result, indent=1, allow_nan=False))
    with write_whole(folder / "report.html") as part:
        part.write_text(text, encoding="utf-8")
    return folder / "report.html"


def _head(result: dict[str, Any], name: str) -> str:
    data, config, measures = result["data"], result["config"], result["measures"]
    items = "\n".join(
        f"<li><b>{percent(measures[key])} %</b>{escape(label)}</li>"
        for key, label in MEASURES.items()
        if key in measures
    )
    return (
        f"<h1>{escape(name)}, seed {config['seed']}</h1>\n<p>{escape(config['method'])} on {escape(data['source'])}: "
        f"{data['train']:,} training samples of {len(data['classes'])} classes in {len(data['task_samples'])} tasks "
        f"({escape(config['stream'])}), {data['test']:,} test samples. Tests are on the classes seen so far.</p>\n"
        f'<ul class="cards">\n{items}\n</ul>'
    )


def _charts(result: dict[str, Any]) -> str:
    tests, analysis = result["tests"], result["analysis"]
    curves = {"accuracy": [test["accuracy"] for test in tests]}
    if "routing" in tests[0]:
        curves["routed to the home expert"] = [test["routing"] for test in tests]
    figures = [(charts.curves_chart(tests, curves, "accuracy on classes seen, %"), "Upright lines are task ends.")]
    if "heads" in tests[0]:
        names = ["online", *(f"average {i}" for i in range(1, len(tests[0]["heads"])))]
        for key, heads, label, text in (
            ("heads", names, "accuracy of a head alone, %", "What each head alone would score."),
            ("agreement", names[1:], "agreement, %", "How often an averaged head says what the online head says."),
        ):
            curves = {name: [test[key][i] for test in tests] for i, name in enumerate(heads)}
            if curves:
                figures.append((charts.curves_chart(tests, curves, label), text))
    ends = [test for test in tests if test["at_task_end"]]
    figures.append(
        (
            charts.matrix_chart([test["classes"] for test in ends], "class", "after task", "Accuracy of each class"),
            "Accuracy of each class after each task; empty where it was not seen.",
        )
    )
    for key, axes, text in (
        ("confusion", ("routed to", "home"), "Routing: of the test samples of a home, the share sent to each expert."),
        ("cka", ("expert", "expert"), "Linear CKA (debiased, minibatch) of test features under the experts' prompts."),
        ("mean_cosine", ("expert", "expert"), "Cosine of the experts' mean features, from the mean of them all."),
    ):
        if key in analysis:
            figures.append((charts.matrix_chart(analysis[key], *axes, text), text))
    inner = "\n".join(f"<figure>{svg}<figcaption>{escape(text)}</figcaption></figure>" for svg, text in figures)
    return f'<h2>Over the stream</h2>\n<div class="charts">\n{inner}\n</div>'


def _tests(result: dict[str, Any]) -> str:
    rows = [
        (
            f"{test['samples']:,}",
            str(test["task"] + 1),
            str(test["exposed"]),
            percent(test["accuracy"]),
            percent(test.get("routing")),
            ", ".join(why for why in ("interval", "task end") if test[f"at_{why.replace(' ', '_')}"]),
        )
        for test in result["tests"]
    ]
    head = ("samples seen", "task", "classes seen", "accuracy", "routing", "made at")
    return f"<h2>Every test</h2>\n{table(head, rows, 'In %, on the classes seen so far.', words=(0, 5))}"


def _cost(result: dict[str, Any]) -> str:
    numbers, seconds = result["numbers"], result["seconds"]
    facts = {f"{name}, seconds": f"{value:.1f}" for name, value in seconds.items()}
    facts |= {f"numbers {name}": f"{value:,}" for name, value in numbers.items()}
    if result["peak_memory_mib"] is not None:
        facts["memory at the peak, MiB"] = f"{result['peak_memory_mib']:,.0f}"
    facts |= {name: str(value) for name, value in (result["config"] | result["machine"] | result["versions"]).items()}
    return (
        "<h2>Time, memory and settings</h2>\n"
        + table(("", ""), list(facts.items()))
        + '<p class="soft">All numbers are in this page as JSON (script element "result") and in result.json.</p>'
    )
