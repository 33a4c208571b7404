"""The GPU backend: Triton kernels under torch's CUDA key, a file per operator, imported when it is first called.

With TRITON_INTERPRET=1 and FLYK_BACKEND=triton the same kernels run on CPU tensors, slowly: that is how they are held
to their references where no GPU is. A case that no kernel of ours is for goes to the reference, on the same device.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from typing import Any

import torch

from flyk.backends import Unavailable

KERNELS = (
    "make_projection_",
    "project",
    "winner_take_all",
    "project_topk",
    "fly_lora",
    "gram_",
    "expand_gram_",
    "ema_",
    "ensemble",
    "masked_cross_entropy",
)
BACKWARDS = ("fly_lora", "masked_cross_entropy")  # those of them that have a kernel for their gradient
COMPILED = (*KERNELS, "project_from_seed")  # with what no operator calls by itself

# What serves each operator on a GPU, in a sentence for `flyk info`.
SERVED = {
    "ridge_solve": "reference: the GPU's own Cholesky; not yet measured on a GPU",
    **dict.fromkeys(KERNELS, "triton; not yet measured on a GPU"),
}


def register() -> None:
    """Give torch's dispatcher every kernel of the list, without importing triton.

    Raises:
        Unavailable: this process has no GPU, or no triton.
    """
    interpreted = os.environ.get("TRITON_INTERPRET") == "1" and os.environ.get("FLYK_BACKEND") == "triton"
    # device_count asks the driver's library and not the driver: a process that has done no more may still be forked.
    if not interpreted and torch.cuda.device_count() == 0:
        raise Unavailable("the Triton kernels have no GPU that torch can use")
    if importlib.util.find_spec("triton") is None:
        raise Unavailable("the Triton kernels need triton, which is not installed")
    for name in KERNELS:
        operator = importlib.import_module(f"flyk.ops.{name}")
        for key in ("CUDA", "CPU") if interpreted else ("CUDA",):
            operator.OPERATOR.register(_kernel(name, name), key)
            if name in BACKWARDS:
                operator.BACKWARD.register(_kernel(name, "backward"), key)


def _kernel(module: str, function: str) -> Any:
    """The function of that module beside this file, which the first call imports, and triton with it."""

    def kernel(*args: Any) -> Any:
        return getattr(importlib.import_module(f"{__name__}.{module}"), function)(*args)

    return kernel
