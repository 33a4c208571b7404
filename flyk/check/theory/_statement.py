"""A statement of a paper, and the numbers that it foretells."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Measured:
    """One number of a statement.

    Args:
        what: of what it is.
        expected: what the statement foretells: the value, or a bound of it.
        measured: what was found.
        tolerance: how far `measured` may be from `expected`, or beyond it where that is a bound.
        relation: "=", or "<=" and ">=" where `measured` must be at most, at least `expected`.
    """

    what: str
    expected: float
    measured: float
    tolerance: float = 0.0
    relation: str = "="

    @property
    def passed(self) -> bool:
        off = self.measured - self.expected
        return {"=": abs(off), "<=": off, ">=": -off}[self.relation] <= self.tolerance  # False for NaN


@dataclass(frozen=True)
class Statement:
    """Where a statement stands, and the function that measures it, whose docstring begins with the statement."""

    source: str
    measure: Callable[[], Iterable[Measured]]

    @property
    def name(self) -> str:
        return self.measure.__name__

    @property
    def text(self) -> str:
        return inspect.cleandoc(self.measure.__doc__ or "").splitlines()[0]
