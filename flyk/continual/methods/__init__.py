"""The methods that a stream is played to, one a file; every one is written from its paper."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping
from typing import Any

from flyk.continual.methods.base import Method, Prediction, Setting

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

__all__ = ["METHODS", "Method", "Prediction", "Setting", "check_options", "make_method"]


def check_options(method: str, options: Mapping[str, Any]) -> None:
    """Raises ValueError where a method has no option of a name."""
    known = [name for name, one in inspect.signature(_class(method)).parameters.items() if one.kind == one.KEYWORD_ONLY]
    for name in options:
        if name not in known:
            has = f"its options are {', '.join(known)}" if known else "it has none"
            raise ValueError(f"options: the method {method} has no option {name!r}; {has}")


def make_method(method: str, setting: Setting, options: Mapping[str, Any]) -> Method:
    """The method of that name, ready for a stream.

    Raises:
        ValueError, TypeError: an option does not fit.
    """
    check_options(method, options)
    return _class(method)(setting, **options)


def _class(method: str) -> Any:
    return getattr(importlib.import_module(f"flyk.continual.methods.{method}"), METHODS[method])
