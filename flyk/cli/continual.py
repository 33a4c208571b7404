"""flyk continual: runs of methods on streams, their comparison, and the ablation of FlyPrompt."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flyk.cli.output import echo_json

app = typer.Typer(
    help="Play streams to FlyPrompt and its rivals, compare runs, and take FlyPrompt apart.",
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command()
def run(
    config: Annotated[Path, typer.Argument(help="A TOML file; see docs/continual.md.")],
    seed: Annotated[
        list[int] | None, typer.Option(help="In place of the config's; may be given several times.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder of runs; this one goes to <out>/<config>/seed-<seed>.")] = Path(
        "runs"
    ),
    json_: Annotated[bool, typer.Option("--json", help="A list of the results as JSON, in place of paths.")] = False,
) -> None:
    """Play a stream to a method. A run that was cut goes on where it was; one that is done is not made again.

    The last lines printed are the paths of the reports.
    """
    from flyk.continual import bench
    from flyk.continual.config import load_config

    changes = [{"seed": one} for one in _once(seed)] or [{}]
    for one in changes:
        load_config(config, **one)  # all of them before the first begins
    done = [bench.run_config(config, out, one) for one in changes]
    if json_:
        echo_json([result for result, _ in done])
    else:
        typer.echo("\n".join(str(report) for _, report in done))


@app.command()
def compare(
    runs: Annotated[list[Path], typer.Argument(help="Folders that hold finished runs, at any depth.")],
    json_: Annotated[bool, typer.Option("--json", help="The rows as JSON.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="The table as Markdown.")] = False,
) -> None:
    """Print a row for each config: mean and standard deviation over its seeds, in %."""
    from flyk.continual.compare import as_text, read_results, summarise

    rows = summarise(read_results(runs))
    if json_:
        echo_json(rows)
    else:
        typer.echo(as_text(rows, markdown))


@app.command()
def ablate(
    config: Annotated[Path, typer.Argument(help="A TOML file of the method flyprompt.")],
    seed: Annotated[
        list[int] | None, typer.Option(help="In place of the config's; may be given several times.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder of runs; see `run`.")] = Path("runs"),
    json_: Annotated[bool, typer.Option("--json", help="The rows as JSON.")] = False,
) -> None:
    """Play FlyPrompt whole and in parts: components, averages, aggregations, masks, routers, expansion and ridge."""
    from flyk.continual import ablate as ablation
    from flyk.continual.config import load_config

    seeds = _once(seed) or [load_config(config).seed]
    results = ablation.ablate(config, out, seeds)
    if json_:
        echo_json(ablation.table(results))
    else:
        typer.echo(ablation.as_text(results))


def _once(seeds: list[int] | None) -> list[int]:
    """The seeds that were given, none of them twice."""
    seeds = seeds or []
    if len(set(seeds)) < len(seeds):
        raise ValueError(f"seed must be given once for each run, got {', '.join(map(str, seeds))}")
    return seeds
