"""The sentences in which layers refuse bad arguments: the argument, what came, what was wanted."""

from __future__ import annotations

import math
import numbers
import operator
from collections.abc import Iterable
from typing import Any

from torch import Tensor, strided


def integer(name: str, value: Any, low: int, high: int | None = None) -> int:
    """`value` as an int from `low` to `high`."""
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be an int, got {type(value).__name__}") from None
    if number < low or (high is not None and number > high):
        wanted = f"at least {low}" if high is None else f"from {low} to {high}"
        raise ValueError(f"{name} must be {wanted}, got {number}")
    return number


def number(name: str, value: Any, low: float, high: float = math.inf) -> float:
    """`value` as a finite float from `low` to `high`."""
    if not isinstance(value, numbers.Real):
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


def features(name: str, tensor: Tensor, wanted: int) -> None:
    """A dense `tensor` whose last dimension is of this size. A sparse A cannot tell: it reads the columns it names."""
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name} must be a tensor, got {type(tensor).__name__}")
    if tensor.layout != strided:
        raise TypeError(f"{name} must be a dense tensor, got {str(tensor.layout).removeprefix('torch.')}")
    if tensor.dim() == 0 or tensor.shape[-1] != wanted:
        raise ValueError(f"{name} must have {wanted} features in its last dimension, got shape {tuple(tensor.shape)}")
