"""The library that csrc/cuda builds: found, and called with tensors as addresses on their device and stream."""

from __future__ import annotations

import contextlib
import ctypes
import functools
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from flyk.backends import Unavailable
from flyk.backends._arguments import addresses

HOME = Path(__file__).parents[2]


@functools.cache
def load() -> ctypes.CDLL:
    """flyk/_cuda.so, which knows no torch and brings its CUDA runtime with it.

    Raises:
        Unavailable: it is not there, or this system cannot load it.
    """
    path, note = HOME / "_cuda.so", HOME / "_cuda_failure.txt"
    if not path.exists():
        reason = note.read_text().strip() if note.exists() else "`make cuda` builds them"
        raise Unavailable(f"the CUDA kernels are not there ({reason})")
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise Unavailable(f"the CUDA kernels cannot be loaded ({error})") from None


def call(name: str, *args: Any) -> None:
    """Call the kernel of an operator with tensors as addresses, on the device and current stream of the first one.

    Raises:
        RuntimeError: what CUDA says, if it refuses the launch.
    """
    kernel = getattr(load(), f"flyk_{name}")
    kernel.restype = ctypes.c_char_p
    device = next(a.device for a in args if isinstance(a, Tensor))
    guard, stream = contextlib.nullcontext(), 0  # on the CPU, as tests run the kernels, there is no stream
    if device.type == "cuda":
        guard, stream = torch.cuda.device(device), torch.cuda.current_stream(device).cuda_stream
    with guard:
        fault = kernel(*map(ctypes.c_int64, (device.index or 0, stream, *addresses(args))))
    if fault:
        raise RuntimeError(f"{name}: {fault.decode()}")
