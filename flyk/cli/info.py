"""flyk info: versions, machine, and what serves each operator on each device."""

from __future__ import annotations

import importlib
import json as json_module
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

import flyk
from flyk import backends, ops
from flyk.bench._machine import machine
from flyk.cli.columns import columns

NO_GPU_KERNELS = "reference; kernels for the GPU are not built yet; not yet measured on a GPU"


def info(json: Annotated[bool, typer.Option("--json", help="The same as JSON.")] = False) -> None:
    """Versions, machine, instruction set, threads, and which backend serves each operator and why not another."""
    found = collect()
    typer.echo(json_module.dumps(found, indent=2) if json else text(found))


def collect() -> dict[str, Any]:
    devices = ["cpu"] + ["cuda"] * torch.cuda.is_available()
    return {
        **machine(),
        "instruction_sets": instruction_sets(),
        "openmp": openmp(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "missing": backends.missing,
        "operators": {name: {device: served(name, device) for device in devices} for name in ops.__all__},
    }


def served(op: str, device: str) -> str:
    """What serves an operator on a device, and why nothing faster does, in a sentence."""
    if device == "cuda":
        return NO_GPU_KERNELS
    if "cpu" in backends.missing:
        return f"reference: {backends.missing['cpu']}"
    return importlib.import_module("flyk.backends.cpu").SERVED[op]


def instruction_sets() -> list[str]:
    """The builds of the kernels that this processor can run, as csrc lists them when asked for one it has not."""
    if "cpu" in backends.missing:
        return []
    folder = Path(flyk.__file__).parent
    asked = subprocess.run(
        [sys.executable, "-c", "import _C; _C.isa()"],
        cwd=folder,
        env=os.environ | {"FLYK_CPU": "?"},
        capture_output=True,
        text=True,
    )
    names = re.search(r"must be one of (.+) on this processor", asked.stderr)
    return names[1].split(", ") if names else []


def openmp() -> str:
    """The OpenMP runtime that torch brought, whose threads flyk's kernels borrow."""
    names = sorted(path.name for path in Path(torch.__file__).parent.glob("lib/lib*omp*"))
    found = [name for name in names if re.match("lib[gi]?omp", name)]
    return found[0] if found else "none beside it, so flyk's kernels run on the calling thread"


def text(found: dict[str, Any]) -> str:
    sets = found["instruction_sets"]
    kernels = found["kernels"] + (f"; FLYK_CPU can force {', '.join(sets)}" if sets else "")
    head = [
        ["versions", f"flyk {found['flyk']}, torch {found['torch']}, Python {found['python']}"],
        ["machine", f"{found['system']}, {found['processor']}, {found['cores']} cores"],
        ["kernels", kernels],
        ["threads", f"{found['threads']}, from the OpenMP pool of torch ({found['openmp']})"],
        ["GPU", found["gpu"] or "none that torch can use"],
    ]
    rows = [["operator", "device", "served by"]] + [
        [name, device, by] for name, devices in found["operators"].items() for device, by in devices.items()
    ]
    return f"{columns(head)}\n\n{columns(rows)}"
