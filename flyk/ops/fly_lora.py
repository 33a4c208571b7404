"""fly_lora: a low-rank update of which each token uses the k best of r ranks."""

from __future__ import annotations

import torch
from torch import Tensor

from flyk.ops import _check
from flyk.ops._operator import Operator
from flyk.ops.project import check_values as check_values_project
from flyk.ops.project import dense
from flyk.ops.project import reference as reference_project
from flyk.ops.winner_take_all import check_scores, scatter
from flyk.ops.winner_take_all import reference as reference_winner_take_all


def fly_lora(
    x: Tensor,
    base: Tensor | None,
    values: Tensor,
    indices: Tensor | None,
    B: Tensor,
    k: int,
    *,
    bias: Tensor | None = None,
    scale: float = 1.0,
    selection: str = "magnitude",
) -> Tensor:
    """FlyLoRA's forward: ``out = base + scale * Σ_{i in winners(y)} y_i B[:, i]`` with ``y = x Aᵀ``.

    arXiv 2510.08396, Eq. 11: A is frozen, the winners are the token's experts. The gradients to x, base and B are
    exact; the winners are held constant, as in the gradient of a sort. x is not kept for the backward, only the
    winners and their indices.

    Args:
        x: (..., d) float32, float64, bfloat16 or float16, any strides.
        base: (..., m) what the update is added to, in x's dtype; or None for 0.
        values, indices: the frozen matrix A with r rows, dense or sparse, as in `project`; values in x's dtype.
        B: (m, r) in x's dtype.
        k: ranks used by a token, from 0 to r.
        bias: (r,) routing bias, of any floating dtype; it moves the selection, never the output.
        scale: alpha / r of LoRA.
        selection: "magnitude", "signed" or "biased_magnitude", see `winner_take_all`.

    Returns:
        out: (..., m) in x's dtype; products are summed in float32 for half types.

    Raises:
        ValueError, TypeError: a shape, dtype, device, column, k or name that does not fit.
    """
    return fly_lora_with_winners(x, base, values, indices, B, k, bias, scale, selection)[0]


def fly_lora_with_winners(
    x: Tensor,
    base: Tensor | None,
    values: Tensor,
    indices: Tensor | None,
    B: Tensor,
    k: int,
    bias: Tensor | None,
    scale: float,
    selection: str,
) -> tuple[Tensor, Tensor, Tensor]:
    """`fly_lora`, and the winners (..., k) and their indices (..., k) that it found on the way."""
    return OPERATOR(x, base, values, indices, B, k, bias, scale, selection)


def check(
    x: Tensor,
    base: Tensor | None,
    values: Tensor,
    indices: Tensor | None,
    B: Tensor,
    k: int,
    bias: Tensor | None = None,
    scale: float = 1.0,
    selection: str = "magnitude",
) -> None:
    _check.at_least_1d("x", x)
    _check.dtype("x", x)
    _check.frozen(values, indices, x.shape[-1])
    _check.shape("B", B, "m", values.shape[0])
    if base is not None:
        _check.shape("base", base, *x.shape[:-1], B.shape[0])
    _check.alike(x=x, base=base, values=values, B=B)
    _check.same_device(x=x, indices=indices)
    _check.k(k, values.shape[0], "values' first dimension")
    check_scores(bias, selection, values.shape[0], x)


def check_values(x: Tensor, base: Tensor | None, values: Tensor, indices: Tensor | None, *_: object) -> None:
    check_values_project(x, values, indices)


def reference(
    x: Tensor,
    base: Tensor | None,
    values: Tensor,
    indices: Tensor | None,
    B: Tensor,
    k: int,
    bias: Tensor | None = None,
    scale: float = 1.0,
    selection: str = "magnitude",
) -> tuple[Tensor, Tensor, Tensor]:
    acc = _check.accumulator(x.dtype)
    y = reference_project(x.to(acc), values.to(acc), indices)
    winners, winner_indices = reference_winner_take_all(y, k, bias=bias, selection=selection)
    out = scale * (scatter(winners, winner_indices, values.shape[0]) @ B.to(acc).t())
    if base is not None:
        out = base.to(acc) + out
    return out.to(x.dtype), winners.to(x.dtype), winner_indices


def fake(
    x: Tensor, base: Tensor | None, values: Tensor, indices: Tensor | None, B: Tensor, k: int, *_: object
) -> tuple[Tensor, Tensor, Tensor]:
    winners = (*x.shape[:-1], k)
    return x.new_empty(*x.shape[:-1], B.shape[0]), x.new_empty(winners), x.new_empty(winners, dtype=torch.int64)


