"""winner_take_all by CUDA C++."""

from __future__ import annotations

from torch import Tensor

from flyk.backends._arguments import DTYPES, empty_winners, scores_bias, selection_code
from flyk.backends.cuda._library import call
from flyk.ops import _check


def winner_take_all(
    y: Tensor, k: int, bias: Tensor | None = None, selection: str = "magnitude"
) -> tuple[Tensor, Tensor]:
    winners, indices = empty_winners(y, k)
    rows, bias = _check.rows(y).contiguous(), scores_bias(bias, y.dtype)
    call("winner_take_all", rows, DTYPES[y.dtype], *rows.shape, k, bias, selection_code(selection), winners, indices)
    return winners, indices
