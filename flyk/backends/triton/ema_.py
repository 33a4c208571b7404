"""ema_ by Triton: one launch moves the whole bank, and reads the online head once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from flyk.backends.triton._floats import narrow
from flyk.backends.triton._launch import blocks, configuration, launch
from flyk.ops.ema_ import reference


def ema_(bank: Tensor, online: Tensor, decays: Sequence[float]) -> None:
    if bank.numel() == 0:
        return
    try:
        heads = bank.view(len(bank), -1)
    except RuntimeError:  # heads whose entries do not lie at even distances
        heads = None
    if heads is None or bank.dtype == torch.float64:  # a launch takes numbers in float32 alone
        reference(bank, online, decays)
        return
    size = heads.shape[1]
    c = configuration("move_bank", size, bank.device)
    # 1 - decay is taken in float64: in float32 it would lose what a decay near 1 is about.
    numbers = tuple(decays), tuple(1 - decay for decay in decays)
    grid = (blocks(size, c["BLOCK"]),)
    launch(move_bank, grid, heads, online.contiguous(), *numbers, size, *heads.stride(), **c)


def examples() -> Iterator[tuple[Any, ...]]:
    """Calls that between them launch every kernel in every configuration."""
    for dtype in (torch.float32, torch.bfloat16):
        online = torch.empty(200, 768, dtype=dtype, device="meta")
        yield online.new_empty(2, 200, 768), online, (0.9, 0.99)


@triton.jit
def move_bank(bank, online, decays, rests, size, stride, step, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    new = tl.load(online + at, mask=at < size, other=0.0).to(tl.float32)
    for head in tl.static_range(len(decays)):  # pyright: ignore[reportGeneralTypeIssues]
        to = bank + tl.full((), head, tl.int64) * stride + at * step
        moved = decays[head] * tl.load(to, mask=at < size, other=0.0).to(tl.float32) + rests[head] * new
        tl.store(to, narrow(moved, bank.dtype.element_ty), mask=at < size)
