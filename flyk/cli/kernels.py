"""flyk kernels: every Triton kernel, compiled on the spot for every architecture, and what it takes of the GPU."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Annotated, Any

import typer
from tqdm import tqdm

from flyk import tuning
from flyk.cli.columns import columns
from flyk.cli.output import echo_json

HEAD = ("kernel", "dtype", "architecture", "configuration", "registers", "spills", "shared")


def kernels(
    architecture: Annotated[
        list[str] | None, typer.Option(help="One of them only; may be repeated.", show_default="all")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="The same as JSON.")] = False,
) -> None:
    """Compile every Triton kernel in every configuration, and list registers, spilled bytes and shared memory.

    Needs triton and no GPU; takes a minute or two at first, then triton's cache has them.

    \b
    Examples:
      flyk kernels --architecture sm_90
      flyk kernels --json
    """
    if importlib.util.find_spec("triton") is None:
        raise ValueError("kernels need triton to be compiled, which is not installed")
    chosen = architecture or list(tuning.GPUS)
    for name in chosen:
        if name not in tuning.GPUS:
            raise ValueError(f"--architecture must be among {', '.join(tuning.GPUS)}, got {name!r}")
    found = collect(chosen)
    if json:
        echo_json(found)
        return
    typer.echo(columns([HEAD, *([_cell(row[name]) for name in HEAD] for row in found)], right=(4, 5, 6)))


def collect(architectures: list[str]) -> list[dict[str, Any]]:
    """A row for each kernel, dtype, configuration and architecture."""
    compiler = importlib.import_module("flyk.backends.triton._compile")
    built = (kernel for name in architectures for kernel in compiler.compiled(name))
    return [
        {"operator": kernel.operator} | {name: getattr(kernel, name) for name in HEAD}
        for kernel in tqdm(built, disable=None, unit="kernel", leave=False)
    ]


def _cell(value: Any) -> str:
    return " ".join(f"{k}={v}" for k, v in value.items()) if isinstance(value, dict) else str(value)
