"""The sentences in which layers refuse bad arguments: the argument, what came, what was wanted."""

from __future__ import annotations

import math
import numbers
import operator
from collections.abc import Iterable
from typing import Any

from torch import Tensor, strided


def integer(name: str, value: Any, low: int, high: int | None = None) -> int:
    """`value`, which is no bool, as an int from `low` to `high`."""
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None:
        raise TypeError(f"{name} must be an int, got {type(value).__name__}")
    if number < low or (high is not None and number > high):
        wanted = f"at least {low}" if high is None else f"from {low} to {high}"
        raise ValueError(f"{name} must be {wanted}, got {number}")
    return number


def number(name: str, value: Any, low: float, high: float = math.inf) -> float:
    """`value`, which is no bool, as a finite float from `low` to `high`."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name} must be a number, got {type(value).__name__}")
    result = float(value)
    if not (math.isfinite(result) and low <= result <= high):
        wanted = f"finite and at least {low}" if high == math.inf else f"from {low} to {high}"
        raise ValueError(f"{name} must be {wanted}, got {value}")
    return result


def flag(name: str, value: Any) -> bool:
    """`value`, which is True or False and nothing that may pass for one, such as a word."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, got {value!r}")
    return value


def items(name: str, value: Any) -> tuple[Any, ...]:
    """The items of `value`, which is no text."""
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise TypeError(f"{name} must be a sequence of numbers, got {type(value).__name__}")
    return tuple(value)


def tensor(name: str, value: Any) -> None:
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a tensor, got {type(value).__name__}")


def features(name: str, x: Tensor, wanted: int) -> None:
    """A dense `x` whose last dimension is of this size. A sparse A cannot tell: it reads the columns it names."""
    tensor(name, x)
    if x.layout != strided:
        raise TypeError(f"{name} must be a dense tensor, got {str(x.layout).removeprefix('torch.')}")
    if x.dim() == 0 or x.shape[-1] != wanted:
        raise ValueError(f"{name} must have {wanted} features in its last dimension, got shape {tuple(x.shape)}")
