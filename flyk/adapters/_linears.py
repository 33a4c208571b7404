"""Finding the linear layers of a model by name, and putting others in their place."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from flyk.nn._adapter import Adapter


def features(module: Any) -> tuple[int, int] | None:
    """Inputs and outputs of a linear layer of any kind (quantised ones too, and GPT-2's Conv1D); None of another."""
    if type(module).__name__ == "Conv1D" and hasattr(module, "nf"):
        return module.weight.shape[0], module.nf
    inputs, outputs = getattr(module, "in_features", None), getattr(module, "out_features", None)
    return (inputs, outputs) if isinstance(inputs, int) and isinstance(outputs, int) else None


def names(argument: str, value: str | Iterable[str]) -> list[str]:
    """`value` as a list of names."""
    if not isinstance(value, Iterable):
        raise TypeError(f"{argument} must be names of modules, got {value!r}")
    listed = [value] if isinstance(value, str) else list(value)
    for name in listed:
        if not isinstance(name, str) or not name:
            raise TypeError(f"{argument} must be names of modules, got {name!r}")
    return listed


def matches(name: str, target: str) -> bool:
    """A target is a module's whole name or the end of it after a dot."""
    return name == target or name.endswith(f".{target}")


def find(model: nn.Module, targets: list[str], excluded: list[str]) -> dict[nn.Module, str]:
    """The linear layers that the targets name, each with the first name it has in the model.

    Raises:
        ValueError: a target names nothing, or a layer that reads its weights past any adapter.
        TypeError: a target names a module that is not linear.
    """
    found: dict[nn.Module, str] = {}
    missing = dict.fromkeys(targets)
    for name, module in model.named_modules(remove_duplicate=False):
        hit = [target for target in targets if matches(name, target)]
        if not hit or any(matches(name, target) for target in excluded):
            continue
        refuse(model, name, module)
        found.setdefault(module, name)
        for target in hit:
            missing.pop(target, None)
    if missing:
        have = [name for name, module in model.named_modules() if name and features(module)]
        raise ValueError(
            f"target_modules must name linear layers of the model, got {next(iter(missing))!r}; "
            f"it has {', '.join(have[:6]) or 'none'}{', ...' if len(have) > 6 else ''}"
        )
    return found


def refuse(model: nn.Module, name: str, module: nn.Module) -> None:
    """Refuse what cannot be adapted: silently doing nothing would be worse."""
    path = name.split(".")
    for parts in range(1, len(path) + 1):
        if isinstance(model.get_submodule(".".join(path[:parts])), Adapter):
            raise ValueError(f"target_modules must name layers without an adapter, got {name!r}, which has one")
    if not name:
        raise ValueError("model must hold the layers that target_modules names, got such a layer itself")
    if features(module) is None:
        raise TypeError(f"target_modules must name linear layers, got {name!r}, of type {type(module).__name__}")
    parent = model.get_submodule(name.rpartition(".")[0])
    if isinstance(parent, nn.MultiheadAttention):
        raise ValueError(
            f"target_modules must name layers that are called, got {name!r}: nn.MultiheadAttention reads its weight"
        )
    if isinstance(parent, nn.TransformerEncoderLayer) and torch.backends.mha.get_fastpath_enabled():
        raise ValueError(
            f"target_modules must name layers that are called, got {name!r}: nn.TransformerEncoderLayer reads its "
            "weight in evaluation unless torch.backends.mha.set_fastpath_enabled(False) was called"
        )


def check_rank(name: str, r: int, inputs: int, outputs: int) -> None:
    """Refuse ranks beyond use, so that a file from a stranger gets no more memory than the model's own size allows."""
    most = max(min(inputs, outputs), 1024)
    if not 1 <= r <= most:
        raise ValueError(f"{name} must be from 1 to {most} for {inputs} inputs and {outputs} outputs, got {r}")


def replace(model: nn.Module, layers: Mapping[nn.Module, nn.Module]) -> None:
    """Put each value in every place where its key stands in the model, in training mode as that was."""
    for name, module in list(model.named_modules(remove_duplicate=False)):
        if module in layers:
            parent, _, child = name.rpartition(".")
            setattr(model.get_submodule(parent), child, layers[module].train(module.training))


def freeze(model: nn.Module) -> None:
    """Leave nothing to train but the adapters."""
    layers = [module for module in model.modules() if isinstance(module, Adapter)]
    model.requires_grad_(False)
    for layer in layers:
        for parameter in layer.parameters(recurse=False):
            parameter.requires_grad_()


@contextmanager
def unchanged_on_error(model: nn.Module) -> Iterator[None]:
    """An adapter freezes its base when it is made; what was to be trained is again if the block raises."""
    trained = [p for p in model.parameters() if p.requires_grad]
    try:
        yield
    except BaseException:
        for parameter in trained:
            parameter.requires_grad_()
        raise


def layer_seed(seed: int, name: str) -> int:
    """A layer's own seed, so that no two layers, and no layer of two adapters, share a projection."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{name}".encode()).digest()[:8], "big") >> 1
