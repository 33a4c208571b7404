"""flyk alone at float32, bfloat16 and float16 on the cases of `flyk bench`: no half type should take longer.

pytest bench/test_half_types.py --benchmark-only -k "full and ensemble"
"""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from test_operators import inputs_of
from torch import Tensor

from flyk import ops
from flyk.bench import Case, cases
from flyk.bench._measure import bind, fresh, gradients

CASES = [  # ridge_solve takes no half type
    pytest.param(case, id=f"{size}-{case.name}")
    for size in ("quick", "full")
    for case in cases(quick=size == "quick")
    if case.op != "ridge_solve"
]
KEPT = {"G", "Q", "bias"}  # statistics and the biases of scores are float32 whatever the rest is


def cast(inputs: dict[str, Any], dtype: torch.dtype) -> dict[str, Any]:
    """The inputs with what an operator takes in any dtype given in this one."""

    def one(name: str, value: Any) -> Any:
        lowered = isinstance(value, Tensor) and value.is_floating_point() and name not in KEPT
        return value.to(dtype) if lowered else value

    return {name: one(name, value) for name, value in inputs.items()}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("case", CASES)
def test_half_types(benchmark: Any, case: Case, dtype: torch.dtype) -> None:
    benchmark.group = case.name
    with gradients(case):
        benchmark(bind(case, functools.partial(case.ours, ops), fresh(case, cast(inputs_of(case), dtype))))
