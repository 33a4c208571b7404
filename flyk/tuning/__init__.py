"""Measured choices as data: a JSON file per architecture, operator by operator.

A CPU's file is named after the instruction set that csrc runs with and holds crossovers: the size at which one way of
doing the work overtakes another, as `flyk bench --tune` finds them.
"""

from __future__ import annotations

import functools
import json
from importlib import resources


@functools.cache
def load(architecture: str) -> dict[str, dict[str, float]]:
    """Operator to choice to value, as `flyk/tuning/<architecture>.json` holds them.

    Raises:
        FileNotFoundError: nothing was measured on that architecture.
    """
    return json.loads((resources.files(__name__) / f"{architecture}.json").read_text())
