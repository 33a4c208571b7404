"""project_topk on the CPU: sparse rows in one pass, dense rows a block at a time."""

from __future__ import annotations

from torch import Tensor

from flyk.backends.cpu._library import _C, DTYPES, call, frozen, scores_bias, selection_code
from flyk.backends.cpu.winner_take_all import empty_winners, pick
from flyk.ops import _check
from flyk.ops.expand_gram_ import BLOCK
from flyk.ops.project import reference as reference_project

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
        # A dense product is a GEMM, done for a block of rows at a time.
        parts = (t.split(BLOCK) for t in (rows, _check.rows(winners), _check.rows(winner_indices)))
        for block, *into in zip(*parts, strict=True):
            pick(reference_project(block, values, activation=activation), bias, selection, *into)
        return winners, winner_indices
    matrix = frozen(values, indices, x.shape[-1])
    relu, select = _check.ACTIVATIONS.index(activation), selection_code(selection)
    bias = scores_bias(bias, x.dtype)
    call(_C.project_topk, rows, DTYPES[x.dtype], len(rows), *matrix, relu, k, bias, select, winners, winner_indices)
    return winners, winner_indices
