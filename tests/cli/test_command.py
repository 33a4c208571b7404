"""The command as a whole: help, version, and how it refuses and stops."""

from __future__ import annotations

import subprocess
import sys

import pytest
from typer.testing import CliRunner

import flyk
from flyk.cli import COMMANDS, app, bench, info

runner = CliRunner()


def test_help_lists_every_command() -> None:
    result = runner.invoke(app, ["--help"])
    assert result.exit_code == 0
    for name in COMMANDS:
        assert f"\n  {name} " in result.output


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_has_a_help_text(name: str) -> None:
    result = runner.invoke(app, [name, "--help"])
    assert result.exit_code == 0
    assert f"{name} [OPTIONS]" in result.output
    assert "--help" in result.output


def test_bench_help_names_its_options() -> None:
    text = runner.invoke(app, ["bench", "--help"]).output
    for option in ("--op", "--quick", "--device", "--json", "--plot"):
        assert option in text


def test_version() -> None:
    result = runner.invoke(app, ["--version"])
    assert (result.exit_code, result.output) == (0, f"flyk {flyk.__version__}\n")


def test_python_m_flyk() -> None:
    asked = subprocess.run([sys.executable, "-m", "flyk", "--version"], capture_output=True, text=True, check=True)
    assert asked.stdout == f"flyk {flyk.__version__}\n"


@pytest.mark.parametrize("arguments", [["fly"], ["info", "--xml"], ["--op"], ["info", "more"]])
def test_wrong_usage_exits_with_2(arguments: list[str]) -> None:
    result = runner.invoke(app, arguments)
    assert result.exit_code == 2
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (ValueError("ridge must be at least 0, got -1"), 2, "flyk info: ridge must be at least 0, got -1\n"),
        (FileNotFoundError("no file is at x.npz"), 2, "flyk info: no file is at x.npz\n"),
        (KeyboardInterrupt(), 130, "flyk info: interrupted\n"),
    ],
)
def test_one_line_and_no_traceback(monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, said: str) -> None:
    def raising() -> None:
        raise error

    monkeypatch.setattr(info, "collect", raising)
    result = runner.invoke(app, ["info"])
    assert (result.exit_code, result.output) == (code, said)


def test_faults_of_flyk_itself_are_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def raising() -> None:
        raise RuntimeError("a fault")

    monkeypatch.setattr(info, "collect", raising)
    assert isinstance(runner.invoke(app, ["info"]).exception, RuntimeError)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--op", "ema"], "operators must be among ema_, "),
        (["--op", "ema_,fly"], "got 'fly'"),
        (["--device", "cuda"], "--device must be"),
        (["--json", "x.txt"], "--json must end in .json, got x.txt"),
        (["--plot", "x.jpg"], "--plot must end in .svg or .png, got x.jpg"),
        (["--json", "no/such/x.json"], "--json must be a file in a folder that exists"),
    ],
)
def test_bench_refuses_before_it_runs(monkeypatch: pytest.MonkeyPatch, arguments: list[str], said: str) -> None:
    monkeypatch.setattr("flyk.bench._ceilings.ceilings", lambda: pytest.fail("the run had begun"))
    result = runner.invoke(app, ["bench", *arguments])
    assert result.exit_code == 2
    assert result.output.startswith("flyk bench: ")
    assert said in result.output
    assert result.output.count("\n") == 1


def test_bench_refuses_a_chart_without_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench.importlib.util, "find_spec", lambda name: None)
    result = runner.invoke(app, ["bench", "--plot", "x.svg"])
    assert result.exit_code == 2
    assert "pip install 'flyk[bench]'" in result.output
