"""The methods that a stream is played to, one a file; every one is written from its paper."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Mapping
from typing import Any, TypeGuard

from flyk.continual.methods.base import Method, Prediction, Setting
from flyk.continual.methods.prompted import PromptedMethod

METHODS = {
    "flyprompt": "FlyPrompt",
    "sequential": "Sequential",
    "ncm": "NCM",
    "slda": "SLDA",
    "ranpac": "RanPAC",
    "l2p": "L2P",
    "dualprompt": "DualPrompt",
    "codaprompt": "CODAPrompt",
    "mvp": "MVP",
    "misa": "MISA",
}

LOWEST = {"prompt_length": 0, "general": 0}  # of whole numbers; of the others 1
LARGEST = 10**6

__all__ = [
    "METHODS",
    "Method",
    "Prediction",
    "Setting",
    "check_options",
    "has_prompts",
    "is_number",
    "is_whole",
    "make_method",
]


def is_whole(value: Any) -> TypeGuard[int]:
    """A whole number, which true and false are not."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: Any) -> TypeGuard[float]:
    """A finite number, which true and false are not."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


# What TOML may give for an option that is annotated so: its words, and whether a value is that.
KINDS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "bool": ("true or false", lambda value: isinstance(value, bool)),
    "int": ("a whole number", is_whole),
    "float": ("a finite number", is_number),
    "str": ("a string", lambda value: isinstance(value, str)),
    "Sequence[float]": (
        "a list of numbers",
        lambda value: isinstance(value, (list, tuple)) and all(map(is_number, value)),
    ),
}


def check_options(method: str, options: Mapping[str, Any]) -> None:
    """Raises ValueError where a method has no option of a name, or one of another type or far out of range.

    Ranges that depend on more than the value are the method's own.
    """
    parameters = inspect.signature(_class(method)).parameters
    known = {name: one.annotation for name, one in parameters.items() if one.kind == one.KEYWORD_ONLY}
    for name, value in options.items():
        if name not in known:
            has = f"its options are {', '.join(known)}" if known else "it has none"
            raise ValueError(f"options: the method {method} has no option {name!r}; {has}")
        kind = known[name].removesuffix(" | None")
        wanted, fits = KINDS[kind]
        if not (fits(value) or (value is None and kind != known[name])):
            raise ValueError(f"options: {name} must be {wanted}, got {value!r}")
        if is_whole(value) and kind == "int" and not (low := LOWEST.get(name, 1)) <= value <= LARGEST:
            raise ValueError(f"options: {name} must be from {low} to {LARGEST}, got {value}")
        if kind == "float" and value is not None and value < 0:
            raise ValueError(f"options: {name} must be at least 0, got {value}")


def has_prompts(method: str, options: Mapping[str, Any]) -> bool:
    """Whether a method with these options puts prompts into the backbone."""
    return issubclass(_class(method), PromptedMethod) and options.get("prompt_length") != 0


def make_method(method: str, setting: Setting, options: Mapping[str, Any]) -> Method:
    """The method of that name, ready for a stream.

    Raises:
        ValueError, TypeError: an option does not fit.
    """
    check_options(method, options)
    return _class(method)(setting, **options)


def _class(method: str) -> Any:
    return getattr(importlib.import_module(f"flyk.continual.methods.{method}"), METHODS[method])
