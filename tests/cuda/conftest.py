"""The CUDA kernels built for the host, under csrc/cuda/shim.h, and the commands that build them."""

from __future__ import annotations

import ctypes
import runpy
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

BUILD = Path(__file__).parents[2] / "csrc/cuda/build.py"
Compile = Callable[..., ctypes.CDLL]


@pytest.fixture(scope="session")
def build() -> dict[str, Any]:
    return runpy.run_path(str(BUILD))


@pytest.fixture(scope="session")
def compile_shim(build: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Compile:
    """Makes a library of CUDA sources for the host, or skips where there is no compiler."""

    def compile_sources(*sources: Path) -> ctypes.CDLL:
        library = tmp_path_factory.mktemp("shim") / "shim.so"
        command = build["for_host"](library, sources)
        if shutil.which(command[0]) is None:
            pytest.skip(f"needs a C++ compiler; there is no {command[0]}")
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return ctypes.CDLL(str(library))

    return compile_sources


@pytest.fixture(scope="session")
def shim(compile_shim: Compile) -> ctypes.CDLL:
    return compile_shim()
