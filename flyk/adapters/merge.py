"""Merging the adapters of a model into its own weights, with what that changes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn

from flyk.adapters._outputs import evaluating, listed, outputs, relative_change
from flyk.adapters.apply import unload
from flyk.nn import _check


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
        ValueError, TypeError: a layer cannot be merged so, or the model is PEFT's. The model is then as it was.
    """
    if hasattr(model, "peft_config"):
        raise ValueError("model must not be PEFT's, got one with a peft_config: call its merge_and_unload")
    batches = [] if inputs is None else listed("inputs", inputs)
    options = {"approximate": True} if _check.flag("approximate", approximate) else {}
    with evaluating(model):
        before = outputs(model, batches)
    unload(model, lambda layer: layer.merge(**options))
    with evaluating(model):
        after = outputs(model, batches)
    return None if inputs is None else relative_change(after, before)
