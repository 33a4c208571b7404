"""Every operator over its whole space of arguments, drawn by hypothesis and held to the contract of `flyk check`.

`make test` takes a fixed part of it; `make fuzz` sets FLYK_FUZZ to how many cases are drawn at random in all.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import HealthCheck, given, settings

from flyk.check import SUBJECTS, Case, check_case
from flyk.check.cases import DATA, DTYPES, LAYOUTS
from flyk.check.grids import FINITE
from flyk.ops import _check
from flyk.ops.make_projection_ import KINDS

TOTAL = int(os.environ.get("FLYK_FUZZ", 300))
SIZE = st.one_of(st.integers(0, 9), st.integers(0, 40), st.integers(0, 150))
LEAD = st.lists(st.integers(0, 9), min_size=1, max_size=3)
Draw = Callable[[Any], Any]


def sparse(draw: Draw, columns: int) -> int | None:
    return draw(st.none() | st.integers(0, columns))


def chosen(draw: Draw, *names: str) -> dict[str, Any]:
    kinds = {
        "selection": st.sampled_from(_check.SELECTIONS),
        "activation": st.sampled_from(_check.ACTIVATIONS),
        "precision": st.sampled_from(("float32", "float32", "bf16", "bf16x3")),
        "accumulator": st.sampled_from((torch.float32, torch.float64)),
    }
    return {name: draw(kinds.get(name, st.booleans())) for name in names}


def some(draw: Draw, rows: int) -> int:
    """Labels or experts: at least one where there is a row."""
    return draw(st.integers(min(rows, 1), 12))


def project(draw: Draw, gradient: bool) -> tuple[list[int], dict[str, Any]]:
    d, m = draw(SIZE), draw(SIZE)
    how = chosen(draw, "activation", "precision") | ({"precision": "float32"} if gradient else {})
    return [d, m, *draw(LEAD)], {"nnz": sparse(draw, d), **how}


def winner_take_all(draw: Draw, gradient: bool) -> tuple[list[int], dict[str, Any]]:
    n = draw(SIZE)
    return [n, *draw(LEAD)], {"k": draw(st.integers(0, n)), **chosen(draw, "bias", "selection")}


def project_topk(draw: Draw, gradient: bool) -> tuple[list[int], dict[str, Any]]:
    d, m = draw(SIZE), draw(SIZE)
    how = chosen(draw, "bias", "selection", "activation")
    return [d, m, *draw(LEAD)], {"nnz": sparse(draw, d), "k": draw(st.integers(0, m)), **how}


def fly_lora(draw: Draw, gradient: bool) -> tuple[list[int], dict[str, Any]]:
    d, r, m = draw(SIZE), draw(SIZE), draw(SIZE)
    how = {"nnz": sparse(draw, d), "k": draw(st.integers(0, r)), "scale": draw(st.sampled_from((1.0, -0.5, 2.0)))}
    return [d, r, m, *draw(LEAD)], how | chosen(draw, "bias", "base", "selection")


def gram_(draw: Draw, gradient: bool) -> tuple[list[int], dict[str, Any]]:
    n = draw(SIZE)
    return [n, draw(SIZE), some(draw, n)], chosen(draw, "precision", "accumulator")


def expand_gram_(draw: Draw, gradient: bool) -> tuple[list[int], dict[str, Any]]:
    d, m, n = draw(SIZE), draw(SIZE), draw(SIZE)
    how = {"nnz": sparse(draw, d), "k": draw(st.none() | st.integers(0, m))}
    return [d, m, some(draw, n), n], how | chosen(draw, "activation", "precision", "accumulator")


def ridge_solve(draw: Draw, gradient: bool) -> tuple[list[int], dict[str, Any]]:
    return [draw(SIZE), draw(st.integers(0, 12))], {"ridge": draw(st.floats(0.01, 1e3))}


def ema_(draw: Draw, gradient: bool) -> tuple[list[int], dict[str, Any]]:
    return [draw(st.integers(0, 6)), *draw(LEAD)], {}


def ensemble(draw: Draw, gradient: bool) -> tuple[list[int], dict[str, Any]]:
    n, d = draw(SIZE), draw(SIZE)
    experts, heads = some(draw, n), draw(st.integers(0, 3))
    return [n, d, draw(SIZE), experts, heads], chosen(draw, "online_bias", "bank_bias", "seen")


def masked_cross_entropy(draw: Draw, gradient: bool) -> tuple[list[int], dict[str, Any]]:
    n = draw(SIZE)
    return [n, draw(st.integers(min(n, 1), 150))], {"spread": draw(st.sampled_from((1.0, 30.0)))}


def make_projection_(draw: Draw, gradient: bool) -> tuple[list[int], dict[str, Any]]:
    rows, columns = draw(SIZE), draw(SIZE)
    how = {"kind": draw(st.sampled_from(KINDS)), "nnz": draw(st.integers(1, max(1, columns)))}
    numbers = {"seed": draw(st.integers(0, 2**63 - 1)), "first": draw(st.integers(0, 2**40))}
    return [rows, columns], how | numbers | {"std": draw(st.floats(0.125, 1024.0, width=32))}


def count_winners_(draw: Draw, gradient: bool) -> tuple[list[int], dict[str, Any]]:
    ranks = draw(SIZE)
    return [ranks, draw(st.integers(0, ranks)), *draw(LEAD)], chosen(draw, "mask")


# What an operator's builder of cases can draw, where it is not everything.
ONLY: dict[str, dict[str, Any]] = {
    "gram_": {"data": FINITE},
    "expand_gram_": {"data": FINITE},
    "ridge_solve": {"dtypes": _check.ACCUMULATORS, "data": ("normal",), "layouts": LAYOUTS[:3]},
    "make_projection_": {"dtypes": (torch.float32,), "data": ("normal",), "layouts": ("contiguous",)},
    "count_winners_": {"dtypes": (torch.float32,), "data": ("normal",)},
    "ensemble": {"gradient_data": ("normal",)},
}


@st.composite
def cases(draw: Draw, operator: str) -> Case:
    only = ONLY.get(operator, {})
    gradient = bool(SUBJECTS[operator].differentiable) and draw(st.booleans())
    data = only.get("gradient_data", FINITE) if gradient else DATA
    sizes, options = globals()[operator](draw, gradient)
    return Case(
        operator,
        tuple(sizes),
        draw(st.sampled_from(only.get("dtypes", DTYPES))),
        draw(st.sampled_from(only.get("data", data))),
        draw(st.sampled_from(only.get("layouts", LAYOUTS))),
        tuple(options.items()),
        gradient,
    )


@pytest.mark.parametrize("operator", SUBJECTS)
@settings(
    max_examples=-(-TOTAL // len(SUBJECTS)),
    derandomize="FLYK_FUZZ" not in os.environ,
    suppress_health_check=[HealthCheck.differing_executors, HealthCheck.too_slow],
)
@given(data=st.data())
def test_any_arguments_that_fit_give_the_reference_s_result(operator: str, data: st.DataObject) -> None:
    result = check_case(data.draw(cases(operator)))
    assert result.passed, str(result)
