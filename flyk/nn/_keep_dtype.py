"""Sums of many small terms keep their dtype when a model is cast: in half types the small terms would vanish."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor


def keep_dtype(fn: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """What `nn.Module._apply` is given (by `.to`, `.half`, `.cuda`, ...), but moving to a device alone."""

    def move(tensor: Tensor) -> Tensor:
        probe = fn(tensor.new_empty(0))
        return fn(tensor) if probe.dtype == tensor.dtype else tensor.to(probe.device)

    return move
