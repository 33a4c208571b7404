"""The Triton kernels under the same contract as the CPU's, run by Triton's interpreter in another process."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
KERNELS = re.search(r"KERNELS = \((.*?)\)", (ROOT / "flyk/backends/triton/__init__.py").read_text(), re.DOTALL)
NAMES = re.findall(r'"(\w+)"', KERNELS[1]) if KERNELS else []

pytest.importorskip("triton")


def interpreted(*arguments: str) -> str:
    environment = os.environ | {"TRITON_INTERPRET": "1", "FLYK_BACKEND": "triton"}
    command = [sys.executable, "-m", *arguments]
    ran = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


@pytest.mark.slow
@pytest.mark.parametrize("operator", NAMES)
def test_values_and_gradients_against_float64(operator: str) -> None:
    said = interpreted("flyk", "check", "--quick", "--op", operator)
    line = next(line for line in said.splitlines() if line.startswith(operator))
    assert line.removeprefix(operator).split()[0] == "triton"
    assert said.splitlines()[-1].endswith(" 0 failed")
