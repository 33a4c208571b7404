"""flyk continual: runs of methods on streams, their comparison, and the ablation of FlyPrompt."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

continual = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


@continual.command()
def run(
    config: Annotated[Path, typer.Argument(help="A TOML file; see docs/continual.md.")],
    seed: Annotated[list[int] | None, typer.Option(help="In place of the config's; may be given several times.")] = None,
    out: Annotated[Path, typer.Option(help="Folder of runs; this one goes to <out>/<config>/seed-<seed>.")] = Path("runs"),
) -> None:
    """Play a stream to a method. A run that was cut goes on where it was; one that is done is not made again.

    The last lines printed are the paths of the reports.
    """
    from flyk.continual import bench

    for one in seed or [None]:
        changes = {} if one is None else {"seed": one}
        typer.echo(bench.run_config(config, out, changes))
