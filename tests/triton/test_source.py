"""What every Triton kernel must say, read from its source: explicit masks and precisions, no atomics, no autotuning."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import flyk

FILES = sorted((Path(flyk.__file__).parent / "backends" / "triton").glob("*.py"))


def calls(path: Path, *names: str) -> list[ast.Call]:
    """The calls of `tl.<name>` in a file."""
    found = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    return [node for node in found if isinstance(node.func, ast.Attribute) and node.func.attr in names]


def keywords(call: ast.Call) -> set[str | None]:
    return {keyword.arg for keyword in call.keywords}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_kernels_say_what_they_mean(path: Path) -> None:
    for load in calls(path, "load"):
        assert "mask" not in keywords(load) or "other" in keywords(load), ast.unparse(load)
    for dot in calls(path, "dot"):
        assert "input_precision" in keywords(dot), ast.unparse(dot)
    text = path.read_text()
    assert "atomic_" not in text
    assert "autotune" not in text


def test_some_kernel_was_read() -> None:
    assert sum(len(calls(path, "load")) for path in FILES) > 10
    assert sum(len(calls(path, "dot")) for path in FILES) >= 1
