"""Packages that are wanted at run time only, and files that they carry."""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path
from typing import Any


def need(module: str, install: str) -> Any:
    """Imports a module, or raises ModuleNotFoundError that says how to install it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"{module} is needed and not installed: {install}") from error


def package_file(package: str, pattern: str, install: str) -> Path:
    """The first file that matches `pattern` inside an installed package, which is not imported.

    Raises:
        ModuleNotFoundError: the package or the file is missing; the message ends with `install`.
    """
    spec = importlib.util.find_spec(package)
    folders = list(spec.submodule_search_locations or []) if spec else []
    files = sorted(path for folder in folders for path in Path(folder).glob(pattern))
    if not files:
        raise ModuleNotFoundError(f"{package} is needed and not installed: {install}")
    return files[0]
