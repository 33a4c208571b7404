"""flyk merge: routers that learned apart, as the one that learned all of it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from flyk.cli.output import echo_json
from flyk.nn import REAR


def merge(
    files: Annotated[list[Path], typer.Argument(help="Files that REAR.save wrote, two or more.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The file to write, .safetensors.")],
    json_: Annotated[bool, typer.Option("--json", help="Rows and experts of each file as JSON.")] = False,
) -> None:
    """Add up the statistics of REAR routers, each of rows of its own.

    All must be of one seed, kind and ridge, and of the same expansion; the largest number of experts is kept. The
    output may take the place of one of the files. Whether two files hold the same rows nothing in them can tell.

    \b
    Examples:
      flyk merge monday.safetensors tuesday.safetensors -o week.safetensors
      flyk merge rank*.safetensors -o all.safetensors
    """
    if len(files) < 2:
        raise ValueError(f"merge needs two files or more, got {len(files)}")
    given = [path.resolve() for path in files]
    for path, place in zip(files, given, strict=True):
        if given.count(place) > 1:
            raise ValueError(f"merge needs each file once, else its rows count twice; got {path} more than once")
    told, total = [], None
    for path in files:
        router = REAR.load(path)
        told.append(_told(path, router))
        try:
            total = router if total is None else total.merge_(router)
        except ValueError as error:
            raise ValueError(f"{path} does not go with {files[0]}: {error}") from None
    assert total is not None
    total.save(output)
    told.append(_told(output, total))
    if json_:
        echo_json(told)
    else:
        for one in told:
            typer.echo(f"{one['file']}: {one['rows']} rows of {one['experts']} experts")


def _told(path: Path, router: REAR) -> dict[str, Any]:
    return {"file": str(path), "rows": int(router.counts.sum()), "experts": int((router.counts > 0).sum())}
