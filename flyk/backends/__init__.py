"""How operators are served: each backend registers its kernels with torch's dispatcher when it loads.

`FLYK_BACKEND` forces one ("reference", "cpu", "triton", "cuda"); unset, all that can load do, but for those that serve
on request only. A forced backend that cannot load is an error; otherwise plain PyTorch serves. A warning says so where
the CPU's kernels are missing; to have no GPU is nothing to warn of.
"""

from __future__ import annotations

import importlib
import os
import warnings

BACKENDS = ("cpu", "triton", "cuda")
ON_REQUEST = ("cuda",)  # no committed measurement says that they win: they serve where FLYK_BACKEND names them
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
        if name in ON_REQUEST and not forced:
            missing[name] = f"it serves on request only: FLYK_BACKEND={name}"
            continue
        try:
            importlib.import_module(f"flyk.backends.{name}").register()
        except Unavailable as error:
            if forced:
                raise
            missing[name] = str(error)
            if name == "cpu":
                warnings.warn(f"flyk: {error}; plain PyTorch serves instead", RuntimeWarning, stacklevel=3)
