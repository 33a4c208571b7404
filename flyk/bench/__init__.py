"""The benchmark: each operator against its rivals, with the floor and the error beside every time.

One file for each operator, under its name: the published algorithm, the best eager PyTorch, the floor of design and
the cases. `flyk bench` and the pytest-benchmark cases under bench/ run the same.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

from flyk import ops
from flyk.bench._case import Case

__all__ = ["Case", "cases", "modules"]


def cases(operators: Sequence[str] = (), *, quick: bool = False) -> list[Case]:
    """The cases of these operators, or of all: those to be measured, or with `quick` a few small ones.

    Raises:
        ValueError: there is no such operator.
    """
    return [case for module in modules(operators) for case in (module.QUICK if quick else module.CASES)]


def modules(operators: Sequence[str] = ()) -> list[Any]:
    """The modules here of these operators, or of all.

    Raises:
        ValueError: there is no such operator.
    """
    for name in operators:
        if name not in ops.__all__:
            raise ValueError(f"operators must be among {', '.join(ops.__all__)}, got {name!r}")
    chosen = [name for name in ops.__all__ if name in (operators or ops.__all__)]
    return [importlib.import_module(f"flyk.bench.{name}") for name in chosen]
