"""Wrapping the linear layers of any model with FlyLoRA, and finding them again."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from torch import nn

from flyk.adapters import _linears
from flyk.nn import FlyLoRALinear, _check
from flyk.nn._adapter import Adapter

Model = TypeVar("Model", bound=nn.Module)


def apply(
    model: Model,
    target_modules: str | Iterable[str],
    *,
    r: int = 32,
    k: int = 8,
    nnz: int | None = None,
    alpha: float | None = None,
    selection: str = "magnitude",
    bias_update_rate: float = 1e-3,
    dropout: float = 0.0,
    seed: int = 0,
    detach_input: bool = False,
    exclude_modules: str | Iterable[str] = (),
) -> Model:
    """Put a `FlyLoRALinear` around each named linear layer of a model, in place, and freeze all else.

    The model's class, forward and signature stay; no hook is left behind. What else is to be trained (a new
    classifier) is made to by ``requires_grad_()`` afterwards. A layer that stands in several places is adapted once.

    Args:
        model: any module.
        target_modules: names of linear layers: a whole name, or the end of one after a dot, such as "q_proj".
        r, k, nnz, alpha, selection, bias_update_rate, dropout, detach_input: of each layer, see `FlyLoRALinear`.
        seed: of the adapter. Each layer's own is made from it and the layer's name; adapters that will be merged must
            have different seeds.
        exclude_modules: names that are left alone though a target fits.

    Returns:
        The model itself.

    Raises:
        ValueError, TypeError: an argument that does not fit; a target that names nothing, no linear layer, or one
            whose weight its parent reads itself. The model is then as it was.
    """
    seed = _check.integer("seed", seed, 0)
    options = {
        "r": r,
        "k": k,
        "nnz": nnz,
        "alpha": alpha,
        "selection": selection,
        "bias_update_rate": bias_update_rate,
        "dropout": dropout,
        "detach_input": detach_input,
    }

    def wrap(name: str, base: nn.Module, sizes: tuple[int, int]) -> Adapter:
        _linears.check_rank("r", _check.integer("r", r, 1), *sizes)  # what is saved can be loaded
        return FlyLoRALinear(*sizes, base=base, seed=_linears.layer_seed(seed, name), **options)

    return wrap_all(model, target_modules, exclude_modules, wrap)


def wrap_all(
    model: Model,
    target_modules: str | Iterable[str],
    exclude_modules: str | Iterable[str],
    wrap: Callable[[str, nn.Module, tuple[int, int]], Adapter],
) -> Model:
    """Put `wrap(name, layer, (in, out))` in the place of each named layer; all are made before the first is put."""
    targets, excluded = (
        _linears.names(*pair) for pair in (("target_modules", target_modules), ("exclude_modules", exclude_modules))
    )
    if not targets:
        raise ValueError("target_modules must name at least one layer, got none")
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a module, got {type(model).__name__}")
    found = _linears.find(model, targets, excluded)
    with _linears.unchanged_on_error(model):
        layers = {base: wrap(name, base, _linears.features(base) or (0, 0)) for base, name in found.items()}
    _linears.replace(model, layers)
    _linears.freeze(model)
    return model


def adapters(model: nn.Module) -> dict[str, Adapter]:
    """The adapters of a model by name, in the order of its modules.

    Raises:
        ValueError: the model has none.
    """
    found = {name: module for name, module in model.named_modules() if isinstance(module, Adapter)}
    if not found:
        raise ValueError(f"model must have adapters, got a {type(model).__name__} without any")
    return found


def update_routing_bias(model: nn.Module) -> None:
    """`FlyLoRALinear.update_routing_bias` of each layer: call it once after each optimizer step."""
    for layer in adapters(model).values():
        if isinstance(layer, FlyLoRALinear):
            layer.update_routing_bias()


def unload(model: Model, merged: Callable[[Any], nn.Module]) -> Model:
    """Put `merged(layer)` in the place of each adapter; all are made before the first is put."""
    _linears.replace(model, {layer: merged(layer) for layer in adapters(model).values()})
    return model
