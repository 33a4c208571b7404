"""flyk check: every operator on the backend that serves it, against the plain reference in float64; or the theory."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from tqdm import tqdm

from flyk.check import SUBJECTS, Result, cases_of, check_case, serving
from flyk.check.theory import STATEMENTS, Measured
from flyk.cli.columns import columns
from flyk.cli.output import writable, write_json


def check(
    device: Annotated[str, typer.Option(help="cpu, cuda or cuda:N.")] = "cpu",
    op: Annotated[
        list[str] | None,
        typer.Option(help="Operator to check; may be repeated or a list with commas.", show_default="all"),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Every seventh case only.")] = False,
    theory: Annotated[
        bool, typer.Option("--theory", help="The papers' theorems as numbers instead, on the CPU, in under a minute.")
    ] = False,
    json: Annotated[Path | None, typer.Option(help="Write every result to this .json file.")] = None,
) -> None:
    """Hold every operator, as it is served here, against the plain reference in float64.

    Prints the largest error of each as a share of what rounding may cost, and exits with 1 if any exceeds it. With
    --theory it prints for each statement of the papers what it foretells and what flyk gives, and exits with 1 if they
    differ by more than the tolerance.

    \b
    Examples:
      flyk check --quick
      flyk check --op fly_lora,gram_ --device cuda
      flyk check --theory --json theory.json
    """
    try:
        writable("--json", json, ".json")
        if theory and (op or quick or device != "cpu"):
            raise ValueError("--theory must be given without --op, --quick and --device, got one of them")
        operators, on = chosen(op), usable(device)
    except ValueError as error:
        typer.echo(f"flyk check: {error}", err=True)
        raise typer.Exit(2) from None
    results, failed = check_theory() if theory else check_operators(operators, on, quick)
    kind = "numbers" if theory else "cases"
    typer.echo(f"{len(results)} {kind}, {len(results) - failed} passed, {failed} failed")
    write_json({kind: results}, json)
    if failed:
        raise typer.Exit(1)


def check_operators(operators: list[str], device: torch.device, quick: bool) -> tuple[list[dict[str, Any]], int]:
    """Run the cases and print a table; every result for JSON, and how many failed."""
    cases = [case for operator in operators for case in cases_of(operator, quick=quick)]
    results: list[Result] = []
    try:
        for case in tqdm(cases, disable=None, unit="case", leave=False):
            results.append(check_case(case, device))
    except KeyboardInterrupt:
        typer.echo(f"flyk check: interrupted after {len(results)} of {len(cases)} cases", err=True)
        raise typer.Exit(130) from None
    typer.echo(table(results, device.type))
    failed = [result for result in results if not result.passed]
    for result in failed:
        typer.echo(f"FAILED {result}")
    return [_as_json(result) for result in results], len(failed)


def _as_json(result: Result) -> dict[str, Any]:
    share = None if result.fault else result.share  # infinity is not JSON
    said = {"case": result.case.name, "passed": result.passed, "share": share}
    return said | {"where": result.where, "fault": result.fault}


def check_theory() -> tuple[list[dict[str, Any]], int]:
    """Measure each statement and print its numbers; every one for JSON, and how many failed."""
    found: list[dict[str, Any]] = []
    for statement in STATEMENTS:
        numbers = list(statement.measure())
        typer.echo(f"{statement.source}: {statement.text}\n{numbers_table(numbers)}\n")
        said = {"source": statement.source, "statement": statement.text}
        found += [said | dataclasses.asdict(number) | {"passed": number.passed} for number in numbers]
    return found, sum(not one["passed"] for one in found)


def numbers_table(numbers: list[Measured]) -> str:
    rows = [("", "", "expected", "measured", "tolerance", "")]
    for one in numbers:
        expected, measured, tolerance = (f"{value:.4g}" for value in (one.expected, one.measured, one.tolerance))
        verdict = "passed" if one.passed else "FAILED"
        rows.append((f"  {one.what}", one.relation, expected, measured, tolerance, verdict))
    return columns(rows, right=(2, 3, 4))


def chosen(op: list[str] | None) -> list[str]:
    """The operators that `--op` names, in the order of the whole list."""
    names = [name.strip() for entry in op or [] for name in entry.split(",")]
    for name in names:
        if name not in SUBJECTS:
            raise ValueError(f"--op must be among {', '.join(SUBJECTS)}, got {name!r}")
    return [name for name in SUBJECTS if not names or name in names]


def usable(device: str) -> torch.device:
    """The device, if this machine has it."""
    try:
        on = torch.device(device)
    except RuntimeError:
        on = torch.device("meta")
    if on.type not in ("cpu", "cuda"):
        raise ValueError(f"--device must be cpu, cuda or cuda:N, got {device!r}")
    if on.type == "cuda" and (on.index or 0) >= torch.cuda.device_count():
        raise ValueError(
            f"--device must be on this machine, which has {torch.cuda.device_count()} GPUs, got {device!r}"
        )
    return on


def table(results: list[Result], device: str) -> str:
    """A line for each operator and for its gradient: who served it, how many cases, the largest error and where."""
    groups: dict[tuple[str, str], list[Result]] = {}
    for result in results:
        kind = " gradient" if result.case.gradient else ""
        groups.setdefault((result.case.operator, kind), []).append(result)
    lines = [f"{'operator':30} {'served by':>10} {'cases':>6} {'failed':>6} {'error / allowed':>15}  worst case"]
    for (operator, kind), group in groups.items():
        worst = max(group, key=lambda result: result.share)
        failed = sum(not result.passed for result in group)
        inputs = worst.case.name.removeprefix(operator + kind + " ") if worst.share else "none: every bit agrees"
        counts = f"{serving(operator, device):>10} {len(group):6} {failed:6}"
        lines.append(f"{operator + kind:30} {counts} {worst.share:15.3f}  {inputs}")
    return "\n".join(lines)
