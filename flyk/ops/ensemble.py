"""ensemble: the largest softmax over the online head and the EMA heads of each row's expert."""

from __future__ import annotations

import itertools

import torch
import torch.nn.functional as F
from torch import Tensor

from flyk.ops import _check
from flyk.ops._operator import Operator


def ensemble(
    h: Tensor,
    online_weight: Tensor,
    online_bias: Tensor | None,
    bank_weight: Tensor,
    bank_bias: Tensor | None,
    expert_ids: Tensor,
    seen: Tensor | None = None,
) -> Tensor:
    """TE2's prediction: the elementwise maximum of the softmax of n + 1 heads.

    ``p[i] = max(softmax(W h_i + b), max_j softmax(W^(e_i, j) h_i + b^(e_i, j)))``, arXiv 2602.01976, Eq. 8 to 10.
    Rows of p are scores and need not sum to 1.

    Args:
        h: (N, d) float32, float64, bfloat16 or float16, any strides.
        online_weight, online_bias: (C, d) and (C,) the shared head, in h's dtype; the bias may be None.
        bank_weight, bank_bias: (E, n, C, d) and (E, n, C) the n EMA heads of each of E experts; the bias may be None.
        expert_ids: (N,) int64 from 0 to E - 1, the expert of each row.
        seen: (C,) bool; a class that is False gets probability 0 and no part in the softmax. None for all.

    Returns:
        p: (N, C) in h's dtype; softmax is taken in float32 for half types. Differentiable in h and the heads; the
        backward computes the softmax again and keeps none.

    Raises:
        ValueError, TypeError: a shape, dtype, device or expert id that does not fit, or no class seen.
    """
    return OPERATOR(h, online_weight, online_bias, bank_weight, bank_bias, expert_ids, seen)


def check(
    h: Tensor,
    online_weight: Tensor,
    online_bias: Tensor | None,
    bank_weight: Tensor,
    bank_bias: Tensor | None,
    expert_ids: Tensor,
    seen: Tensor | None = None,
) -> None:
    _check.dtype("h", h)
    _check.shape("h", h, "N", "d")
    _check.shape("online_weight", online_weight, "C", h.shape[1])
    classes = online_weight.shape[0]
    _check.shape("bank_weight", bank_weight, "E", "n", classes, h.shape[1])
    if online_bias is not None:
        _check.shape("online_bias", online_bias, classes)
    if bank_bias is not None:
        _check.shape("bank_bias", bank_bias, *bank_weight.shape[:3])
    _check.alike(
        h=h, online_weight=online_weight, online_bias=online_bias, bank_weight=bank_weight, bank_bias=bank_bias
    )
    _check.dtype("expert_ids", expert_ids, (torch.int64,))
    _check.shape("expert_ids", expert_ids, h.shape[0])
    if seen is not None:
        _check.dtype("seen", seen, (torch.bool,))
        _check.shape("seen", seen, classes)
    _check.same_device(h=h, expert_ids=expert_ids, seen=seen)


def check_values(
    h: Tensor,
    online_weight: Tensor,
    online_bias: Tensor | None,
    bank_weight: Tensor,
    bank_bias: Tensor | None,
    expert_ids: Tensor,
    seen: Tensor | None = None,
) -> None:
    _check.in_range("expert_ids", expert_ids, bank_weight.shape[0])
    if seen is not None and seen.device.type == "cpu" and seen.numel() > 0 and not seen.any():
        raise ValueError("seen must mark at least one class, got none")


def reference(
    h: Tensor,
    online_weight: Tensor,
    online_bias: Tensor | None,
    bank_weight: Tensor,
    bank_bias: Tensor | None,
    expert_ids: Tensor,
    seen: Tensor | None = None,
) -> Tensor:
    order, grouped, experts = _group(h, expert_ids, bank_weight.shape[0])
    p = _softmax(grouped, online_weight, online_bias, bank_weight, bank_bias, experts, seen).amax(1)
    return torch.empty_like(p).index_copy(0, order, p).to(h.dtype)


def _group(h: Tensor, expert_ids: Tensor, num_experts: int) -> tuple[Tensor, Tensor, list[tuple[int, slice]]]:
    """The order that brings the rows of an expert together, the rows in it, and each expert's place in them."""
    order = expert_ids.argsort(stable=True)
    ends = [0, *expert_ids.bincount(minlength=num_experts).cumsum(0).tolist()]
    experts = [(e, slice(*span)) for e, span in enumerate(itertools.pairwise(ends)) if span[0] < span[1]]
    return order, h[order].to(_check.accumulator(h.dtype)), experts


