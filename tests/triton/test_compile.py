"""Every shipped configuration of every Triton kernel, compiled for every architecture, without a GPU.

`budget.json` holds what a kernel may take; `flyk kernels --json` tells what it takes now.
"""

from __future__ import annotations

import importlib
import json
import os
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from flyk import tuning

pytest.importorskip("triton")
if os.environ.get("TRITON_INTERPRET") == "1":
    pytest.skip("interpreted kernels cannot be compiled", allow_module_level=True)

BUDGET = json.loads((Path(__file__).parent / "budget.json").read_text())
COMPILED = importlib.import_module("flyk.backends.triton").COMPILED

# Which instruction multiplies tiles on tensor cores, moves 16 bytes, and multiplies addresses of 64 bits.
TENSOR_CORES = {
    **{"sm_80": r"\bmma\.sync", "small": r"\bmma\.sync", "sm_90": r"\bwgmma\.mma_async|\bmma\.sync"},
    **{"sm_100": r"\btcgen05\.mma|\bmma\.sync", "gfx942": r"\bv_mfma_"},
}
SIXTEEN_BYTES = (
    r"ld\.global\S*\.v4\.b32|ld\.global\S*\.v2\.b64|cp\.async\.cg\.shared\.global .* 0x10|(global|buffer)_load_dwordx4"
)
LONG_PRODUCT = r"(mul|mad)\.(lo\.s64|wide)|v_mad_[ui]64_[ui]32|s_mul_hi_u32|v_mul_hi_u32|v_lshlrev_b64|s_lshl_b64"
# These read entries one by one, wherever they are, or make what they multiply.
GATHERING = {
    *("order_winners", "add_winners", "project_sparse", "project_from_seed_sparse"),
    *("cross_entropy_rows", "cross_entropy_grad"),
}
MAKING = {"make_dense", "make_sparse", "project_from_seed_dense"}


@cache
def compiled(operator: str, architecture: str) -> list[Any]:
    compiler = importlib.import_module("flyk.backends.triton._compile")
    return list(compiler.compiled(architecture, (operator,)))


@pytest.fixture(params=[(name, architecture) for name in COMPILED for architecture in tuning.GPUS], ids="-".join)
def kernels(request: pytest.FixtureRequest) -> list[Any]:
    return compiled(*request.param)


@pytest.mark.slow
def test_within_budget_and_as_meant(kernels: list[Any]) -> None:
    for kernel in kernels:
        what = f"{kernel.kernel} {kernel.dtype} {kernel.architecture} {kernel.configuration}"
        allowed = BUDGET[kernel.architecture][kernel.kernel]
        assert kernel.spills == 0, what
        assert kernel.registers <= allowed["registers"], what
        assert kernel.shared <= allowed["shared"], what
        if kernel.architecture in (tuning.SMALL, "gfx942"):
            assert kernel.shared <= 64 * 1024, what
        # Exact products of float32 are no work for NVIDIA's tensor cores, nor float64's for Triton's on sm_100; AMD's
        # can do both.
        dots = re.findall(r"tt\.dot .*", kernel.ttir)
        exact = all(re.search(r"xf(32|64)> \*", dot) and "tf32" not in dot for dot in dots)
        if dots and not (exact and kernel.architecture != "gfx942"):
            assert re.search(TENSOR_CORES[kernel.architecture], kernel.code), what
        if kernel.kernel not in GATHERING | MAKING:
            assert re.search(SIXTEEN_BYTES, kernel.code), what
        assert re.search(LONG_PRODUCT, kernel.code), what


def test_every_configuration_is_compiled() -> None:
    """What the tuning files hold is what the operators' examples launch."""
    compiler = importlib.import_module("flyk.backends.triton._compile")
    for architecture in tuning.GPUS:
        launched = {
            (launch.kernel.__name__, *sorted(launch.constants.items(), key=str))
            for operator in COMPILED
            for launch in compiler.launches(operator, architecture)
        }
        for kernel, rows in tuning.load(architecture).items():
            for row in (row for row in rows if "num_warps" in row):
                wanted = {(name, value) for name, value in row.items() if name != "up_to"}
                assert any(kernel == name and wanted <= set(rest) for name, *rest in launched), (
                    architecture,
                    kernel,
                    row,
                )
