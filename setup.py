"""Builds the extension flyk._C by CMake and, if FLYK_BUILD_CUDA is set, flyk/_cuda.so by nvcc.

Where one cannot be built, flyk installs without it and says why.
"""

from __future__ import annotations

import os
import runpy
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).parent.resolve()
FAILURE = "_build_failure.txt"  # read by flyk.backends.cpu
CUDA_FAILURE = "_cuda_failure.txt"  # read by flyk.backends.cuda


class CMakeBuild(build_ext):
    """Leaves in the package the extension, or a note of why there is none; never what an earlier build left."""

    def run(self) -> None:
        library = Path(self.get_ext_fullpath(self.extensions[0].name))
        self._leave(library, FAILURE, "CPU", lambda: self._cmake(library.name))
        # Only when asked for: it takes nvcc a minute, and they serve only on request (see flyk.backends).
        cuda = self._nvcc if os.environ.get("FLYK_BUILD_CUDA") else None
        self._leave(library.with_name("_cuda.so"), CUDA_FAILURE, "CUDA", cuda)

    def _leave(self, library: Path, failure: str, what: str, build: Callable[[], Path] | None) -> None:
        note, built, reason = library.with_name(failure), None, None
        try:
            built = build and build()
        except (ImportError, OSError, subprocess.CalledProcessError) as error:
            reason = _reason(error)
            print(f"flyk: the {what} kernels were not built ({reason}); plain PyTorch will serve", file=sys.stderr)
        library.parent.mkdir(parents=True, exist_ok=True)
        # A library that is in use is unlinked and not overwritten: its processes keep the old one.
        for stale in (library, note):
            stale.unlink(missing_ok=True)
        if built:
            shutil.copy(built, library)
        elif reason:
            note.write_text(f"{reason}\n")

    def _nvcc(self) -> Path:
        """The CUDA kernels, under build/."""
        library = ROOT / "build" / "_cuda.so"
        library.parent.mkdir(exist_ok=True)
        command = runpy.run_path(str(ROOT / "csrc" / "cuda" / "build.py"))["by_nvcc"]
        _run(command(library), {**os.environ})
        return library

    def _cmake(self, name: str) -> Path:
        """Compile under build/; the path of the library there."""
        import pybind11

        # Where setuptools would, but in an editable build too, whose own temporary folder is new each time.
        build = ROOT / "build" / f"temp.{self.plat_name}-{sys.implementation.cache_tag}"
        configure = [
            "cmake", "-S", str(ROOT), "-B", str(build), "-G", "Ninja",
            f"-DPython_EXECUTABLE={sys.executable}",
            f"-Dpybind11_DIR={pybind11.get_cmake_dir()}",
            f"-DCMAKE_LIBRARY_OUTPUT_DIRECTORY={build}",
        ]  # fmt: skip
        # cmake and ninja may stand beside a Python that is not on the path.
        env = {**os.environ, "PATH": os.pathsep.join((os.environ.get("PATH", ""), sysconfig.get_path("scripts")))}
        # CMake never forgets the compiler it first saw, so what was configured otherwise begins anew.
        tools = [shutil.which(tool, path=env["PATH"]) for tool in ("cmake", "ninja")]
        key = repr((configure, tools, os.environ.get("CXX"), os.environ.get("CXXFLAGS")))
        configured = build / "configured.txt"
        if not configured.exists() or configured.read_text() != key:
            shutil.rmtree(build, ignore_errors=True)
            build.mkdir(parents=True)
            _run(configure, env)
            configured.write_text(key)
        _run(["cmake", "--build", str(build)], env)
        if not (build / name).exists():
            raise FileNotFoundError(f"CMake made no {name}")
        return build / name

    def get_outputs(self) -> list[str]:
        return [path for path in super().get_outputs() if Path(path).exists()]

    def get_output_mapping(self) -> dict[str, str]:
        return {path: here for path, here in super().get_output_mapping().items() if Path(here).exists()}


def _run(command: list[str], env: dict[str, str]) -> None:
    subprocess.run(command, check=True, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def _reason(error: Exception) -> str:
    """A failed build in a line: from its first error on, as much as a reader needs."""
    if not isinstance(error, subprocess.CalledProcessError):
        return str(error)
    print(error.stdout, file=sys.stderr)
    lines = error.stdout.splitlines() or [f"{error.cmd[0]} exited with {error.returncode}"]
    first = next((i for i, line in enumerate(lines) if "error" in line.lower()), 0)
    text = " ".join(" ".join(lines[first : first + 6]).split())
    return text if len(text) <= 240 else text[:240] + " ..."


setup(ext_modules=[Extension("flyk._C", sources=[])], cmdclass={"build_ext": CMakeBuild})
