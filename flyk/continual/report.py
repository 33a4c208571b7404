"""The report of a stream: one self-contained HTML file, with the same numbers as JSON beside it."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Any

from flyk._page import finite, percent, table, write_page
from flyk.continual import charts


def write_report(result: dict[str, Any], folder: Path) -> Path:
    """Writes report.json and report.html into `folder`, each whole or not at all, and returns the HTML's path.

    Args:
        result: what demo.run returned, and perhaps "command".
        folder: made if it is not there.
    """
    result = finite(result)
    return write_page(result, f"flyk demo: {result['data']['source']}", render(result), folder)


def render(result: dict[str, Any]) -> list[str]:
    """The parts of the page, one after the other."""
    makers = (_head, _charts, _results, _order, _stream, _cost, _run)
    return [make(result) for make in makers]


def _head(result: dict[str, Any]) -> str:
    data, settings, final = result["data"], result["settings"], result["final"]
    names = list(final)
    cost = "in all" + (", features from the cache" if data["features_from_cache"] else "")
    if result["peak_memory_mib"] is not None:
        cost += f"; {result['peak_memory_mib']:,.0f} MiB of memory at the peak"
    cards = [
        (percent(final[names[0]]) + " %", f"final accuracy of the {names[0]}"),
        (percent(final[names[-1]]) + " %", "ridge on all data at once in float64, the ceiling"),
        (percent(final[names[1]]) + " %", f"final accuracy of the {names[1]}"),
        (percent(final[names[2]]) + " %", f"final accuracy of {names[2]}"),
        (percent(result["routing"]["final"]) + " %", "of test samples routed to the home task of their class"),
        (f"{result['seconds']['in all']:.0f} s", cost),
    ]
    items = "\n".join(f"<li><b>{escape(value)}</b>{escape(label)}</li>" for value, label in cards)
    return (
        f"<h1>flyk demo</h1>\n<p>{escape(data['source'])}: {data['train']:,} training samples of "
        f"{len(data['classes'])} classes, each seen once, in {settings['tasks']} tasks of a Si-Blurry stream; "
        f'{data["test"]:,} test samples. Tests are on the classes seen so far.</p>\n<ul class="cards">\n{items}\n</ul>'
    )


def _charts(result: dict[str, Any]) -> str:
    tests, names = result["tests"], list(result["final"])
    figures = [
        (
            charts.accuracy_chart(tests, result["final"][names[-1]]),
            "Accuracy over the stream; upright lines are task ends. A class counts as seen from its first sample on, "
            "also where it is known by a few mixed-in samples alone.",
        ),
        (
            charts.routing_chart(tests, result["routing"]["chance"]),
            "How often REAR picks the task that holds most of a test sample's class.",
        ),
        (charts.stream_chart(result["stream"]), "The stream: what each task is made of."),
    ]
    inner = "\n".join(f"<figure>{svg}<figcaption>{escape(text)}</figcaption></figure>" for svg, text in figures)
    return f'<h2>Over the stream</h2>\n<div class="charts">\n{inner}\n</div>'


def _results(result: dict[str, Any]) -> str:
    rows = [
        (name, percent(result["final"][name]), *(percent(m[key]) for key in ("a_auc", "a_avg", "forgetting", "bwt")))
        for name, m in result["measures"].items()
    ]
    ceiling = list(result["final"])[-1]
    rows.append((ceiling, percent(result["final"][ceiling]), "–", "–", "–", "–"))
    measures = table(
        ("", "final", "A_auc", "A_avg", "forgetting", "BWT"),
        rows,
        "Accuracy in %. final: after the whole stream. A_auc: mean of the tests at equal intervals. A_avg: mean of the "
        "tests at task ends. forgetting: mean fall of a class from its best task end to the last; lower is better. "
        "BWT: mean change of a class from its first task end to the last.",
    )
    gap = percent(result["gap_to_ceiling"], 2)
    return f"<h2>Results</h2>\n{measures}\n<p>{escape(next(iter(result['final'])))} minus ceiling: {gap} points.</p>"


def _order(result: dict[str, Any]) -> str:
    order = result["order_freedom"]
    rows = [
        ("Gram G, largest difference over largest entry", f"{order['gram_difference']:.1e}"),
        ("solution U, largest difference over largest entry", f"{order['solution_difference']:.1e}"),
        ("test samples predicted the same, %", percent(order["same_predictions"], 2)),
    ]
    return (
        "<h2>Order does not matter to REAR</h2>\n<p>The same training samples in random order and other batches, shown "
        "to a second REAR. The statistics are sums, so that only float32 rounding differs; the solution shows it "
        f"enlarged by the condition of G.</p>\n{table(('stream against shuffled', ''), rows)}"
    )


def _stream(result: dict[str, Any]) -> str:
    rows = [
        (
            str(number),
            f"{task['disjoint']:,}",
            f"{task['blurry_at_home']:,}",
            f"{task['mixed_in']:,}",
            ", ".join(task["disjoint_classes"]) or "–",
            ", ".join(task["blurry_classes"]) or "–",
        )
        for number, task in enumerate(result["stream"], 1)
    ]
    head = ("task", "disjoint", "blurry at home", "mixed in", "disjoint classes", "blurry classes")
    caption = "Training samples of each task by kind, and the classes whose home the task is."
    return f"<h2>Tasks</h2>\n{table(head, rows, caption, words=(0, 4, 5))}"


def _cost(result: dict[str, Any]) -> str:
    seconds = result["seconds"]
    rows = [
        (name, f"{seconds['learning'][name]:.2f}", f"{seconds['testing'][name]:.2f}") for name in result["measures"]
    ]
    whole = [(name, f"{value:.2f}") for name, value in seconds.items() if not isinstance(value, dict)]
    tests = len(result["tests"]["samples"])
    return (
        "<h2>Seconds</h2>\n"
        + table(("learner", "learning", "testing"), rows, f"Learning the whole stream, and {tests} tests.")
        + table(("part", "seconds"), whole)
    )


def _run(result: dict[str, Any]) -> str:
    settings = {name: "default" if value is None else value for name, value in result["settings"].items()}
    facts = settings | {"ridge used": f"{result['ridge']:.4g}"} | result["machine"] | result["versions"]
    tests = result["tests"]
    learners = list(tests["accuracy"])
    rows = [
        (
            f"{samples:,}",
            str(tests["task"][i] + 1),
            str(tests["exposed_classes"][i]),
            *(percent(tests["accuracy"][name][i]) for name in learners),
            percent(tests["routing"][i]),
        )
        for i, samples in enumerate(tests["samples"])
    ]
    command = f"<p><code>{escape(result['command'])}</code></p>" if "command" in result else ""
    head = ("samples seen", "task", "classes seen", *learners, "routing")
    every = table(head, rows, "Accuracy in % on the classes seen so far.")
    return (
        f"<h2>Every test</h2>\n{every}\n"
        f"<h2>This run</h2>\n{command}\n"
        + table(("", ""), [(name, str(value)) for name, value in facts.items()])
        + '<p class="soft">All numbers are in this page as JSON (script element "result") and in report.json.</p>'
    )
