"""The library that csrc builds: found, lent torch's threads, and called with tensors as addresses."""

from __future__ import annotations

import ctypes
import importlib
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from flyk import tuning
from flyk.backends import Unavailable
from flyk.backends._arguments import DTYPES, addresses

try:
    _C: Any = importlib.import_module("flyk._C")
except ImportError as error:
    note = Path(__file__).parents[2] / "_build_failure.txt"
    reason = note.read_text().strip() if note.exists() else str(error)
    raise Unavailable(f"the CPU kernels are not there ({reason})") from None


def _instruction_set() -> str:
    """The one that serves; one in FLYK_CPU that this processor has not is refused now, not at the first kernel."""
    try:
        return _C.isa()
    except RuntimeError as error:
        raise ValueError(str(error)) from None


ISA = _instruction_set()


def crossovers(operator: str) -> dict[str, float]:
    """What was measured of an operator with this instruction set, see `flyk.tuning`."""
    return tuning.load(ISA).get(operator, {})


def _openmp_runtimes() -> list[Path]:
    """The OpenMP runtimes in this process, torch's own first; those beside torch where the system lists none."""
    home = Path(torch.__file__).parent
    maps = Path("/proc/self/maps")
    mapped = maps.read_text().split() if maps.exists() else [str(path) for path in home.glob("lib/*")]
    found = {Path(name) for name in mapped if re.search(r"/lib[gi]?omp[^/]*$", name)}
    return sorted(found, key=lambda path: (home not in path.parents, path))


def use_torch_threads() -> str | None:
    """Lend csrc the OpenMP pool that torch runs, so that the process has one, and give its name."""
    for path in _openmp_runtimes():
        try:
            entry = ctypes.CDLL(str(path)).GOMP_parallel
        except (OSError, AttributeError):
            continue
        _C.use_pool(ctypes.cast(entry, ctypes.c_void_p).value)
        # A forked child has the pool's locks but not its threads.
        os.register_at_fork(after_in_child=lambda: _C.use_pool(0))
        return path.name
    return None


def call(kernel: Callable[..., None], *args: Any) -> None:
    """Call a kernel with tensors as addresses, None as 0, on torch's number of threads."""
    _C.set_threads(torch.get_num_threads())
    kernel(*addresses(args))


def terms(dtype: torch.dtype, precision: str) -> int:
    """How many bfloat16 products the tile unit needs for one product at this precision; 0 where it can't serve."""
    if ISA != "amx" or dtype == torch.float64:
        return 0
    return 1 if dtype == torch.bfloat16 else {"bf16": 1, "bf16x3": 3}.get(precision, 0)


def product(left: Tensor, right: Tensor, out: Tensor, terms: int, *, gram: bool = False) -> None:
    """``out = left rightᵀ`` on the tile unit, or with `gram` ``out += left rightᵀ`` on and below the diagonal."""
    sides = []
    for x in (left, right):
        x = x.float() if x.dtype == torch.float16 else x
        x = x if 1 in x.stride() else x.contiguous()
        sides += [x, DTYPES[x.dtype], x.shape[0], *x.stride()]
    call(_C.product, *sides, left.shape[1], terms, gram, gram, out)
