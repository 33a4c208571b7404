"""winner_take_all: the k entries of each row with the best scores, as the fly's inhibition leaves them."""

from __future__ import annotations

import torch
from torch import Tensor

from flyk.ops import _check
from flyk.ops._operator import Operator


def winner_take_all(
    y: Tensor, k: int, *, bias: Tensor | None = None, selection: str = "magnitude"
) -> tuple[Tensor, Tensor]:
    """The k best scores of each row, in descending order of score.

    The score of entry i is ``abs(y_i) + b_i`` for "magnitude" (FlyLoRA, arXiv 2510.08396, Eq. 8, where a larger
    bias always raises the chance), ``y_i + b_i`` for "signed" (Eq. 10) and ``abs(y_i + b_i)`` for
    "biased_magnitude" (the published minimal code). Ties go to the lower index; NaN ranks above all.

    Args:
        y: (..., M) float32, float64, bfloat16 or float16, any strides.
        k: number of winners, from 0 to M.
        bias: (M,) of any floating dtype; it moves the scores alone, never the winners. Not differentiable.
        selection: "magnitude", "signed" or "biased_magnitude".

    Returns:
        winners: (..., k) the entries of y that won, in y's dtype. Differentiable in y.
        indices: (..., k) int64, their places; distinct within a row.

    Raises:
        ValueError, TypeError: a shape, dtype, device, k or name that does not fit.
    """
    return OPERATOR(y, k, bias, selection)


def check(y: Tensor, k: int, bias: Tensor | None = None, selection: str = "magnitude") -> None:
    _check.at_least_1d("y", y)
    _check.dtype("y", y)
    _check.k(k, y.shape[-1], "y's last dimension")
    check_scores(bias, selection, y.shape[-1], y)


def check_scores(bias: Tensor | None, selection: str, n: int, y: Tensor) -> None:
    """The part of the checks that every operator that picks winners shares."""
    _check.choice("selection", selection, _check.SELECTIONS)
    if bias is not None:
        _check.dtype("bias", bias)
        _check.shape("bias", bias, n)
        _check.same_device(x=y, bias=bias)


def score(y: Tensor, bias: Tensor | None, selection: str) -> Tensor:
    """What entries are ranked by; float32 for half types, so that a small bias is not rounded away."""
    acc = _check.accumulator(y.dtype)
    y = y.detach().to(acc)
    b = 0.0 if bias is None else bias.detach().to(acc)
    if selection == "biased_magnitude":
        return (y + b).abs()
    return (y.abs() if selection == "magnitude" else y) + b


def reference(y: Tensor, k: int, bias: Tensor | None = None, selection: str = "magnitude") -> tuple[Tensor, Tensor]:
    # A stable descending sort is the definition: NaN first, equal scores in the order of their places.
    order = score(y, bias, selection).sort(dim=-1, descending=True, stable=True).indices
    indices = order[..., :k].contiguous()
    return y.gather(-1, indices), indices


def fake(y: Tensor, k: int, bias: Tensor | None = None, selection: str = "magnitude") -> tuple[Tensor, Tensor]:
    shape = (*y.shape[:-1], k)
    return y.new_empty(shape), y.new_empty(shape, dtype=torch.int64)


def setup_context(ctx, inputs, output) -> None:
    indices = output[1]
    ctx.mark_non_differentiable(indices)
    ctx.save_for_backward(indices)
    ctx.n = inputs[0].shape[-1]


def backward(ctx, grad: Tensor, _: Tensor | None):
    (indices,) = ctx.saved_tensors
    return scatter(grad, indices, ctx.n), None, None, None


def scatter(winners: Tensor, indices: Tensor, n: int) -> Tensor:
    """(..., n) that holds the winners in their places and 0 elsewhere."""
    return winners.new_zeros(*winners.shape[:-1], n).scatter(-1, indices, winners)


OPERATOR = Operator(
    "winner_take_all(Tensor y, int k, Tensor? bias=None, str selection='magnitude') -> (Tensor, Tensor)",
    reference=reference,
    check=check,
    fake=fake,
    setup_context=setup_context,
    backward=backward,
)
