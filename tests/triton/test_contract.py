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
    command = [sys.executable, *arguments]
    ran = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


CHECKED = """
from flyk.check import cases_of, check_case, serving
assert serving("{operator}", "cpu") == "triton"
results = [check_case(case) for case in list(cases_of("{operator}", quick=True))[::{step}]]
assert results
assert not [str(result) for result in results if not result.passed], results
"""
# Interpreted, expand_gram_ takes minutes: here every fifth of its quick cases, by hand `flyk check --quick` with all.
STEP = {"expand_gram_": 5}


@pytest.mark.slow
@pytest.mark.parametrize("operator", NAMES)
def test_values_and_gradients_against_float64(operator: str) -> None:
    interpreted("-c", CHECKED.format(operator=operator, step=STEP.get(operator, 1)))


WITHOUT_STORING = """
import torch
from flyk import ops
from flyk.backends.triton.project_from_seed import project_from_seed
from flyk.ops.make_projection_ import make_projection_, reference
x = torch.randint(-3, 4, (5, 40)).float()
for kind, nnz, make in (("sparse_sign", 7, reference), ("binary", 40, reference), ("sparse_gaussian", 1, reference),
                        ("gaussian", None, reference), ("sparse_sign", 7, make_projection_)):
    values = torch.empty(19, nnz or 40)
    indices = None if nnz is None else torch.empty(19, nnz, dtype=torch.int32)
    make(values, indices, kind, 40, 0.5, 2**40 + 3)
    for activation in ("none", "relu"):
        stored = ops.project(x, values, indices, activation=activation)
        unstored = project_from_seed(x, 19, kind, nnz, 0.5, 2**40 + 3, activation)
        torch.testing.assert_close(unstored, stored, rtol=1e-5 * (kind == "gaussian"), atol=1e-5 * (kind == "gaussian"))
        basis = project_from_seed(torch.eye(40), 19, kind, nnz, 0.5, 2**40 + 3)
        assert torch.equal(basis, ops.project(torch.eye(40), values, indices))
"""
STACKED = """
import torch
from flyk import ops
from flyk.backends.triton.fly_lora import stacked
x, weight, A, B = (torch.randint(-2, 3, size).float() for size in ((2, 3, 20), (33, 20), (8, 20), (33, 8)))
for k in (0, 3, 8):
    got = stacked(x, torch.cat((weight, A)), B, k, torch.arange(8.0) / 9, 2.0, "magnitude")
    base = torch.nn.functional.linear(x, weight)
    want = ops.fly_lora(x, base, A, None, B, k, bias=torch.arange(8.0) / 9, scale=2.0)
    assert got[0].shape == want.shape and torch.equal(got[0], want)
"""


@pytest.mark.parametrize("code", [WITHOUT_STORING, STACKED], ids=["project_from_seed", "stacked"])
def test_forms_that_no_operator_calls(code: str) -> None:
    interpreted("-c", code)


def test_what_serves_is_said_truly() -> None:
    interpreted(
        "-c",
        f"""
from flyk.check import serving
assert all(serving(name, "cpu") == "triton" for name in {NAMES!r})
assert serving("ridge_solve", "cpu") == "reference"
""",
    )
