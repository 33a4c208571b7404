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
    "expand_gram_",
    "ridge_solve",
)

# What serves each operator on the CPU, in a sentence for `flyk info`.
SERVED = {
    "gram_": "reference: GEMM panels of the lower triangle, which PyTorch's library does best",
    "ema_": "reference: two passes over the bank; csrc has no kernel for it yet",
    "ensemble": "reference: one GEMM for each expert present; csrc has no kernel for it yet",
    "masked_cross_entropy": "reference: the columns of the classes present; csrc has no kernel for it yet",
}


INSTRUCTION_SETS: list[str] = _library._C.instruction_sets()
POOL = _library.use_torch_threads()


def register() -> None:
    """Give torch's dispatcher the kernels of the list and, where there are, their backwards."""
    for name in KERNELS:
        here, operator = (importlib.import_module(f"{package}.{name}") for package in (__name__, "flyk.ops"))
        operator.OPERATOR.register(getattr(here, name), "CPU")
        if hasattr(here, "backward"):
            operator.BACKWARD.register(here.backward, "CPU")
        SERVED[name] = here.SERVED
