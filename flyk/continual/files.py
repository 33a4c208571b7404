"""Files: those that pip packages carry, arrays on disk, the user's cache folder."""

from __future__ import annotations

import importlib
import importlib.util
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


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


def read_arrays(path: Path) -> dict[str, NDArray]:
    """The arrays of an .npz or .safetensors file by name, or the one of an .npy file under the name "".

    Nothing is unpickled. bfloat16 comes as float32.

    Raises:
        ValueError: the file is not there, damaged, or of another kind.
    """
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return {name: (t.float() if t.is_floating_point() else t).numpy() for name, t in load_file(path).items()}
        loaded = np.load(path, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            return {"": loaded}
        with loaded:
            return {name: loaded[name] for name in loaded.files}
    except Exception as error:  # a damaged file may raise nearly anything: zlib, zip, header and end-of-file errors
        raise ValueError(f"{path} can't be read as .npz, .npy or .safetensors without pickles: {error}") from error


def cache_folder() -> Path:
    """FLYK_CACHE, else flyk in XDG_CACHE_HOME, else ~/.cache/flyk. It is not made here."""
    if own := os.environ.get("FLYK_CACHE"):
        return Path(own).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "flyk"
