"""Measured choices as data: a JSON file per architecture, operator by operator.

A CPU's file is named after the instruction set that csrc runs with and holds crossovers: the size at which one way of
doing the work overtakes another, as `flyk bench --tune` finds them.

A GPU's file is named after what it is compiled for and holds, kernel by kernel, a list of configurations in order of
`up_to`, the size of the work that each is for; the last has none. `small.json` is for every other GPU: nothing in it
needs more than 64 KB of shared memory. `interpreter.json` is for Triton's interpreter, which wants few, large blocks.
"""

from __future__ import annotations

import functools
import json
from importlib import resources
from typing import Any

import torch

SMALL = "small"
GPUS = ("sm_80", "sm_90", "sm_100", "gfx942", SMALL)


@functools.cache
def load(architecture: str) -> dict[str, Any]:
    """Operator to choice to value (CPU), or kernel to configurations (GPU), as `<architecture>.json` holds them.

    Raises:
        FileNotFoundError: nothing was measured on that architecture.
    """
    return json.loads((resources.files(__name__) / f"{architecture}.json").read_text())


@functools.cache
def configuration(architecture: str, kernel: str, size: int) -> dict[str, int]:
    """Block sizes, num_warps and num_stages with which a GPU runs a kernel on work of that size."""
    rows = load(architecture)[kernel]
    fitting = next(row for row in rows if size <= row.get("up_to", size))
    return {name: value for name, value in fitting.items() if name != "up_to"}


@functools.cache
def gpu(index: int) -> str:
    """The one of GPUS whose file serves the GPU of that index."""
    if torch.version.hip:
        name = torch.cuda.get_device_properties(index).gcnArchName.split(":")[0]
    else:
        major, _ = torch.cuda.get_device_capability(index)
        name = f"sm_{major}0"
        if torch.cuda.get_device_properties(index).shared_memory_per_multiprocessor < 160 * 1024:
            name = SMALL  # the consumer's parts of a generation have the compute capability, not the memory
    return name if name in GPUS else SMALL
