"""How fast the machine copies and multiplies at best."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

SIZES = tuple(2**n for n in range(18, 29, 2))  # bytes moved by a copy: from a core's cache to main memory
SIDE = 2048  # of the square matrices whose product gives the rate


@dataclass(frozen=True)
class Ceilings:
    """The best speeds seen on this machine at the start of a run, on the threads that the run has."""

    copy: dict[int, float]  # bytes moved (half read, half written) -> bytes a second
    flop_rate: float  # operations a second of a float32 matrix product

    def copy_rate(self, moved: int) -> float:
        """Bytes a second for a working set of `moved` bytes: the best of the copies measured that are as large."""
        return max((rate for size, rate in self.copy.items() if size >= moved), default=self.copy[max(self.copy)])


def ceilings() -> Ceilings:
    """Measure them; takes about a second."""
    copy = {}
    for size in SIZES:
        source = torch.rand(size // 8)
        target = torch.empty_like(source)
        copy[size] = size / _best(lambda target=target, source=source: target.copy_(source))
    a, b = torch.rand(SIDE, SIDE), torch.rand(SIDE, SIDE)
    return Ceilings(copy, 2 * SIDE**3 / _best(lambda: torch.mm(a, b)))


def _best(call: Callable[[], Any], seconds: float = 0.1, least: int = 5) -> float:
    """The shortest of many calls: a ceiling is what the machine can do undisturbed."""
    call()
    times: list[float] = []
    while len(times) < least or sum(times) < seconds:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)
