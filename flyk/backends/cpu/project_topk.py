"""project_topk on the CPU: sparse rows in one pass, dense rows a block at a time."""

from __future__ import annotations

import torch
from torch import Tensor

from flyk.backends._arguments import DTYPES, empty_winners, frozen, scores_bias, selection_code
from flyk.backends.cpu._library import _C, call
from flyk.backends.cpu.winner_take_all import pick
from flyk.ops import _check
from flyk.ops.expand_gram_ import BLOCK

SERVED = "csrc; for dense rows PyTorch's GEMM, then csrc's winner_take_all"


def project_topk(
    x: Tensor,
    values: Tensor,
    indices: Tensor | None,
    k: int,
    bias: Tensor | None = None,
    selection: str = "magnitude",
    activation: str = "none",
) -> tuple[Tensor, Tensor]:
    winners, winner_indices = empty_winners(x, k)
    rows = _check.rows(x).contiguous()
    if indices is None:
        # A dense product is a GEMM, done for a block of rows at a time, all in the same memory: the system clears new.
        acc = _check.accumulator(x.dtype)
        R, y = values.to(acc).t(), rows.new_empty(min(BLOCK, len(rows)), len(values), dtype=acc)
        parts = (t.split(BLOCK) for t in (rows, _check.rows(winners), _check.rows(winner_indices)))
        for block, *into in zip(*parts, strict=True):
            product = torch.mm(block.to(acc), R, out=y[: len(block)])
            if activation == "relu":
                product.relu_()
            pick(product.to(x.dtype), bias, selection, *into)
        return winners, winner_indices
    matrix = frozen(values, indices, x.shape[-1])
    relu, select = _check.ACTIVATIONS.index(activation), selection_code(selection)
    bias = scores_bias(bias, x.dtype)
    call(_C.project_topk, rows, DTYPES[x.dtype], len(rows), *matrix, relu, k, bias, select, winners, winner_indices)
    return winners, winner_indices
