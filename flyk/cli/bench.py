"""flyk bench: each operator against its rivals, as a table, JSON and a chart."""

from __future__ import annotations

import importlib.util
import json as json_module
import os
from pathlib import Path
from typing import Annotated, Any

import typer

from flyk.cli.columns import columns

ROUNDS = {True: (5, 0.2), False: (7, 3.0)}  # quick or not: at least so many rounds, and so many seconds of them
HEADER = [
    ["case", "published", "eager", "compiled", "flyk", "vs best", "vs publ.", "floor", "reached"],
    ["", "ms, error", "ms, error", "ms, error", "ms, error", "", "", "ms, MB", "%, GFLOP"],
]


def bench(
    op: Annotated[
        list[str] | None,
        typer.Option(help="Operator to measure; may be repeated or a list with commas.", show_default="all"),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A few small cases, in under a minute.")] = False,
    device: Annotated[str, typer.Option(help="cpu is the only one that has kernels yet.")] = "cpu",
    json: Annotated[Path | None, typer.Option(help="Write everything measured to this .json file.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw a bar chart into this .svg or .png file.")] = None,
) -> None:
    """Time each operator against the published algorithm, the best eager PyTorch and torch.compile of that.

    Rounds are interleaved. Beside each time stands its error against float64, and no time is given where one is
    wrong: the exit code is then 1.
    """
    if device != "cpu":
        raise ValueError(f"--device must be cpu, the only one with kernels of flyk yet, got {device!r}")
    writable("--json", json, ".json")
    writable("--plot", plot, ".svg", ".png")
    if plot and importlib.util.find_spec("matplotlib") is None:
        raise ValueError("--plot needs matplotlib, which is not installed: pip install 'flyk[bench]'")

    result = run([name.strip() for entry in op or [] for name in entry.split(",")], quick)
    typer.echo(text(result))
    if json:
        with _whole(json) as part:
            part.write_text(json_module.dumps(result, indent=1) + "\n")
    if plot:
        from flyk.bench._chart import draw

        with _whole(plot) as part:
            draw(result, part)
    raise typer.Exit(int(any(case["check"] == "red" for case in result["cases"])))


def run(operators: list[str], quick: bool) -> dict[str, Any]:
    """Measure, and return all that JSON and table tell."""
    from tqdm import tqdm

    from flyk.bench import cases
    from flyk.bench._machine import ceilings, machine
    from flyk.bench._measure import measure

    chosen, about, limits = cases(operators, quick=quick), machine(), ceilings()
    least, budget = ROUNDS[quick]
    measured = []
    with tqdm(chosen, disable=None, leave=False, unit="case") as bar:
        for case in bar:
            bar.set_postfix_str(case.name)
            measured.append(measure(case, limits, least=least, budget=budget))
    return {
        "machine": about,
        "quick": quick,
        "ceilings": {"copy_bytes_per_second": limits.copy, "flop_per_second": limits.flop_rate},
        "cases": measured,
    }


def writable(option: str, path: Path | None, *suffixes: str) -> None:
    """Refuse a file that could not be written at the end, before the run."""
    if path is None:
        return
    if path.suffix not in suffixes:
        raise ValueError(f"{option} must end in {' or '.join(suffixes)}, got {path}")
    if path.is_dir() or not os.access(path.parent, os.W_OK):
        raise ValueError(f"{option} must be a file in a folder that exists and can be written to, got {path}")


def _whole(path: Path) -> Any:
    from flyk._files import write_whole

    return write_whole(path)


def text(result: dict[str, Any]) -> str:
    """The header, the table and its notes."""
    about, limits, notes = result["machine"], result["ceilings"], []
    rows = list(HEADER)
    for case in result["cases"]:
        rows += _rows(case, notes)
    copy = limits["copy_bytes_per_second"]
    lines = [
        about["command"],
        f"flyk {about['flyk']}, torch {about['torch']}, Python {about['python']}, kernels: {about['kernels']}",
        f"{about['system']}, {about['processor']}, {about['cores']} cores, {about['threads']} threads"
        + ("" if about["load"] is None else f", load {about['load']:.2f} before the run"),
        f"ceilings: copy {copy[min(copy)] / 1e9:.0f} GB/s in cache, {copy[max(copy)] / 1e9:.0f} from memory; "
        f"matrix product {limits['flop_per_second'] / 1e9:.0f} GFLOP/s",
        "",
        columns(rows, right=range(1, len(HEADER[0]))),
        "",
        "medians ± half the distance of the quartiles; errors: largest against float64, of the largest entry; floor:",
        "the longer of moving the bytes and doing the operations at the ceilings; reached: its share of flyk's time",
        *(f"[{at}] {note}" for at, note in enumerate(notes, 1)),
    ]
    return "\n".join(lines)


def _rows(case: dict[str, Any], notes: list[str]) -> list[list[str]]:
    """A case in two lines: times, and errors below them."""
    name, rivals, floor = f"{case['op']} {case['what']}", case["rivals"], case["floor"]["seconds"]
    errors = ["" if rival.get("error") is None else f"{rival['error']:.0e}" for rival in rivals.values()]
    work = [f"{case['floor']['bytes'] / 1e6:.3g}", f"{case['floor']['flop'] / 1e9:.3g}"]
    below = [f"  {case['sizes']}", *errors, "", "", *work]
    if case["check"] == "red":
        return [[name, *["RED"] * 4, *[_note(case["fault"], notes), "", "", ""]], below]
    times = [_time(rival, notes) for rival in rivals.values()]
    if case["published_share"] > 1:
        scaled = f"timed on 1/{case['published_share']} of the rows, times {case['published_share']}"
        times[0] += " " + _note(scaled, notes)
    ours, published = rivals["flyk"]["median"], rivals["published"]["median"]
    best = min(r["median"] for n, r in rivals.items() if n != "flyk" and "median" in r)
    ratios = [f"{best / ours:.2f}x", f"{published / ours:.2f}x", _ms(floor), f"{floor / ours:.0%}"]
    return [[name, *times, *ratios], below]


def _time(rival: dict[str, Any], notes: list[str]) -> str:
    if "median" not in rival:
        return _note(rival["absent"], notes)
    spread = (rival["q3"] - rival["q1"]) / 2
    return f"{_ms(rival['median'])} ±{_ms(spread, like=rival['median'])}"


def _ms(seconds: float, like: float | None = None) -> str:
    """Milliseconds to three figures, or to as many places as those of `like` have."""
    of = seconds if like is None else like
    places = 0 if of >= 0.1 else 1 if of >= 0.01 else 2 if of >= 0.001 else 3
    return f"{seconds * 1e3:.{places}f}"


def _note(sentence: str, notes: list[str]) -> str:
    """The mark of a note below the table; the same sentence has one."""
    if sentence not in notes:
        notes.append(sentence)
    return f"[{notes.index(sentence) + 1}]"
