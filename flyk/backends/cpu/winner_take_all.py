"""winner_take_all on the CPU."""

from __future__ import annotations

from torch import Tensor

from flyk.backends._arguments import DTYPES, empty_winners, scores_bias, selection_code
from flyk.backends.cpu._library import _C, call
from flyk.ops import _check

SERVED = "csrc"


def winner_take_all(
    y: Tensor, k: int, bias: Tensor | None = None, selection: str = "magnitude"
) -> tuple[Tensor, Tensor]:
    winners, indices = empty_winners(y, k)
    pick(y, bias, selection, winners, indices)
    return winners, indices


def pick(y: Tensor, bias: Tensor | None, selection: str, winners: Tensor, indices: Tensor) -> None:
    rows, k = _check.rows(y).contiguous(), winners.shape[-1]
    bias = scores_bias(bias, y.dtype)
    call(_C.winner_take_all, rows, DTYPES[y.dtype], *rows.shape, k, bias, selection_code(selection), winners, indices)
