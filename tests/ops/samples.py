"""Ordinary cases of each operator, taken from flyk.check's grid, for the tests that vary one thing at a time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from flyk.check import SUBJECTS, Case, arguments_of, cases_of
from flyk.check.run import outputs, served, written

OPERATORS = list(SUBJECTS)
DIFFERENTIABLE = [name for name, subject in SUBJECTS.items() if subject.differentiable]
IN_PLACE = [name for name in OPERATORS if written(name)]
# Where in a case's sizes the number of rows stands.
ROWS = {
    **dict.fromkeys(OPERATORS, -1),
    **{"gram_": 0, "ensemble": 0, "masked_cross_entropy": 0, "make_projection_": 0},
}
# How many of the sizes are not of the leading shape, where there is one; a sample has at least one more.
FIXED = {"project": 2, "winner_take_all": 1, "project_topk": 2, "fly_lora": 3, "ema_": 1, "count_winners_": 2}


def ordinary(case: Case) -> bool:
    """Neither a border case, nor one that holds a gradient, nor one in reduced precision."""
    options = dict(case.options)
    sizes = [*case.sizes, *(options[name] for name in ("k", "nnz") if options.get(name) is not None)]
    plain = options.get("precision", "float32") == "float32" and options.get("accumulator") != torch.float64
    leading = len(case.sizes) > FIXED.get(case.operator, 0)
    return plain and leading and not case.gradient and all(1 < size <= 140 for size in sizes)


def typical(operator: str, **changes: Any) -> list[Case]:
    """A case for each path that an operator may take, of normal float32 contiguous data; then `changes`.

    Paths: a dense or sparse matrix, few winners or many, kinds of entries, a mask or none.
    """
    found: dict[Any, Case] = {}
    for case in filter(ordinary, cases_of(operator)):
        options = dict(case.options)
        few = 5 * (options.get("k") or max(case.sizes)) <= max(case.sizes)
        path = options.get("nnz") is None, few, *(options.get(name) for name in ("kind", "mask", "seen"))
        found.setdefault(
            path, replace(case, **{"data": "normal", "layout": "contiguous", "dtype": torch.float32, **changes})
        )
    return list(found.values())


def each(operators: list[str] = OPERATORS, **changes: Any) -> list[Any]:
    """Parameters `case` for a test that every operator of the list passes through."""
    return [pytest.param(case, id=case.operator) for name in operators for case in typical(name, **changes)]


def run(case: Case) -> list[Tensor]:
    """The results of a case, or what it wrote."""
    return outputs(served(case.operator), case.operator, arguments_of(case))


def differentiable(case: Case) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The arguments of a case, and those among them that now require a gradient."""
    arguments = arguments_of(case)
    names = [name for name in SUBJECTS[case.operator].differentiable if arguments[name] is not None]
    return arguments, {name: arguments[name].requires_grad_() for name in names}


def first(case: Case, arguments: dict[str, Any]) -> Tensor:
    """The output that has a gradient."""
    out = served(case.operator)(**arguments)
    return out[0] if isinstance(out, tuple) else out


def same(a: list[Tensor], b: list[Tensor]) -> bool:
    """Bit for bit, NaN being NaN."""
    return all(
        torch.equal(x, y) or torch.allclose(x, y, rtol=0, atol=0, equal_nan=True) for x, y in zip(a, b, strict=True)
    )
