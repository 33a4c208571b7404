"""Builds the extension flyk._C by CMake. Where it cannot be built, flyk installs without it and says why."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).parent.resolve()
FAILURE = "_build_failure.txt"  # read by flyk.backends


class CMakeBuild(build_ext):
    def build_extension(self, ext: Extension) -> None:
        target = Path(self.get_ext_fullpath(ext.name)).resolve().parent
        target.mkdir(parents=True, exist_ok=True)
        failure = target / FAILURE
        failure.unlink(missing_ok=True)
        try:
            self._cmake(target)
        except (OSError, ImportError, subprocess.CalledProcessError) as error:
            reason = _reason(error)
            failure.write_text(reason + "\n")
            print(f"flyk: the CPU kernels were not built ({reason}); plain PyTorch will serve", file=sys.stderr)

    def _cmake(self, target: Path) -> None:
        import pybind11

        build = Path(self.build_temp).resolve()
        build.mkdir(parents=True, exist_ok=True)
        configure = [
            "cmake", "-S", str(ROOT), "-B", str(build), "-G", "Ninja",
            f"-DPython_EXECUTABLE={sys.executable}",
            f"-Dpybind11_DIR={pybind11.get_cmake_dir()}",
            f"-DCMAKE_LIBRARY_OUTPUT_DIRECTORY={target}",
        ]  # fmt: skip
        for command in (configure, ["cmake", "--build", str(build)]):
            subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def get_outputs(self) -> list[str]:
        # The extension may be absent, and the note of why may stand in its place.
        return [o for o in super().get_outputs() if Path(o).exists()]


def _reason(error: Exception) -> str:
    """The line of a failed build that tells most."""
    if not isinstance(error, subprocess.CalledProcessError):
        return str(error)
    lines = [line.strip() for line in (error.stdout or "").splitlines() if line.strip()]
    telling = [line for line in lines if "error" in line.lower()]
    return (telling or lines or [f"{error.cmd[0]} exited with {error.returncode}"])[0]


setup(ext_modules=[Extension("flyk._C", sources=[])], cmdclass={"build_ext": CMakeBuild})
