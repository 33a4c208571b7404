"""flyk merge: routers that learned apart, as the one that learned all of it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flyk.nn import REAR


def merge(
    files: Annotated[list[Path], typer.Argument(help="Files that REAR.save wrote, two or more.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The file to write, .safetensors.")],
) -> None:
    """Add up the statistics of REAR routers, each of rows of its own.

    All must be of one seed, kind and ridge, and of the same expansion; the largest number of experts is kept. Whether
    two files hold the same rows nothing in them can tell.

    \b
    Examples:
      flyk merge monday.safetensors tuesday.safetensors -o week.safetensors
      flyk merge rank*.safetensors -o all.safetensors
    """
    if len(files) < 2:
        raise ValueError(f"merge needs two files or more, got {len(files)}")
    total = None
    for path in files:
        router = REAR.load(path)
        typer.echo(f"{path}: {_told(router)}")
        try:
            total = router if total is None else total.merge_(router)
        except ValueError as error:
            raise ValueError(f"{path} does not go with {files[0]}: {error}") from None
    assert total is not None
    total.save(output)
    typer.echo(f"{output}: {_told(total)}")


def _told(router: REAR) -> str:
    return f"{int(router.counts.sum())} rows of {int((router.counts > 0).sum())} experts"
