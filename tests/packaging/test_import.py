"""`import flyk` is light, needs neither triton nor a GPU, and there is one version."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import flyk

LIGHT = """
import sys, time
sys.modules["triton"] = None  # as if it were not installed
import torch
before, start = set(sys.modules), time.process_time()
import flyk
spent = time.process_time() - start
heavy = {"matplotlib", "PIL", "sklearn", "scipy", "pandas", "typer", "tqdm", "transformers", "triton"}
assert not heavy & {name.partition(".")[0] for name in set(sys.modules) - before}
print(spent)
"""


def test_import_is_light_and_needs_no_triton(python: Callable[..., str], root: Path) -> None:
    spent = min(float(python("-c", LIGHT, cwd=root).split()[-1]) for _ in range(3))
    assert spent < 0.3  # seconds of this process's own, beyond import torch


def test_one_version(python: Callable[..., str], root: Path) -> None:
    (latest, *_) = re.findall(r"^## (\d+\.\d+\.\d+)", (root / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert latest == flyk.__version__
    assert python("setup.py", "--quiet", "--version", cwd=root).split()[-1] == latest


def test_any_torch_from_2_10_will_do(root: Path) -> None:
    """What is built knows no torch, so the package asks for none in particular, and for none to build with."""
    text = (root / "pyproject.toml").read_text()
    assert re.findall(r'"torch[^"a-z-]*"', text) == ['"torch>=2.10"']
    assert not re.search(r"^requires = .*torch", text, re.MULTILINE)
