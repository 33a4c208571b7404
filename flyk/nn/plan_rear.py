"""What a router of a given size costs, in which form it costs least, and whether it fits: before anything is made."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch

from flyk import _memory
from flyk.nn import _check, kernel_rear
from flyk.nn.kernel_rear import KernelREAR
from flyk.nn.rear import REAR


@dataclass(frozen=True)
class Plan:
    """A router to be made: which form, for what sizes, and its cost.

    Attributes:
        form: REAR or KernelREAR.
        bytes: of memory at the most, while it is solved.
        operations: multiplications and additions, of taking in all rows and one solution.
    """

    form: type[REAR] | type[KernelREAR]
    in_features: int
    num_experts: int
    expansion: int
    rows: int
    dtype: torch.dtype
    bytes: int
    operations: float

    def make(self, **options: Any) -> REAR | KernelREAR:
        """The router, empty; `options` as of its class.

        Raises:
            ValueError: it does not fit in the default device's memory; the sentence says what it needs.
        """
        _memory.need("expansion", self.bytes)
        return self.form(self.in_features, self.num_experts, self.expansion, dtype=self.dtype, **options)

    def __str__(self) -> str:
        """One sentence, for which the speed of the default device's products is measured in about a second."""
        rate = product_rate(self.dtype)
        return (
            f"{self.form.__name__} of expansion {self.expansion} for {self.rows} rows: {_memory.text(self.bytes)} of "
            f"memory, {self.operations:.2g} operations, about {_duration(self.operations / rate)} at the "
            f"{rate / 1e9:.0f} GFLOP/s of products here"
        )


def plan_rear(
    in_features: int, num_experts: int, expansion: int, *, rows: int, dtype: torch.dtype = torch.float32
) -> Plan:
    """The form that takes the least memory to learn from N `rows` and to solve once.

    `REAR` needs G and its factor, 2 M² numbers, and N M² + M³ / 3 operations; `KernelREAR` N d + 2 N² numbers and
    N² M + N³ / 3 operations. Both need R and expand each row (2 d M operations), the second twice.

        plan = plan_rear(768, 100, 100000, rows=20000)
        print(plan)
        router = plan.make(ridge=1e3)

    Raises:
        ValueError, TypeError: an argument that is no size.
    """
    sizes = {"rows": rows, "in_features": in_features, "expansion": expansion, "num_experts": num_experts}
    N, d, M, T = (
        _check.integer(name, value, int(name in ("in_features", "expansion"))) for name, value in sizes.items()
    )
    size = dtype.itemsize
    both = 2 * M * d + 2 * M * T  # R, also as it is made; U
    forms = {
        REAR: (2 * M * M + both, N * M**2 + 2.0 * N * d * M + M**3 / 3),
        KernelREAR: (
            2 * N * N + 2 * N * d + 2 * N * kernel_rear.PANEL + both,
            N**2 * M + 4.0 * N * d * M + N**3 / 3 + 2.0 * N * M * T,
        ),
    }
    form = min(forms, key=lambda form: forms[form][0])
    numbers, operations = forms[form]
    return Plan(form, in_features, num_experts, expansion, rows, dtype, numbers * size, float(operations))


def product_rate(dtype: torch.dtype = torch.float32) -> float:
    """Operations a second of matrix products on the default device, measured."""
    a = torch.ones(2048, 2048, dtype=dtype)
    best = float("inf")
    for _ in range(3):
        begin = time.perf_counter()
        float((a @ a)[0, 0])
        best = min(best, time.perf_counter() - begin)
    return 2 * 2048**3 / best


def _duration(seconds: float) -> str:
    return (
        f"{seconds:.1f} s"
        if seconds < 100
        else f"{seconds / 60:.0f} min"
        if seconds < 6000
        else f"{seconds / 3600:.0f} h"
    )
