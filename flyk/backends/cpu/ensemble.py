"""ensemble on the CPU."""

from __future__ import annotations

from torch import Tensor

from flyk.backends._arguments import DTYPES
from flyk.backends.cpu._library import _C, call

SERVED = "csrc; its backward by the reference"


def ensemble(
    h: Tensor,
    online_weight: Tensor,
    online_bias: Tensor | None,
    bank_weight: Tensor,
    bank_bias: Tensor | None,
    expert_ids: Tensor,
    seen: Tensor | None = None,
) -> Tensor:
    p = h.new_empty(h.shape[0], online_weight.shape[0])
    if bank_weight.stride(-1) != 1:  # a bank may be large: any other strides are read as they are
        bank_weight = bank_weight.contiguous()
    online_bias, bank_bias, seen = (t if t is None else t.contiguous() for t in (online_bias, bank_bias, seen))
    online = (online_weight.contiguous(), online_bias)
    bank = (bank_weight, *bank_weight.stride()[:3], bank_bias)
    sizes = (DTYPES[h.dtype], *h.shape, online_weight.shape[0], *bank_weight.shape[:2])
    call(_C.ensemble, h.contiguous(), *sizes, *online, *bank, expert_ids.contiguous(), seen, p)
    return p