def _softmax(
    h: Tensor,
    online_weight: Tensor,
    online_bias: Tensor | None,
    bank_weight: Tensor,
    bank_bias: Tensor | None,
    experts: list[tuple[int, slice]],
    seen: Tensor | None,
) -> Tensor:
    """The softmax of each head of each grouped row, the online one first: (N, n + 1, C) in h's dtype."""

    def logits(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        flat = None if bias is None else bias.flatten().to(h.dtype)
        return F.linear(rows, weight.flatten(0, 1).to(h.dtype), flat).unflatten(1, weight.shape[:2])

    bank = [logits(h[at], bank_weight[e], None if bank_bias is None else bank_bias[e]) for e, at in experts]
    bank = torch.cat([h.new_empty(0, *bank_weight.shape[1:3]), *bank])
    z = torch.cat((logits(h, online_weight.unsqueeze(0), online_bias), bank), 1)
    return (z if seen is None else z.masked_fill(~seen, -torch.inf)).softmax(-1)


def fake(h: Tensor, online_weight: Tensor, *_: Tensor | None) -> Tensor:
    return h.new_empty(h.shape[0], online_weight.shape[0])


def setup_context(ctx, inputs, output) -> None:
    ctx.save_for_backward(*inputs)


def backward(ctx, grad: Tensor):
    grads = BACKWARD(grad, *ctx.saved_tensors)
    return *(g if need else None for g, need in zip(grads, ctx.needs_input_grad[:5], strict=True)), None, None


def reference_backward(
    grad: Tensor,
    h: Tensor,
    online_weight: Tensor,
    online_bias: Tensor | None,
    bank_weight: Tensor,
    bank_bias: Tensor | None,
    expert_ids: Tensor,
    seen: Tensor | None,
) -> tuple[Tensor, ...]:
    order, grouped, experts = _group(h, expert_ids, bank_weight.shape[0])
    p = _softmax(grouped, online_weight, online_bias, bank_weight, bank_bias, experts, seen)
    # The gradient goes to the head that gave the maximum, shared where heads tie, then back through its softmax.
    best = (p == p.amax(1, keepdim=True)).to(p.dtype)
    grad_p = best * (grad[order].to(p.dtype) / best.sum(1)).unsqueeze(1)
    grad_z = p * (grad_p - (grad_p * p).sum(-1, keepdim=True))
    online, bank = grad_z[:, 0], grad_z[:, 1:].flatten(1)
    grad_h = online @ online_weight.to(p.dtype)
    grad_weight, grad_bias = torch.zeros_like(bank_weight, dtype=p.dtype), p.new_zeros(bank_weight.shape[:3])
    for expert, at in experts:
        grad_h[at] += bank[at] @ bank_weight[expert].flatten(0, 1).to(p.dtype)
        grad_weight[expert] = (bank[at].t() @ grouped[at]).view_as(grad_weight[expert])
        grad_bias[expert] = grad_z[at, 1:].sum(0)
    grad_h = torch.empty_like(grad_h).index_copy_(0, order, grad_h)
    grads = grad_h, online.t() @ grouped, online.sum(0), grad_weight, grad_bias
    return tuple(g.to(h.dtype).contiguous() for g in grads)


def fake_backward(
    grad: Tensor,
    h: Tensor,
    online_weight: Tensor,
    online_bias: Tensor | None,
    bank_weight: Tensor,
    bank_bias: Tensor | None,
    expert_ids: Tensor,
    seen: Tensor | None,
) -> tuple[Tensor, ...]:
    shapes = h.shape, online_weight.shape, online_weight.shape[:1], bank_weight.shape, bank_weight.shape[:3]
    return tuple(h.new_empty(shape) for shape in shapes)


BACKWARD = Operator(
    "ensemble_backward(Tensor grad, Tensor h, Tensor online_weight, Tensor? online_bias, Tensor bank_weight, "
    "Tensor? bank_bias, Tensor expert_ids, Tensor? seen) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    reference=reference_backward,
    fake=fake_backward,
)
OPERATOR = Operator(
    "ensemble(Tensor h, Tensor online_weight, Tensor? online_bias, Tensor bank_weight, Tensor? bank_bias, "
    "Tensor expert_ids, Tensor? seen=None) -> Tensor",
    reference=reference,
    check=check,
    check_values=check_values,
    fake=fake,
    setup_context=setup_context,
    backward=backward,
    autocast=("h", "online_weight", "online_bias", "bank_weight", "bank_bias"),
)
