"""masked_cross_entropy on the CPU, forward and backward."""

from __future__ import annotations

from torch import Tensor

from flyk.backends._arguments import DTYPES
from flyk.backends.cpu._library import _C, call
from flyk.ops.masked_cross_entropy import fake as empty_loss
from flyk.ops.masked_cross_entropy import fake_backward as empty_gradient

SERVED = "csrc"


def masked_cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    loss = empty_loss(logits, target)
    call(_C.masked_cross_entropy, *_arguments(logits, target), loss)
    return loss


def backward(grad: Tensor, logits: Tensor, target: Tensor) -> Tensor:
    out = empty_gradient(grad, logits, target)
    scale = grad.item() / max(len(target), 1)
    call(_C.masked_cross_entropy_backward, *_arguments(logits, target), scale, out)
    return out


def _arguments(logits: Tensor, target: Tensor) -> tuple[Tensor | int, ...]:
    return logits.contiguous(), DTYPES[logits.dtype], *logits.shape, target.contiguous()
