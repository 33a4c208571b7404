"""The cases of `flyk bench` as pytest-benchmark cases.

pytest bench --benchmark-only -k "quick and fly_lora"
"""

from __future__ import annotations

import functools
from typing import Any

import pytest

from flyk.bench import Case, cases
from flyk.bench._measure import RIVALS, bind, check, fresh, gradients, input_sets, rivals_of

CASES = [
    pytest.param(case, id=f"{size}-{case.name}") for size in ("quick", "full") for case in cases(quick=size == "quick")
]


@functools.lru_cache(maxsize=1)  # the rivals of a case come one after another, and inputs may take gigabytes
def inputs_of(case: Case) -> dict[str, Any]:
    return input_sets(case)[0]


@pytest.mark.parametrize("name", RIVALS)
@pytest.mark.parametrize("case", CASES)
def test_operator(benchmark: Any, case: Case, name: str) -> None:
    inputs = inputs_of(case)
    rival = rivals_of(case, inputs, [name])[name]
    if rival.function is None:
        pytest.skip(rival.absent)
    assert check(case, {name: rival}, [inputs]) == ""
    benchmark.group = case.name
    benchmark.extra_info |= {"error": rival.error, "floor_bytes": case.floor.bytes, "floor_flop": case.floor.flop}
    if name == "published":
        benchmark.extra_info["share"] = 1 / case.share  # of the rows that this rival is given
    with gradients(case):
        benchmark(bind(case, rival.function, case.inputs_of(name, fresh(case, inputs))))
