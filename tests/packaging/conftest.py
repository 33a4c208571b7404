"""A copy of what a build needs, so that no test builds in the tree that serves it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = (
    "CHANGELOG.md",
    "CMakeLists.txt",
    "LICENSE",
    "MANIFEST.in",
    "README.md",
    "csrc",
    "flyk",
    "pyproject.toml",
    "setup.py",
)


@pytest.fixture(scope="session")
def root() -> Path:
    return ROOT


@pytest.fixture(scope="session")
def copy_tree(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Path]:
    def copy() -> Path:
        tree = tmp_path_factory.mktemp("tree")
        built = shutil.ignore_patterns("_C.*", "_cuda.so", "_*_failure.txt", "__pycache__")
        for name in SOURCES:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, tree / name, ignore=built)
            else:
                shutil.copy(source, tree / name)
        return tree

    return copy


@pytest.fixture(scope="session")
def python() -> Callable[..., str]:
    """Run this Python with arguments; what it printed. Further environment by keyword."""

    def run(*arguments: object, cwd: Path, **environment: str) -> str:
        command = [sys.executable, *map(str, arguments)]
        ended = subprocess.run(
            command, cwd=cwd, env={**os.environ, **environment}, text=True, capture_output=True, check=False
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout

    return run
