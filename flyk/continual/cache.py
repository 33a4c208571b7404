"""Features kept on disk between runs, trusted only when their checksum holds."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from flyk._files import write_whole
from flyk.continual.files import read_arrays


def cached(path: Path, make: Callable[[], NDArray[np.float32]]) -> tuple[NDArray[np.float32], bool]:
    """The array stored at `path`, or make() stored there for the next time.

    The file is an .npz of `features` and `checksum`, the SHA-256 of shape, dtype and bytes. A damaged file is made
    anew with a warning; a folder that can't be written costs a warning, not the result.

    Returns:
        the array, and whether it came from the file.
    """
    if path.exists():
        try:
            arrays = read_arrays(path)
            features = arrays["features"]
            if str(arrays["checksum"]) != _checksum(features):
                raise ValueError("its checksum does not hold")
            return features, True
        except (ValueError, KeyError) as error:
            warnings.warn(f"the cached features {path} are damaged and made anew: {error}", stacklevel=2)
    features = make()
    try:
        with write_whole(path) as part:
            np.savez(part, features=features, checksum=np.array(_checksum(features)))
    except OSError as error:
        warnings.warn(f"the features can't be cached at {path}: {error}", stacklevel=2)
    return features, False


def _checksum(array: NDArray) -> str:
    head = f"{array.shape} {array.dtype.str} ".encode()
    return hashlib.sha256(head + np.ascontiguousarray(array).tobytes()).hexdigest()
