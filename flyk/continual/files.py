"""Files: arrays on disk, and the user's cache folder."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray


def read_arrays(path: Path, argument: str | None = None) -> dict[str, NDArray]:
    """The arrays of an .npz or .safetensors file by name, or the one of an .npy file under the name "".

    Nothing is unpickled. bfloat16 comes as float32.

    Args:
        path: the file.
        argument: the name of the argument or setting that names the file, for the error's words.

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
        what = f"{argument}: {path}" if argument else str(path)
        raise ValueError(f"{what} can't be read as .npz, .npy or .safetensors without pickles: {error}") from error


def cache_folder() -> Path:
    """FLYK_CACHE, else flyk in XDG_CACHE_HOME, else ~/.cache/flyk. It is not made here."""
    if own := os.environ.get("FLYK_CACHE"):
        return Path(own).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "flyk"
