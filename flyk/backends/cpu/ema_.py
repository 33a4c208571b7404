"""ema_ on the CPU."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from flyk.backends._arguments import DTYPES
from flyk.backends.cpu._library import _C, call
from flyk.ops.ema_ import reference

SERVED = "csrc, in one pass; the reference where the bank is not contiguous"


def ema_(bank: Tensor, online: Tensor, decays: Sequence[float]) -> None:
    if not bank.is_contiguous():
        reference(bank, online, decays)
        return
    call(_C.ema_, bank, DTYPES[bank.dtype], len(decays), online.numel(), online.contiguous(), decays)
