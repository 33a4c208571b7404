"""flyk demo: real images through a frozen backbone, played once as a stream; a table here and a report on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from flyk.cli.demo_lora import lora
from flyk.cli.output import echo_json

app = typer.Typer(name="demo", add_completion=False, rich_markup_mode=None, invoke_without_command=True)
app.command()(lora)


@app.callback()
def demo(
    context: typer.Context,
    data: Annotated[
        str | None,
        typer.Option(
            help="Images: a folder with a folder for each class, an .npz pack, or a torchvision set by name.",
            show_default="5,000 MNIST digits",
        ),
    ] = None,
    features: Annotated[
        str | None,
        typer.Option(
            help="Features instead: .npz or .safetensors with x (N, d) and y (N), or .npy with y as last column."
        ),
    ] = None,
    tasks: Annotated[int, typer.Option(help="Tasks of the stream.")] = 5,
    n: Annotated[float, typer.Option("--n", help="Per cent of the classes that are disjoint between tasks.")] = 50,
    m: Annotated[float, typer.Option("--m", help="Per cent of the other classes' samples, mixed over all tasks.")] = 10,
    random_cuts: Annotated[bool, typer.Option("--random-cuts", help="Unequal tasks, by random cuts.")] = False,
    expansion: Annotated[int, typer.Option(help="Size of REAR's expansion.")] = 4096,
    ridge: Annotated[float | None, typer.Option(help="REAR's ridge.", show_default="from the features' scale")] = None,
    resolution: Annotated[int, typer.Option(help="Pixels at the backbone's input.")] = 96,
    batch_size: Annotated[int, typer.Option(help="Training samples a batch.")] = 64,
    evals: Annotated[int, typer.Option(help="Tests at equal intervals, besides those at task ends.")] = 10,
    seed: Annotated[int, typer.Option(help="Decides split, stream, expansion and heads.")] = 0,
    quick: Annotated[bool, typer.Option("--quick", help="About 1,500 samples only.")] = False,
    device: Annotated[str, typer.Option(help="cpu, cuda or cuda:N.")] = "cpu",
    out: Annotated[Path, typer.Option(help="Folder for report.html and report.json.")] = Path("flyk-demo"),
    json_: Annotated[bool, typer.Option("--json", help="The results as JSON, in place of the table.")] = False,
) -> None:
    """Play real images once as a class-incremental stream: REAR and TE2 heads against their rivals.

    The last line printed is the path of the report.
    """
    if context.invoked_subcommand is not None:
        return
    settings = dict(locals())  # the options are the fields of Settings, but for these
    del settings["out"], settings["context"], settings["json_"]
    try:
        from flyk._charts import need_matplotlib
        from flyk.continual import demo as continual
        from flyk.continual.report import write_report

        need_matplotlib()  # said before the work, not after it

        out.mkdir(parents=True, exist_ok=True)
        result = continual.run(continual.Settings(**settings))
        report = write_report(result, out)
    except KeyboardInterrupt:
        typer.echo("flyk demo: interrupted, no report was written", err=True)
        raise typer.Exit(130) from None
    except (ValueError, ModuleNotFoundError, OSError) as error:
        typer.echo(f"flyk demo: {error}", err=True)
        raise typer.Exit(2) from None
    if json_:
        echo_json(result | {"report": str(report)})
    else:
        typer.echo(f"{summary(result)}\n{report}")


def summary(result: dict[str, Any]) -> str:
    """The results as a few lines of plain text."""
    data, seconds, order = result["data"], result["seconds"], result["order_freedom"]
    width = max(len(name) for name in result["final"])
    lines = [
        data["source"],
        f"{len(data['classes'])} classes, {data['train']:,} training samples, {data['test']:,} test samples",
        f"{'accuracy in %':{width}}  {'final':>6} {'A_auc':>6} {'A_avg':>6} {'forgetting':>10} {'seconds':>8}",
    ]
    for name, final in result["final"].items():
        line = f"{name:{width}}  {_points(final)}"
        if name in result["measures"]:
            measures = result["measures"][name]
            spent = seconds["learning"][name] + seconds["testing"][name]
            line += f" {_points(measures['a_auc'])} {_points(measures['a_avg'])} {_points(measures['forgetting'], 10)}"
            line += f" {spent:8.2f}"
        lines.append(line)
    cache = {True: ", features from the cache", False: f", {seconds['features']:.1f} of them for features", None: ""}
    memory = result["peak_memory_mib"]
    return "\n".join(
        [
            *lines,
            f"routing accuracy {_points(result['routing']['final'], 0)} %, "
            f"REAR classifier minus ceiling {100 * result['gap_to_ceiling']:.2f} points",
            f"same stream shuffled: {100 * order['same_predictions']:.2f} % of predictions agree, "
            f"G differs by {order['gram_difference']:.1e} and U by {order['solution_difference']:.1e}",
            f"{seconds['in all']:.1f} seconds{cache[data['features_from_cache']]}"
            + ("" if memory is None else f"; peak memory {memory:,.0f} MiB"),
        ]
    )


def _points(value: float, width: int = 6) -> str:
    return f"{100 * value:{width}.1f}"
