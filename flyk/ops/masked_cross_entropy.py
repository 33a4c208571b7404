"""masked_cross_entropy: cross-entropy over the classes that the batch holds."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from flyk.ops import _check
from flyk.ops._operator import Operator


def masked_cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """Mean cross-entropy in which classes absent from `target` take no part.

    Equal to the cross-entropy of ``logits + m`` with m = -inf on the absent classes, arXiv 2602.01976, Eq. 6, so
    that learning a batch does not push down classes it cannot know about. The (N, C) mask is never built.

    Args:
        logits: (N, C) float32, float64, bfloat16 or float16, any strides.
        target: (N,) int64 from 0 to C - 1.

    Returns:
        loss: () in logits' dtype (summed in float32 for half types); NaN for N = 0, as torch's mean. Differentiable
        in logits, with gradient 0 on absent classes.

    Raises:
        ValueError, TypeError: a shape, dtype, device or target that does not fit.
    """
    return OPERATOR(logits, target)


def check(logits: Tensor, target: Tensor) -> None:
    _check.dtype("logits", logits)
    _check.shape("logits", logits, "N", "C")
    _check.dtype("target", target, (torch.int64,))
    _check.shape("target", target, logits.shape[0])
    _check.same_device(logits=logits, target=target)


def check_values(logits: Tensor, target: Tensor) -> None:
    _check.in_range("target", target, logits.shape[1])


def reference(logits: Tensor, target: Tensor) -> Tensor:
    present, place = _present(logits, target)
    return F.cross_entropy(logits.index_select(1, present).to(_check.accumulator(logits.dtype)), place).to(logits.dtype)


def _present(logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """The classes in target, ascending, and the place among them of each target."""
    seen = torch.zeros(logits.shape[1], dtype=torch.bool, device=logits.device)
    seen[target] = True
    return seen.nonzero().squeeze(1), (seen.cumsum(0) - 1)[target]


def fake(logits: Tensor, target: Tensor) -> Tensor:
    return logits.new_empty(())


def setup_context(ctx, inputs, output) -> None:
    ctx.save_for_backward(*inputs)


def backward(ctx, grad: Tensor):
    return BACKWARD(grad, *ctx.saved_tensors), None


def reference_backward(grad: Tensor, logits: Tensor, target: Tensor) -> Tensor:
    present, place = _present(logits, target)
    p = logits.index_select(1, present).to(_check.accumulator(logits.dtype)).softmax(1)
    p[torch.arange(len(target), device=p.device), place] -= 1
    out = fake_backward(grad, logits, target).zero_()
    return out.index_copy_(1, present, p.mul_(grad.to(p.dtype) / max(len(target), 1)).to(logits.dtype))


def fake_backward(grad: Tensor, logits: Tensor, target: Tensor) -> Tensor:
    return torch.empty_like(logits, memory_format=torch.contiguous_format)


BACKWARD = Operator(
    "masked_cross_entropy_backward(Tensor grad, Tensor logits, Tensor target) -> Tensor",
    reference=reference_backward,
    fake=fake_backward,
)
OPERATOR = Operator(
    "masked_cross_entropy(Tensor logits, Tensor target) -> Tensor",
    reference=reference,
    check=check,
    check_values=check_values,
    fake=fake,
    setup_context=setup_context,
    backward=backward,
    autocast=("logits",),
    autocast_dtype=torch.float32,
)
