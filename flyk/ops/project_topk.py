"""project_topk: project and winner_take_all in one pass."""

from __future__ import annotations

import torch
from torch import Tensor

from flyk.ops import _check
from flyk.ops._operator import Operator
from flyk.ops.project import check as check_project
from flyk.ops.project import check_values as check_values
from flyk.ops.project import project_backward
from flyk.ops.project import reference as reference_project
from flyk.ops.winner_take_all import check_scores, scatter
from flyk.ops.winner_take_all import reference as reference_winner_take_all


def project_topk(
    x: Tensor,
    values: Tensor,
    indices: Tensor | None,
    k: int,
    *,
    bias: Tensor | None = None,
    selection: str = "magnitude",
    activation: str = "none",
) -> tuple[Tensor, Tensor]:
    """The k winners of ``y = act(x Rᵀ)``; y itself, (N, M), is never written whole.

    The fly's olfactory code: a sparse expansion of which inhibition leaves the k strongest cells. Equal to
    ``winner_take_all(project(x, values, indices, activation=activation), k, bias=bias, selection=selection)``.

    Args:
        x: (..., d) float32, float64, bfloat16 or float16, any strides.
        values, indices: the frozen matrix R, as in `project`.
        k: number of winners, from 0 to M.
        bias: (M,) added to the scores only, as in `winner_take_all`. Not differentiable.
        selection: "magnitude", "signed" or "biased_magnitude".
        activation: "none" or "relu".

    Returns:
        winners: (..., k) in x's dtype, in descending order of score. Differentiable in x.
        indices: (..., k) int64, distinct within a row.

    Raises:
        ValueError, TypeError: a shape, dtype, device, column, k or name that does not fit.
    """
    return OPERATOR(x, values, indices, k, bias, selection, activation)


def check(
    x: Tensor,
    values: Tensor,
    indices: Tensor | None,
    k: int,
    bias: Tensor | None = None,
    selection: str = "magnitude",
    activation: str = "none",
) -> None:
    check_project(x, values, indices, activation=activation)
    _check.k(k, values.shape[0], "values' first dimension")
    check_scores(bias, selection, values.shape[0], x)


def reference(
    x: Tensor,
    values: Tensor,
    indices: Tensor | None,
    k: int,
    bias: Tensor | None = None,
    selection: str = "magnitude",
    activation: str = "none",
) -> tuple[Tensor, Tensor]:
    y = reference_project(x, values, indices, activation=activation)
    return reference_winner_take_all(y, k, bias=bias, selection=selection)


def fake(x: Tensor, values: Tensor, indices: Tensor | None, k: int, *_: object) -> tuple[Tensor, Tensor]:
    shape = (*x.shape[:-1], k)
    return x.new_empty(shape), x.new_empty(shape, dtype=torch.int64)


def setup_context(ctx, inputs, output) -> None:
    x, values, indices, _, _, _, activation = inputs
    winners, winner_indices = output
    ctx.mark_non_differentiable(winner_indices)
    ctx.save_for_backward(values, indices, winner_indices, winners if activation == "relu" else None)
    ctx.in_features = x.shape[-1]


def backward(ctx, grad: Tensor, _: Tensor | None):
    values, indices, winner_indices, winners = ctx.saved_tensors
    if winners is not None:
        grad = grad * (winners > 0)
    grad_y = scatter(grad, winner_indices, values.shape[0])
    return project_backward(grad_y, values, indices, ctx.in_features), None, None, None, None, None, None


OPERATOR = Operator(
    "project_topk(Tensor x, Tensor values, Tensor? indices, int k, Tensor? bias=None, "
    "str selection='magnitude', str activation='none') -> (Tensor, Tensor)",
    reference=reference,
    check=check,
    check_values=check_values,
    fake=fake,
    setup_context=setup_context,
    backward=backward,
    autocast=("x", "values"),
)
