"""How a kernel is launched, or only noted down, so that it can be compiled for a GPU that is not there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from flyk import tuning

INTERPRETER = "interpreter"  # takes the same time for an operation on a block of any size: its blocks are larger


@dataclass(frozen=True)
class Launch:
    """A kernel, its arguments by position, its compile-time constants and options by name."""

    kernel: Any
    args: tuple[Any, ...]
    constants: dict[str, Any]


@dataclass
class _Recording:
    architecture: str
    launches: list[Launch]


_recording: _Recording | None = None


@contextmanager
def recorded(architecture: str) -> Iterator[list[Launch]]:
    """Within, nothing is launched: operators called on meta tensors leave their launches in the list.

    That they can run on tensors without data is also the proof that they never wait for the device.
    """
    global _recording
    before, _recording = _recording, _Recording(architecture, [])
    try:
        yield _recording.launches
    finally:
        _recording = before


def launch(kernel: Any, grid: tuple[int, ...], *args: Any, **constants: Any) -> None:
    """Run `kernel` on the device of its first tensor and on the current stream; an empty grid runs nothing."""
    if 0 in grid:
        return
    if _recording is not None:
        _recording.launches.append(Launch(kernel, args, constants))
        return
    with torch.cuda.device_of(next(a for a in args if isinstance(a, Tensor))):
        kernel[grid](*args, **constants)


def blocks(n: int, size: int) -> int:
    """How many blocks of that size cover n."""
    return -(-n // size)


def architecture(device: torch.device) -> str:
    """The name of the tuning file for a device."""
    if _recording is not None:
        return _recording.architecture
    return tuning.gpu(device.index) if device.type == "cuda" else INTERPRETER


def configuration(kernel: str, size: int, device: torch.device) -> dict[str, int]:
    """Block sizes, num_warps and num_stages of a kernel for work of that size, see `flyk.tuning`."""
    return tuning.configuration(architecture(device), kernel, size)
