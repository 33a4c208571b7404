"""A page for each command, made from its --help."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer
from typer.testing import CliRunner

from flyk.cli import COMMANDS, app

PAGES = Path(__file__).parent / "commands"


def helps(command: Any, *name: str) -> str:
    """The help of a command, and of the commands that it has."""
    text = CliRunner().invoke(app, [*name, "--help"], prog_name="flyk", terminal_width=100).output
    own = "".join(helps(sub, *name, each) for each, sub in getattr(command, "commands", {}).items())
    return f"```text\n{text}```\n\n{own}"


def page(name: str) -> str:
    main = typer.main.get_command(app)
    return f"# flyk {name}\n\n{helps(main.get_command(None, name), name)}"


def write(sphinx: Any) -> None:
    PAGES.mkdir(exist_ok=True)
    for name in COMMANDS:
        path, text = PAGES / f"{name}.md", page(name)
        if not path.exists() or path.read_text() != text:
            path.write_text(text)


def setup(sphinx: Any) -> dict[str, bool]:
    sphinx.connect("builder-inited", write)
    return {"parallel_read_safe": True}
