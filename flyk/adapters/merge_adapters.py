"""Merging the adapters of several tasks into one."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from flyk.adapters import _linears
from flyk.nn import FlyLoRALinear, _check
from flyk.nn._adapter import Adapter
from flyk.ops import fly_lora
from flyk.ops._check import choice

METHODS = ("concat", "linear", "dense", "ties", "dare")
Layers = Sequence[FlyLoRALinear]


def merge_adapters(
    adapters: Sequence[Mapping[str, Adapter]],
    weights: Sequence[float] | None = None,
    method: str = "concat",
    *,
    density: float = 0.2,
    seed: int = 0,
) -> dict[str, nn.Module]:
    """One layer for each name out of the layers of several adapters of the same base; `place` puts them into it.

    - "concat": ``base(x) + Σ w_t update_t(x)``, exactly: the ranks side by side, each task's winners its own.
    - "linear": ``B = Σ w_t B_t``, which means something only where all share A. Exact where they share the routing
      bias too; it is averaged.
    - "dense": ``W + Σ w_t alpha_t / r_t B_t A_t``, arXiv 2510.08396, Eq. 12, into one nn.Linear. All ranks are then
      used by every token, so for k < r this is another function than "concat".
    - "ties": the same sum after trimming each update to its largest entries, over those that have the elected sign
      (arXiv 2306.01708), per layer.
    - "dare": the same sum after dropping entries at random and scaling up the others (arXiv 2311.03099).

    Args:
        adapters: what `flyk.adapters.adapters` gives for each task, of the same names and sizes. The base is taken
            from the first.
        weights: w_t; 1 / number of tasks where None.
        method: one of the above.
        density: share of entries that "ties" and "dare" keep, above 0 and at most 1.
        seed: of what "dare" drops.

    Warns:
        UserWarning: two tasks share A at a layer, so their updates are not orthogonal (Cor. 3.5); not for "linear".

    Raises:
        ValueError, TypeError: adapters that differ in names, sizes or, for "linear", in A; or an argument that does
            not fit.
    """
    choice("method", method, METHODS)
    density = _check.number("density", density, 0, 1)
    if density == 0:
        raise ValueError("density must be above 0, got 0")
    weights = weights_of(weights, len(adapters))
    groups = by_name(adapters)
    if method == "linear":
        for name, layers in groups.items():
            _same_A(name, layers)
    else:
        _warn_of_equal_seeds(groups)
    if method in ("concat", "linear"):
        make = {"concat": FlyLoRASum, "linear": _linear}[method]
        return {name: make(layers, weights) for name, layers in groups.items()}
    generator = torch.Generator().manual_seed(_check.integer("seed", seed, 0))
    return {name: _dense(layers, weights, method, density, generator) for name, layers in groups.items()}


def place(model: nn.Module, layers: Mapping[str, nn.Module]) -> nn.Module:
    """Put layers where their names point in a model, and give the model back.

    Raises:
        ValueError: the model has no linear layer, with or without adapter, of a name.
    """
    targets = {}
    for name, layer in layers.items():
        try:
            target = model.get_submodule(name)
        except AttributeError:
            target = None
        if _linears.features(target) is None or not name:
            raise ValueError(f"model must have a linear layer {name!r}, got a {type(model).__name__} without one")
        targets[target] = layer
    _linears.replace(model, targets)
    return model


class FlyLoRASum(nn.Module):
    """``base(x) + Σ w_t update_t(x)`` of several FlyLoRALinear: each keeps its own A, B, winners and scale."""

    def __init__(self, layers: Layers, weights: Sequence[float]) -> None:
        super().__init__()
        self.in_features, self.out_features = layers[0].in_features, layers[0].out_features
        self.base, self.weights = layers[0].base, list(weights)
        self.parts = nn.ModuleList(layer.without_base() for layer in layers)

    def forward(self, x: Tensor) -> Tensor:
        out: Any = None if self.base is None else self.base(x)
        layer: Any
        for layer, weight in zip(self.parts, self.weights, strict=True):
            A = layer.projection
            options = {"bias": layer.routing_bias, "scale": weight * layer.scale, "selection": layer.selection}
            out = fly_lora(x, out, A.values, A.indices, layer.B, layer.k, **options)
        return out


def weights_of(weights: Sequence[float] | None, count: int) -> list[float]:
    if count == 0:
        raise ValueError("adapters must be at least one, got none")
    if weights is None:
        return [1 / count] * count
    weights = _check.items("weights", weights)
    if len(weights) != count:
        raise ValueError(f"weights must be one for each of {count} adapters, got {len(weights)}")
    return [_check.number("weights", weight, float("-inf")) for weight in weights]


def by_name(adapters: Sequence[Mapping[str, Adapter]]) -> dict[str, list[FlyLoRALinear]]:
    """The layers of each name, one of each adapter."""
    for layers in adapters:
        if not isinstance(layers, Mapping):
            got = type(layers).__name__
            raise TypeError(f"adapters must be what flyk.adapters.adapters gives for each, got a {got}")
    names = list(adapters[0])
    groups: dict[str, list[FlyLoRALinear]] = {name: [] for name in names}
    for number, layers in enumerate(adapters):
        if set(layers) != set(names):
            odd = sorted(set(layers) ^ set(names))
            raise ValueError(f"adapters must be of the same layers, got {odd[0]!r} not in both 0 and {number}")
        for name in names:
            layer, first = layers[name], adapters[0][name]
            if not isinstance(layer, FlyLoRALinear):
                raise TypeError(f"adapters must be of FlyLoRALinear, got a {type(layer).__name__} at {name!r}")
            sizes = [(one.in_features, one.out_features) for one in (first, layer)]
            if sizes[0] != sizes[1]:
                raise ValueError(f"adapters must be of the same sizes, got {sizes[0]} and {sizes[1]} at {name!r}")
            groups[name].append(layer)
    return groups


def _same_A(name: str, layers: Layers) -> None:
    made_by = [
        (layer.r, layer.projection.nnz, int(layer.projection.seed), layer.k, layer.selection) for layer in layers
    ]
    for other in made_by[1:]:
        if other != made_by[0]:
            raise ValueError(
                f"method must not be 'linear' for adapters of different A, got (r, nnz, seed, k, selection) "
                f"{made_by[0]} and {other} at {name!r}: 'concat' and 'dense' sum what they do"
            )


def _warn_of_equal_seeds(groups: Mapping[str, Layers]) -> None:
    for name, layers in groups.items():
        seeds = [int(layer.projection.seed) for layer in layers]
        if len(set(seeds)) < len(seeds):
            message = f"flyk: two adapters share A at {name!r} (the same seed), so their updates are not orthogonal"
            warnings.warn(message, stacklevel=3)
            return


def _linear(layers: Layers, weights: Sequence[float]) -> FlyLoRALinear:
    merged = layers[0].without_base()
    merged.base = layers[0].base
    B = sum(w * (one.scale / merged.scale) * one.B.detach() for one, w in zip(layers, weights, strict=True))
    merged.B = nn.Parameter(torch.as_tensor(B))
    total = sum(weights)
    if total:
        bias = sum(w / total * one.routing_bias for one, w in zip(layers, weights, strict=True))
        merged.routing_bias = torch.as_tensor(bias)
    return merged


@torch.no_grad()
def _dense(
    layers: Layers, weights: Sequence[float], method: str, density: float, generator: torch.Generator
) -> nn.Linear:
    deltas = torch.stack([layer._delta(layer.B) for layer in layers])
    w = deltas.new_tensor(weights).view(-1, 1, 1)
    if method == "ties":
        deltas = _trimmed(deltas, density)
        elected = (w * deltas).sum(0).sign()
        agree = (deltas.sign() == elected) & (deltas != 0)
        # A mean over those that agree, times the sum of the weights: the plain sum where all agree.
        share = (w * agree).sum(0)
        total = torch.where(share == 0, 0, (w * deltas * agree).sum(0) / share * w.sum())
        return layers[0]._merge(total)
    if method == "dare":
        kept = torch.rand(deltas.shape, generator=generator).to(deltas.device) < density
        deltas = deltas * kept / density
    return layers[0]._merge((w * deltas).sum(0))


def _trimmed(deltas: Tensor, density: float) -> Tensor:
    """Each delta with all but its share of largest entries set to zero."""
    flat = deltas.flatten(1)
    count = max(1, round(density * flat.shape[1]))
    smallest = flat.abs().kthvalue(flat.shape[1] - count + 1, dim=1).values
    return deltas * (deltas.abs() >= smallest.view(-1, 1, 1))
