"""flyk info: versions, machine, and what serves each operator on each device."""

from __future__ import annotations

import importlib
from typing import Annotated, Any

import torch
import typer

from flyk import backends, ops
from flyk._machine import machine
from flyk.cli.columns import columns
from flyk.cli.output import echo_json


def info(json: Annotated[bool, typer.Option("--json", help="The same as JSON.")] = False) -> None:
    """Versions, machine, instruction set, threads, and which backend serves each operator and why not another.

    \b
    Examples:
      flyk info
      flyk info --json
    """
    found = collect()
    if json:
        echo_json(found)
    else:
        typer.echo(text(found))


def collect() -> dict[str, Any]:
    devices = ["cpu"] + ["cuda"] * torch.cuda.is_available()
    return {
        **machine(),
        "instruction_sets": _kernels().INSTRUCTION_SETS if _kernels() else [],
        "openmp": _kernels().POOL if _kernels() else None,
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "missing": backends.missing,
        "operators": {name: {device: served(name, device) for device in devices} for name in ops.__all__},
    }


def served(op: str, device: str) -> str:
    """What serves an operator on a device, and why nothing faster does, in a sentence."""
    backend = "triton" if device == "cuda" else "cpu"
    if backend in backends.missing:
        unmeasured = "; not yet measured on a GPU" if device == "cuda" else ""
        return f"reference: {backends.missing[backend]}{unmeasured}"
    return importlib.import_module(f"flyk.backends.{backend}").SERVED.get(op, "reference; not yet measured on a GPU")


def _kernels() -> Any:
    """The CPU backend, or None where it is not live."""
    return None if "cpu" in backends.missing else importlib.import_module("flyk.backends.cpu")


def text(found: dict[str, Any]) -> str:
    sets = found["instruction_sets"]
    kernels = found["kernels"] + (f"; FLYK_CPU can force {', '.join(sets)}" if sets else "")
    pool = (
        f"from torch's OpenMP pool ({found['openmp']})" if found["openmp"] else "flyk's kernels use the caller's alone"
    )
    head = [
        ["versions", f"flyk {found['flyk']}, torch {found['torch']}, Python {found['python']}"],
        ["machine", f"{found['system']}, {found['processor']}, {found['cores']} cores"],
        ["kernels", kernels],
        ["threads", f"{found['threads']}, {pool}"],
        ["GPU", found["gpu"] or "none that torch can use"],
    ]
    rows = [["operator", "device", "served by"]] + [
        [name, device, by] for name, devices in found["operators"].items() for device, by in devices.items()
    ]
    return f"{columns(head)}\n\n{columns(rows)}"
