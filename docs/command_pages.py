"""A page for each command, made from its --help."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from flyk.cli import COMMANDS, app

PAGES = Path(__file__).parent / "commands"


def page(name: str) -> str:
    text = CliRunner().invoke(app, [name, "--help"], prog_name="flyk", terminal_width=100).output
    return f"# flyk {name}\n\n```text\n{text}```\n"


def write(sphinx: Any) -> None:
    PAGES.mkdir(exist_ok=True)
    for name in COMMANDS:
        path, text = PAGES / f"{name}.md", page(name)
        if not path.exists() or path.read_text() != text:
            path.write_text(text)


def setup(sphinx: Any) -> dict[str, bool]:
    sphinx.connect("builder-inited", write)
    return {"parallel_read_safe": True}
