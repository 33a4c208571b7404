"""ema_: a bank of exponential moving averages at several time scales, moved one step in place."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from flyk.ops import _check
from flyk.ops._operator import Operator


def ema_(bank: Tensor, online: Tensor, decays: Sequence[float]) -> None:
    """In place: ``bank[j] = decays[j] bank[j] + (1 - decays[j]) online``.

    TE2's temporal ensemble, arXiv 2602.01976, Eq. 7. Records no gradient.

    Args:
        bank: (n, ...) float32, float64, bfloat16 or float16, any strides.
        online: (...) in bank's dtype.
        decays: n numbers from 0 to 1; a decay of 0.99 averages over about 100 steps.

    Raises:
        ValueError, TypeError: a shape, dtype, device or decay that does not fit; bank is then as before.
    """
    OPERATOR(bank, online, decays)


def check(bank: Tensor, online: Tensor, decays: Sequence[float]) -> None:
    _check.at_least_1d("bank", bank)
    _check.dtype("bank", bank)
    _check.shape("online", online, *bank.shape[1:])
    _check.alike(bank=bank, online=online)
    if len(decays) != bank.shape[0]:
        raise ValueError(f"decays must have {bank.shape[0]} entries, one for each head of bank, got {len(decays)}")
    for decay in decays:
        if not 0 <= decay <= 1:
            raise ValueError(f"decays must be from 0 to 1, got {decay}")


def reference(bank: Tensor, online: Tensor, decays: Sequence[float]) -> None:
    acc = _check.accumulator(bank.dtype)
    for head, decay in zip(bank, decays, strict=True):
        moved = head.to(acc).mul_(decay).add_(online.to(acc), alpha=1 - decay)  # head itself where it is of dtype acc
        if moved is not head:
            head.copy_(moved)


def fake(bank: Tensor, online: Tensor, decays: Sequence[float]) -> None:
    return None


OPERATOR = Operator(
    "ema_(Tensor(a!) bank, Tensor online, float[] decays) -> ()", reference=reference, check=check, fake=fake
)
