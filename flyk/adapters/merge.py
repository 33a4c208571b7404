"""Merging the adapters of a model into its own weights, with what that changes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from flyk.adapters.apply import unload


def merge(model: nn.Module, *, approximate: bool = False, inputs: Iterable[Any] | None = None) -> float | None:
    """Merge every adapter of a model into its base, in place, and measure what that changes.

    Args:
        model: with adapters of `flyk.adapters.apply`.
        approximate: must be True where a layer has k < r, see `FlyLoRALinear.merge`.
        inputs: batches, each a tensor, a tuple of positional or a dict of keyword arguments of the model.

    Returns:
        ``‖f_merged - f‖ / ‖f‖`` over the outputs for all inputs, in evaluation mode; None where no inputs are given.
        An output is a tensor, or has one in `logits`, or begins with one.

    Raises:
        ValueError, TypeError: a layer cannot be merged so. The model is then as it was.
    """
    batches = None if inputs is None else list(inputs)
    before = None if batches is None else _outputs(model, batches)
    options = {} if not approximate else {"approximate": True}
    unload(model, lambda layer: layer.merge(**options))
    if batches is None or before is None:
        return None
    pairs = list(zip(_outputs(model, batches), before, strict=True))
    change = sum(float((after - out).double().square().sum()) for after, out in pairs)
    size = sum(float(out.double().square().sum()) for _, out in pairs)
    return (change / size) ** 0.5 if size else 0.0


@torch.no_grad()
def _outputs(model: nn.Module, batches: Sequence[Any]) -> list[Tensor]:
    training = model.training
    model.eval()
    try:
        return [_output(model, batch) for batch in batches]
    finally:
        model.train(training)


def _output(model: Callable[..., Any], batch: Any) -> Tensor:
    out = call(model, batch)
    if isinstance(out, Tensor):
        return out
    return out.logits if hasattr(out, "logits") else out[0]


def call(model: Callable[..., Any], batch: Any) -> Any:
    """The model's result for a batch: a dict of keyword arguments, a tuple of positional ones, or the one argument."""
    if isinstance(batch, Mapping):
        return model(**batch)
    return model(*batch) if isinstance(batch, tuple) else model(batch)
