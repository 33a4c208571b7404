"""The backend of csrc/cuda: CUDA C++ kernels under torch's CUDA key, a file per operator. Checks have run.

None serves by default: each waits for a committed measurement that says it beats Triton's. FLYK_BACKEND=cuda asks for
all of them, and the rest is then the reference's.
"""

from __future__ import annotations

import importlib

import torch

from flyk.backends import Unavailable
from flyk.backends.cuda import _library

KERNELS = ("winner_take_all", "project_topk", "expand_gram_")


def register() -> None:
    """Give torch's dispatcher the kernels.

    Raises:
        Unavailable: torch has no GPU, or the library was not built.
    """
    if not torch.cuda.is_available():
        raise Unavailable("the CUDA kernels have no GPU that torch can use")
    _library.load()
    for name in KERNELS:
        here, operator = (importlib.import_module(f"{package}.{name}") for package in (__name__, "flyk.ops"))
        operator.OPERATOR.register(getattr(here, name), "CUDA")