def in_place_reference(
    x: Tensor,
    base: Tensor,
    values: Tensor,
    indices: Tensor | None,
    B: Tensor,
    k: int,
    bias: Tensor | None,
    scale: float,
    selection: str,
) -> tuple[Tensor, Tensor]:
    out, winners, winner_indices = reference(x, base, values, indices, B, k, bias, scale, selection)
    base.copy_(out)
    return winners, winner_indices


def setup_context(ctx, inputs, output) -> None:
    x, _, values, indices, B, _, _, ctx.scale, _ = inputs
    _, winners, winner_indices = output
    ctx.mark_non_differentiable(winners, winner_indices)
    ctx.save_for_backward(winners, winner_indices, values, indices, B)
    ctx.in_features = x.shape[-1]


def backward(ctx, grad: Tensor, *_: Tensor | None):
    needs = ctx.needs_input_grad
    need_x, need_base, need_B = needs[0], needs[1], needs[4]
    winners, winner_indices, values, indices, B = ctx.saved_tensors
    grad_x = grad_B = None
    if need_x or need_B:
        grad_x, grad_B = BACKWARD(
            grad.to(B.dtype), winners, winner_indices, values, indices, B, ctx.scale, ctx.in_features, need_x, need_B
        )
    grad_base = grad if need_base else None
    frozen = (None,) * 4
    return grad_x if need_x else None, grad_base, None, None, grad_B if need_B else None, *frozen


def reference_backward(
    grad: Tensor,
    winners: Tensor,
    winner_indices: Tensor,
    values: Tensor,
    indices: Tensor | None,
    B: Tensor,
    scale: float,
    in_features: int,
    need_x: bool,
    need_B: bool,
) -> tuple[Tensor, Tensor]:
    acc, r = _check.accumulator(B.dtype), values.shape[0]
    g = _check.rows(grad).to(acc)
    at = _check.rows(winner_indices)
    grad_x, grad_B = fake_backward(
        grad, winners, winner_indices, values, indices, B, scale, in_features, need_x, need_B
    )
    if need_x:
        grad_y = scatter(scale * (g @ B.to(acc)).gather(1, at), at, r)
        grad_x.copy_((grad_y @ dense(values.to(acc), indices, in_features)).view_as(grad_x))
    if need_B:
        # A sum over the rows that rank i won: an infinite or NaN entry of g reaches the winners of its row alone,
        # though the product has a 0 for the others.
        y, finite = scatter(_check.rows(winners).to(acc), at, r), g.isfinite()
        won = scatter(torch.ones_like(at, dtype=acc), at, r)
        reached = (~finite).to(acc).t() @ won > 0
        grad_B.copy_(scale * torch.where(reached, g.t() @ y, g.where(finite, 0).t() @ y))
    return grad_x, grad_B


def fake_backward(
    grad: Tensor,
    winners: Tensor,
    winner_indices: Tensor,
    values: Tensor,
    indices: Tensor | None,
    B: Tensor,
    scale: float,
    in_features: int,
    need_x: bool,
    need_B: bool,
) -> tuple[Tensor, Tensor]:
    # What is not needed is empty.
    return (
        B.new_empty(*grad.shape[:-1], in_features) if need_x else B.new_empty(0),
        torch.empty_like(B, memory_format=torch.contiguous_format) if need_B else B.new_empty(0),
    )


BACKWARD = Operator(
    "fly_lora_backward(Tensor grad, Tensor winners, Tensor winner_indices, Tensor values, Tensor? indices, Tensor B, "
    "float scale, SymInt in_features, bool need_x, bool need_B) -> (Tensor, Tensor)",
    reference=reference_backward,
    fake=fake_backward,
)
OPERATOR = Operator(
    "fly_lora(Tensor x, Tensor? base, Tensor values, Tensor? indices, Tensor B, int k, Tensor? bias=None, "
    "float scale=1.0, str selection='magnitude') -> (Tensor, Tensor, Tensor)",
    reference=reference,
    check=check,
    check_values=check_values,
    fake=fake,
    setup_context=setup_context,
    backward=backward,
    autocast=("x", "base", "values", "B"),
)
# The same added to base in place, for a caller that owns base and takes care of gradients itself; see fly_lora_linear.
IN_PLACE = Operator(
    "fly_lora_(Tensor x, Tensor(a!) base, Tensor values, Tensor? indices, Tensor B, int k, Tensor? bias, "
    "float scale, str selection) -> (Tensor, Tensor)",
    reference=in_place_reference,
    check=check,
    check_values=check_values,
    fake=lambda *args: fake(*args)[1:],
)
