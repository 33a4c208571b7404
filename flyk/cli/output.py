"""What a command prints or writes at its end for programs to read."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import typer

from flyk._files import write_whole
from flyk._page import finite


def writable(option: str, path: Path | None, *suffixes: str) -> None:
    """Refuse a file that could not be written at the end, before the run."""
    if path is None:
        return
    if path.suffix not in suffixes:
        raise ValueError(f"{option} must end in {' or '.join(suffixes)}, got {path}")
    if path.is_dir() or not os.access(path.parent, os.W_OK):
        raise ValueError(f"{option} must be a file in a folder that exists and can be written to, got {path}")


def echo_json(result: Any) -> None:
    """Print `result` as one line of JSON, with null for NaN and infinities."""
    typer.echo(json.dumps(finite(result), allow_nan=False))


def write_json(result: dict[str, Any], path: Path | None) -> None:
    """Write `result` to `path`, whole or not at all; nothing where that is None."""
    if path:
        with write_whole(path) as part:
            part.write_text(json.dumps(result, indent=1) + "\n")
