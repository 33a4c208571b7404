"""The command line: flyk info, check, bench, kernels, demo, continual and merge.

A command is the function of its own name in the file of that name, imported when it is asked for; where that file has
an `app`, it is a command with commands of its own.
"""

from __future__ import annotations

import importlib
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import flyk

COMMANDS = ("info", "check", "bench", "kernels", "demo", "continual", "merge")


class Commands(TyperGroup):
    """Loads commands on demand, and says in one line what a user did wrong or that he stopped."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            return None
        file = importlib.import_module(f"flyk.cli.{cmd_name}")
        command = getattr(file, "app", None)
        if command is None:
            command = typer.Typer(add_completion=False, rich_markup_mode=None)
            command.command(cmd_name)(getattr(file, cmd_name))
        return typer.main.get_command(command)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            typer.echo(f"flyk {ctx.invoked_subcommand}: interrupted", err=True)
            raise typer.Exit(130) from None
        except (ValueError, OSError, ModuleNotFoundError) as error:
            typer.echo(f"flyk {ctx.invoked_subcommand}: {error}", err=True)
            raise typer.Exit(2) from None


EPILOG = """\b
To begin with:
  flyk info                      what serves each operator on this machine
  flyk check --quick             whether it is right
  flyk bench --quick             how fast it is
  flyk demo                      what it is for, on real images
  flyk --install-completion      commands and options by the tab key

\b
Exit status:
  0    all is well
  1    a fault was found: an operator is wrong
  2    the command was given wrongly, or something that it needs is missing
  130  it was interrupted
"""

app = typer.Typer(cls=Commands, no_args_is_help=True, rich_markup_mode=None, epilog=EPILOG)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"flyk {flyk.__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="The version.")] = False,
) -> None:
    """Fly-inspired methods made fast: FlyLoRA, REAR, TE2 and FlyPrompt."""


def main() -> None:
    """Entry point of the `flyk` command and of `python -m flyk`."""
    app(prog_name="flyk")
