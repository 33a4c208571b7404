"""fly_lora on the CPU, forward and backward."""

from __future__ import annotations

from torch import Tensor

from flyk.backends._arguments import DTYPES, empty_winners, frozen, scores_bias, selection_code
from flyk.backends.cpu._library import _C, call
from flyk.ops import _check
from flyk.ops.fly_lora import fake_backward as empty_gradients

SERVED = "csrc"


def fly_lora(
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
    out = x.new_empty(*x.shape[:-1], B.shape[0])
    base = None if base is None else base.contiguous()
    return out, *_into(out, x, base, values, indices, B, k, bias, scale, selection)


def in_place(
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
    out = base.contiguous()
    found = _into(out, x, out, values, indices, B, k, bias, scale, selection)
    if out is not base:
        base.copy_(out)
    return found


def _into(
    out: Tensor,
    x: Tensor,
    base: Tensor | None,
    values: Tensor,
    indices: Tensor | None,
    B: Tensor,
    k: int,
    bias: Tensor | None,
    scale: float,
    selection: str,
) -> tuple[Tensor, Tensor]:
    """Writes out, which may be base, and gives the winners and their indices."""
    rows, winners = _check.rows(x).contiguous(), empty_winners(x, k)
    bias = scores_bias(bias, x.dtype)
    matrices = (*frozen(values, indices, x.shape[-1]), base, B.contiguous())
    sizes = (DTYPES[x.dtype], len(rows), B.shape[0], k)
    call(_C.fly_lora, rows, *sizes, *matrices, bias, scale, selection_code(selection), out, *winners)
    return winners


def backward(
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
    outputs = empty_gradients(grad, winners, winner_indices, values, indices, B, scale, in_features, need_x, need_B)
    wanted = (g if need else None for g, need in zip(outputs, (need_x, need_B), strict=True))
    rows = _check.rows(grad).contiguous()
    sizes = (DTYPES[B.dtype], *rows.shape, winners.shape[-1])
    found = (winners.contiguous(), winner_indices.contiguous())
    matrix = frozen(values, indices, in_features)
    call(_C.fly_lora_backward, rows, *sizes, *found, *matrix, B.contiguous(), scale, *wanted)
    return outputs
