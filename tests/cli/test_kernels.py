"""flyk kernels: the same rows as text and as JSON, and what it refuses."""

from __future__ import annotations

import importlib.util
import json
import os

import pytest
from typer.testing import CliRunner

from flyk.cli import app, kernels

runner = CliRunner()


def test_refuses_an_architecture_that_it_does_not_know() -> None:
    pytest.importorskip("triton")
    result = runner.invoke(app, ["kernels", "--architecture", "sm_10"])
    assert result.exit_code == 2
    assert result.output.startswith("flyk kernels: --architecture must be among sm_80, ")


def test_refuses_without_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    result = runner.invoke(app, ["kernels"])
    assert result.exit_code == 2
    assert "triton" in result.output


@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="interpreted kernels cannot be compiled")
def test_json_and_text_tell_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = pytest.importorskip("flyk.backends.triton._compile")
    every = compiler.compiled
    monkeypatch.setattr(compiler, "compiled", lambda architecture: every(architecture, ("winner_take_all",)))
    found = json.loads(runner.invoke(app, ["kernels", "--architecture", "sm_90", "--json"]).output)
    lines = runner.invoke(app, ["kernels", "--architecture", "sm_90"]).output.splitlines()
    assert lines[0].split() == list(kernels.HEAD)
    assert len(lines) == 1 + len(found)
    assert {row["kernel"] for row in found} == {"rank_short_rows", "select_winners", "order_winners"}
    for line, row in zip(lines[1:], found, strict=True):
        assert line.split()[0] == row["kernel"]
        assert [int(n) for n in line.split()[-3:]] == [row["registers"], row["spills"], row["shared"]]
        assert row["registers"] > 0
