"""fly_lora_linear: a frozen linear layer with fly_lora's update added in place to its fresh output."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor

from flyk.ops import _check
from flyk.ops._operator import Operator
from flyk.ops.fly_lora import BACKWARD, IN_PLACE
from flyk.ops.fly_lora import check as check_fly_lora
from flyk.ops.fly_lora import fake as fake_fly_lora
from flyk.ops.project import check_values as check_values_project


def fly_lora_linear(
    x: Tensor,
    weight: Tensor,
    linear_bias: Tensor | None,
    values: Tensor,
    indices: Tensor | None,
    B: Tensor,
    k: int,
    bias: Tensor | None,
    scale: float,
    selection: str,
) -> tuple[Tensor, Tensor, Tensor]:
    """``F.linear(x, weight, linear_bias)`` plus `fly_lora`'s update, and the winners and their indices.

    The output of a frozen linear layer belongs to nobody yet, so the update is added to it where it lies, and in the
    backward the layer's gradient to x is added to the update's. To a caller nothing is written: the operator is
    functional, with exact gradients to x and B. weight and linear_bias are frozen.

    Args:
        x: (..., d) as in `fly_lora`.
        weight: (m, d) in x's dtype. linear_bias: (m,) or None.
        values, indices, B, k, bias, scale, selection: as in `fly_lora`.

    Returns:
        out (..., m) in x's dtype, winners (..., k), indices (..., k) int64.

    Raises:
        ValueError, TypeError: a shape, dtype or device that does not fit, or a weight that requires grad.
    """
    return OPERATOR(x, weight, linear_bias, values, indices, B, k, bias, scale, selection)


def check(
    x: Tensor,
    weight: Tensor,
    linear_bias: Tensor | None,
    values: Tensor,
    indices: Tensor | None,
    B: Tensor,
    k: int,
    bias: Tensor | None,
    scale: float,
    selection: str,
) -> None:
    check_fly_lora(x, None, values, indices, B, k, bias, scale, selection)
    _check.shape("weight", weight, B.shape[0], x.shape[-1])
    if linear_bias is not None:
        _check.shape("linear_bias", linear_bias, B.shape[0])
    _check.alike(x=x, weight=weight, linear_bias=linear_bias)
    for name, tensor in (("weight", weight), ("linear_bias", linear_bias)):
        if tensor is not None and tensor.requires_grad:
            raise ValueError(f"{name} must be frozen, got a tensor that requires grad")


def check_values(
    x: Tensor, weight: Tensor, linear_bias: Tensor | None, values: Tensor, indices: Tensor | None, *_: object
) -> None:
    check_values_project(x, values, indices)


def reference(x: Tensor, weight: Tensor, linear_bias: Tensor | None, *update: Any) -> tuple[Tensor, Tensor, Tensor]:
    out = F.linear(x, weight, linear_bias)
    return out, *IN_PLACE(x, out, *update)


def fake(x: Tensor, weight: Tensor, linear_bias: Tensor | None, *update: Any) -> tuple[Tensor, Tensor, Tensor]:
    return fake_fly_lora(x, None, *update)


def setup_context(ctx, inputs, output) -> None:
    x, weight, _, values, indices, B, _, _, ctx.scale, _ = inputs
    _, winners, winner_indices = output
    ctx.mark_non_differentiable(winners, winner_indices)
    ctx.save_for_backward(winners, winner_indices, values, indices, B, weight)
    ctx.in_features = x.shape[-1]


def backward(ctx, grad: Tensor, *_: Tensor | None):
    need_x, need_B = ctx.needs_input_grad[0], ctx.needs_input_grad[5]
    winners, winner_indices, values, indices, B, weight = ctx.saved_tensors
    grad = grad.to(B.dtype)
    grad_x, grad_B = BACKWARD(
        grad, winners, winner_indices, values, indices, B, ctx.scale, ctx.in_features, need_x, need_B
    )
    if need_x:
        m, d = weight.shape
        grad_x.view(-1, d).addmm_(grad.reshape(-1, m), weight)
    return grad_x if need_x else None, *(None,) * 4, grad_B if need_B else None, *(None,) * 4


OPERATOR = Operator(
    "fly_lora_linear(Tensor x, Tensor weight, Tensor? linear_bias, Tensor values, Tensor? indices, Tensor B, int k, "
    "Tensor? bias, float scale, str selection) -> (Tensor, Tensor, Tensor)",
    reference=reference,
    check=check,
    check_values=check_values,
    fake=fake,
    setup_context=setup_context,
    backward=backward,
    autocast=("x", "weight", "linear_bias", "values", "B"),
)
