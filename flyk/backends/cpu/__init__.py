"""The CPU backend: csrc's kernels under torch's CPU key, a file per operator. Checks have run; here shapes become
addresses. Where no kernel of ours beats PyTorch the reference serves, and SERVED says so.
"""

from __future__ import annotations

import importlib

from flyk.backends.cpu import _library

KERNELS = (
    "make_projection_",
    "project",
    "winner_take_all",
    "project_topk",
    "fly_lora",
    "fly_lora_linear",
    "gram_",
    "expand_gram_",
    "ridge_solve",
    "ensemble",
    "ema_",
    "masked_cross_entropy",
)

# What serves each operator on the CPU, in a sentence for `flyk info`.
SERVED = {}


INSTRUCTION_SETS: list[str] = _library._C.instruction_sets()
POOL = _library.use_torch_threads()


def register() -> None:
    """Give torch's dispatcher the kernels of the list and, where there are, their backward and in-place forms."""
    for name in KERNELS:
        here, operator = (importlib.import_module(f"{package}.{name}") for package in (__name__, "flyk.ops"))
        operator.OPERATOR.register(getattr(here, name), "CPU")
        if hasattr(here, "backward"):
            operator.BACKWARD.register(here.backward, "CPU")
        if hasattr(here, "in_place"):
            operator.IN_PLACE.register(here.in_place, "CPU")
        SERVED[name] = here.SERVED
