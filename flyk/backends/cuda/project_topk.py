"""project_topk by CUDA C++: sparse rows in one kernel; dense rows are a GEMM, then winner_take_all."""

from __future__ import annotations

from torch import Tensor

from flyk.backends._arguments import DTYPES, empty_winners, frozen, scores_bias, selection_code
from flyk.backends.cuda._library import call
from flyk.backends.cuda.winner_take_all import winner_take_all
from flyk.ops import _check
from flyk.ops.project import reference as reference_project


def project_topk(
    x: Tensor,
    values: Tensor,
    indices: Tensor | None,
    k: int,
    bias: Tensor | None = None,
    selection: str = "magnitude",
    activation: str = "none",
) -> tuple[Tensor, Tensor]:
    if indices is None:
        return winner_take_all(reference_project(x, values, activation=activation), k, bias, selection)
    winners, at = empty_winners(x, k)
    rows, matrix = _check.rows(x).contiguous(), frozen(values, indices, x.shape[-1])
    relu, select = _check.ACTIVATIONS.index(activation), selection_code(selection)
    bias = scores_bias(bias, x.dtype)
    call("project_topk", rows, DTYPES[x.dtype], len(rows), *matrix, relu, k, bias, select, winners, at)
    return winners, at
