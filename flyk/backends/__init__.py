"""How operators are served: each backend registers its kernels with torch's dispatcher when it loads.

`FLYK_BACKEND` forces one ("reference", "cpu", "triton"); unset, all that can load do. A forced backend that cannot
load is an error; otherwise plain PyTorch serves. A warning says so where the CPU's kernels are missing; to have no GPU
is nothing to warn of.
"""

from __future__ import annotations

import importlib
import os
import warnings

BACKENDS = ("cpu", "triton")
missing: dict[str, str] = {}  # a backend that is not live, and why


class Unavailable(ImportError):
    """A backend cannot serve in this process; the message says why."""


def load() -> None:
    """Load the backends that `FLYK_BACKEND` asks for. Called once, when flyk is imported."""
    forced = os.environ.get("FLYK_BACKEND", "")
    if forced not in ("", "reference", *BACKENDS):
        raise ValueError(f"FLYK_BACKEND must be one of reference, {', '.join(BACKENDS)}, got {forced!r}")
    for name in BACKENDS:
        if forced not in ("", name):
            missing[name] = f"FLYK_BACKEND is {forced}"
            continue
        try:
            importlib.import_module(f"flyk.backends.{name}").register()
        except Unavailable as error:
            if forced:
                raise
            missing[name] = str(error)
            if name == "cpu":
                warnings.warn(f"flyk: {error}; plain PyTorch serves instead", RuntimeWarning, stacklevel=3)
