"""What a model gives for batches of any form, and how far two models' outputs are apart."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """The model in evaluation mode; afterwards each of its modules is in the mode that it was in."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def check_batches(argument: str, value: object) -> None:
    """Refuse one batch that was given in the place of many."""
    if isinstance(value, (Tensor, Mapping)) or not isinstance(value, Iterable):
        raise TypeError(f"{argument} must be a list of batches or a loader, got a {type(value).__name__}")


def listed(argument: str, value: Iterable[Any]) -> list[Any]:
    """The batches, of which there must be one at least."""
    check_batches(argument, value)
    batches = list(value)
    if not batches:
        raise ValueError(f"{argument} must be at least one batch, got none")
    return batches


def call(model: Callable[..., Any], batch: Any) -> Any:
    """The model's result for a batch: a dict of keyword arguments, a tuple of positional ones, or the one argument."""
    if isinstance(batch, Mapping):
        return model(**batch)
    return model(*batch) if isinstance(batch, tuple) else model(batch)


@torch.no_grad()
def outputs(model: Callable[..., Any], batches: Sequence[Any]) -> list[Tensor]:
    """The output for each batch: a result that is a tensor, or has one in `logits`, or begins with one."""
    results = [call(model, batch) for batch in batches]
    return [out if isinstance(out, Tensor) else out.logits if hasattr(out, "logits") else out[0] for out in results]


def relative_change(after: Sequence[Tensor], before: Sequence[Tensor]) -> float:
    """``‖after - before‖ / ‖before‖`` over all of them; 0 where `before` is."""
    pairs = list(zip(after, before, strict=True))
    change = sum(float((a - b).double().square().sum()) for a, b in pairs)
    size = sum(float(b.double().square().sum()) for _, b in pairs)
    return (change / size) ** 0.5 if size else 0.0
