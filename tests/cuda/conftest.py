"""The CUDA kernels built for the host, under csrc/cuda/shim.h."""

from __future__ import annotations

import ctypes
import os
import shlex
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FLAGS = ["-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas", "-fno-strict-aliasing"]
Compile = Callable[..., ctypes.CDLL]


@pytest.fixture(scope="session")
def compile_shim(tmp_path_factory: pytest.TempPathFactory) -> Compile:
    """Makes a library of CUDA sources for the host, or skips where there is no compiler."""
    compiler = shlex.split(os.environ.get("CXX", "c++"))
    if shutil.which(compiler[0]) is None:
        pytest.skip(f"needs a C++ compiler; there is no {compiler[0]}")

    def build(*sources: Path) -> ctypes.CDLL:
        library = tmp_path_factory.mktemp("shim") / "shim.so"
        files = [str(source) for source in (*sources, ROOT / "csrc/cuda/shim.cpp")]
        options = ["-DFLYK_ISA=shim", f"-I{ROOT / 'csrc/cuda'}", "-fPIC", "-fvisibility=hidden", "-shared"]
        command = [*compiler, *FLAGS, *options, "-x", "c++", *files, "-o", str(library)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return ctypes.CDLL(str(library))

    return build


@pytest.fixture(scope="session")
def shim(compile_shim: Compile) -> ctypes.CDLL:
    return compile_shim(*sorted((ROOT / "csrc/cuda").glob("*.cu")))
