"""flyk bench: each operator against its rivals, as a table, JSON and a chart; and how it scales, and its memory."""

from __future__ import annotations

import importlib.util
import os
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from flyk import backends
from flyk._files import write_whole
from flyk.cli import bench_text
from flyk.cli.check import usable
from flyk.cli.output import writable, write_json

# Quick or not: at least so many rounds, and so many seconds of them.
ROUNDS = {True: (5, 0.2), False: (7, 3.0)}
SCALING_ROUNDS = {True: (3, 0.0), False: (5, 0.3)}


def bench(
    op: Annotated[
        list[str] | None,
        typer.Option(help="Operator to measure; may be repeated or a list with commas.", show_default="all"),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A few small cases, in under a minute.")] = False,
    scaling: Annotated[
        bool, typer.Option("--scaling", help="Time against rows, widths, k and threads instead, in some minutes.")
    ] = False,
    memory: Annotated[bool, typer.Option("--memory", help="Measure memory instead of time; Linux only.")] = False,
    tune: Annotated[
        bool, typer.Option("--tune", help="Find the crossovers of the CPU's dispatch and keep them in flyk/tuning.")
    ] = False,
    device: Annotated[str, typer.Option(help="cpu, cuda or cuda:N.")] = "cpu",
    limit: Annotated[float | None, typer.Option(help="Seconds after which no further case is begun.")] = None,
    json: Annotated[
        Path | None,
        typer.Option(help="Write everything measured to this .json file; with --tune, the crossovers, not to flyk."),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(help="Draw into this .svg or .png file; with --scaling, a file of each operator beside it."),
    ] = None,
) -> None:
    """Time each operator against the published algorithm, the best eager PyTorch and torch.compile of that.

    Rounds are interleaved. Beside each time stands its error against float64, and no time is given where one is
    wrong: the exit code is then 1.

    \b
    Examples:
      flyk bench --quick
      flyk bench --op winner_take_all --json out.json --plot out.svg
      flyk bench --scaling --op fly_lora --plot scaling.svg
      flyk bench --memory
    """
    kinds = [name for name, wanted in (("scaling", scaling), ("memory", memory), ("tune", tune)) if wanted]
    if len(kinds) > 1:
        raise ValueError(f"--{kinds[1]} must be given without --{kinds[0]}, got both")
    on = usable(device)
    if kinds and on.type != "cpu":
        raise ValueError(f"--device must be cpu with --{kinds[0]}, which knows no other, got {device!r}")
    if kinds and limit is not None:
        raise ValueError(f"--limit must be given without --{kinds[0]}, got {limit}")
    if plot and (memory or tune):
        raise ValueError(f"--plot must be given without --{kinds[0]}, which draws nothing, got {plot}")
    writable("--json", json, ".json")
    writable("--plot", plot, ".svg", ".png")
    if plot and importlib.util.find_spec("matplotlib") is None:
        raise ValueError("--plot needs matplotlib, which is not installed: pip install 'flyk[bench]'")

    operators = [name.strip() for entry in op or [] for name in entry.split(",")]
    if kinds:
        run = {"scaling": run_scaling, "memory": run_memory, "tune": run_tune}[kinds[0]]
        wrong = run(operators, quick, json, plot)
    else:
        wrong = run_speed(operators, quick, json, plot, on, limit)
    raise typer.Exit(int(wrong))


def run_speed(
    operators: list[str], quick: bool, json: Path | None, plot: Path | None, device: torch.device, limit: float | None
) -> bool:
    """Time every case; True where one is wrong."""
    from flyk.bench import _cuda, cases
    from flyk.bench._ceilings import ceilings
    from flyk.bench._measure import measure

    begin, chosen, about = time.monotonic(), cases(operators, quick=quick), _about(quick)
    if device.type == "cuda":
        about["machine"] |= _cuda.machine(device)
        limits, measure = _cuda.ceilings(device), _cuda.measure_on(device)
    else:
        limits = ceilings()
    least, budget = ROUNDS[quick] if device.type == "cpu" else _cuda.ROUNDS
    measured = []
    for case in _progress(chosen, unit="case"):
        if limit is not None and time.monotonic() - begin > limit:
            break
        measured.append(measure(case, limits, least=least, budget=budget))
    result = about | {
        "ceilings": {"copy_bytes_per_second": limits.copy, "flop_per_second": limits.flop_rate},
        "cases": measured,
        "left_out": [case.name for case in chosen[len(measured) :]],
    }
    typer.echo(bench_text.speed(result))
    write_json(result, json)
    if plot:
        from flyk.bench._chart import draw

        with write_whole(plot) as part:
            draw(result, part)
    return any(case["check"] == "red" for case in measured)


def run_scaling(operators: list[str], quick: bool, json: Path | None, plot: Path | None) -> bool:
    """Time every curve; True where a point is wrong."""
    from flyk.bench._scaling import chosen, draw, limits_by_threads, measured

    todo = chosen(operators)
    about, limits = _about(quick), limits_by_threads()
    least, budget = SCALING_ROUNDS[quick]
    curves = [
        measured(curve, cases, limits, least=least, budget=budget) for curve, cases in _progress(todo, unit="curve")
    ]
    result = about | {"curves": curves}
    typer.echo(bench_text.scaling(result))
    write_json(result, json)
    if plot:
        draw(result, plot)
    return any(point["fault"] for curve in curves for point in curve["points"])


def run_memory(operators: list[str], quick: bool, json: Path | None, plot: Path | None) -> bool:
    """Measure the peak of every case, and what layers keep."""
    from flyk.bench._memory import activations, measured

    result = _about(quick) | {"peaks": measured(operators, quick=quick), "activations": activations()}
    typer.echo(bench_text.memory(result))
    write_json(result, json)
    return False


def run_tune(operators: list[str], quick: bool, json: Path | None, plot: Path | None) -> bool:
    """Find every crossover and write them for the instruction set that serves."""
    if "cpu" in backends.missing:
        raise ValueError(f"--tune needs flyk's kernels for the CPU, which do not serve: {backends.missing['cpu']}")
    from flyk import tuning
    from flyk.bench._tune import chosen, find, write

    about = _about(quick)
    path = json or Path(tuning.__file__).with_name(f"{about['machine']['kernels']}.json")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise ValueError(f"--json must name a file to write to, for {path} can't be written, got None")
    found = [find(crossover) for crossover in _progress(chosen(operators), unit="crossover")]
    typer.echo(bench_text.crossovers(about | {"crossovers": found}))
    with write_whole(path) as part:
        if path.exists():
            part.write_text(path.read_text())
        write(found, part)
    typer.echo(f"\nwritten to {path}")
    return False


def _about(quick: bool) -> dict[str, Any]:
    """What every result begins with."""
    from flyk._machine import machine

    return {"machine": machine() | {"command": " ".join(["flyk", *sys.argv[1:]])}, "quick": quick}


def _progress(items: Iterable[Any], unit: str) -> Iterable[Any]:
    from tqdm import tqdm

    return tqdm(items, disable=None, leave=False, unit=unit)
