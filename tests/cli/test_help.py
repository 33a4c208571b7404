"""The help teaches: examples that would be taken, exit statuses, completion; and the documents agree with it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.core import TyperGroup
from typer.testing import CliRunner

from flyk.cli import COMMANDS, app

ROOT = Path(__file__).parents[2]
MAIN = typer.main.get_command(app)
UsageError = typer.BadParameter.__base__
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]


def helped(*command: str) -> str:
    return CliRunner().invoke(app, [*command, "--help"], prog_name="flyk").output


def parses(line: str) -> None:
    """Refuses a line that the command would refuse, without running it. A word in capitals stands for a file.

    A bare name of a command is no whole line: that the command is there is enough.
    """
    name, *words = [word.lower() + ".json" if word.isupper() else word for word in line.split()]
    command, context = MAIN, None
    while command and (words or command is MAIN):
        context = command.make_context(name, words, parent=context)
        words = [*getattr(context, "_protected_args", []), *context.args]
        if not isinstance(command, TyperGroup) or not words:
            return
        name, command, words = command.resolve_command(context, words)


def mentioned() -> list[str]:
    """Every whole command line between backquotes in the documents, and in the examples of the help."""
    lines = []
    for path in DOCUMENTS:
        lines += re.findall(r"`(flyk [a-z][^`\n]*)`", path.read_text())
    for name in COMMANDS:
        lines += re.findall(r"(?m)^ +(flyk [a-z].*?)(?:  +.*)?$", helped(name))
    lines += re.findall(r"(?m)^    (flyk [a-z].*?)(?:  +.*)?$", helped())
    return sorted(set(lines))


@pytest.mark.parametrize("line", mentioned())
def test_each_command_line_mentioned_would_be_taken(line: str) -> None:
    parses(line)


def test_what_would_not_be_taken_is_found() -> None:
    for wrong in ("flyk fly", "flyk info --xml", "flyk check --theory yes"):
        with pytest.raises(UsageError):
            parses(wrong)


def test_the_main_help_tells_where_to_begin_and_the_exit_statuses() -> None:
    text = helped()
    assert "flyk check --quick" in text
    assert [int(code) for code in re.findall(r"(?m)^ +(\d+)  ", text)] == [0, 1, 2, 130]
    page = (ROOT / "docs" / "cli.md").read_text()
    assert [int(code) for code in re.findall(r"(?m)^\| (\d+) \|", page)] == [0, 1, 2, 130]


def test_the_page_knows_every_command() -> None:
    page = (ROOT / "docs" / "cli.md").read_text()
    assert [name for name in COMMANDS if f"`flyk {name}" not in page] == []


@pytest.mark.parametrize(
    ("typed", "offered"), [("flyk ", set(COMMANDS)), ("flyk ch", {"check"}), ("flyk info --js", {"--json"})]
)
def test_the_tab_key(typed: str, offered: set[str]) -> None:
    asked = {"_FLYK_COMPLETE": "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": str(len(typed.split(" ")) - 1)}
    shown = subprocess.run(
        [sys.executable, "-c", "from flyk.cli import main; main()"],
        env=os.environ | asked,
        capture_output=True,
        text=True,
        check=False,
    )
    assert set(shown.stdout.split()) == offered, shown.stderr
