"""How the CUDA kernels become a library: one command, which needs neither CMake nor torch.

python csrc/cuda/build.py FILE builds FILE by nvcc; with --host, for the host by the C++ compiler, under shim.h.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).parent.resolve()
ARCHITECTURES = (80, 90, 100)
ALIKE = ["-std=c++17", "-shared"]


def kernels() -> list[Path]:
    return sorted(HERE.glob("*.cu"))


def by_nvcc(output: Path) -> list[str]:
    """Code for each architecture, the PTX of the last for devices to come, the CUDA runtime inside.

    ptxas tells the registers and spills of each kernel.
    """
    targets = [f"-gencode=arch=compute_{arch},code=sm_{arch}" for arch in ARCHITECTURES]
    targets[-1] = f"-gencode=arch=compute_{ARCHITECTURES[-1]},code=[sm_{ARCHITECTURES[-1]},compute_{ARCHITECTURES[-1]}]"
    compiler = os.environ.get("CUDACXX", "nvcc")
    options = ["-O3", "-DFLYK_ISA=cuda", "-cudart=static", "-Xcompiler=-fPIC,-fvisibility=hidden", "-Xptxas=-v"]
    threads = f"--threads={min(len(ARCHITECTURES), os.cpu_count() or 1)}"
    return [compiler, *ALIKE, *options, threads, *targets, *map(str, kernels()), "-o", str(output)]


def for_host(output: Path, sources: Sequence[Path] = ()) -> list[str]:
    """These sources, or the kernels, by the C++ compiler."""
    compiler = shlex.split(os.environ.get("CXX", "c++"))
    warnings = ["-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas"]
    options = ["-O1", "-DFLYK_ISA=shim", f"-I{HERE}", "-fPIC", "-fvisibility=hidden", "-fno-strict-aliasing", *warnings]
    files = map(str, [*(sources or kernels()), HERE / "shim.cpp"])
    return [*compiler, *ALIKE, *options, "-x", "c++", *files, "-o", str(output)]


if __name__ == "__main__":
    file = Path(sys.argv[-1])
    sys.exit(subprocess.run(for_host(file) if "--host" in sys.argv else by_nvcc(file), check=False).returncode)
