"""Watching how tokens are routed: which ranks win, how evenly, which together, and whether tasks conflict."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from flyk._packages import need
from flyk.adapters._outputs import call, check_batches, evaluating
from flyk.adapters.apply import adapters
from flyk.nn import FlyLoRALinear
from flyk.ops import project_topk
from flyk.ops.winner_take_all import scatter

CONFLICT = 0.7  # a cosine of two tasks' mean activations above which they are said to conflict


def winners(layer: FlyLoRALinear, x: Tensor) -> tuple[Tensor, Tensor]:
    """What the layer selects for x (..., in_features), without dropout: winners and indices, both (N, k)."""
    A = layer.projection
    rows = x.detach().reshape(-1, x.shape[-1]).to(A.values.dtype)
    return project_topk(rows, A.values, A.indices, layer.k, bias=layer.routing_bias, selection=layer.selection)


class RoutingMonitor:
    """Counts winners in every forward of a model's `FlyLoRALinear` layers while it is open.

    The winners are found once more beside the layer's own work, so watching costs time; the model's results do not
    change.

        with RoutingMonitor(model) as monitor:
            model(x)
        monitor.report()

    Args:
        model: with adapters.

    Attributes:
        together: name to (r, r) int64, how often two ranks won for the same token; on the diagonal each rank alone.
        tokens: name to the number of tokens seen.

    Raises:
        ValueError: the model has no such layer.
    """

    def __init__(self, model: nn.Module) -> None:
        self._layers = _top_k(model)
        self._hooks = ExitStack()
        self.reset()

    def reset(self) -> None:
        """Forget what was counted."""
        self.together = {name: torch.zeros(a.r, a.r, dtype=torch.int64) for name, a in self._layers.items()}
        self.tokens = dict.fromkeys(self._layers, 0)

    def __enter__(self) -> RoutingMonitor:
        self._hooks.close()  # of a training that broke off
        self._hooks.enter_context(_watching(self._layers, self._count))
        return self

    def __exit__(self, *_: object) -> None:
        self._hooks.close()

    @torch.no_grad()
    def _count(self, name: str, layer: FlyLoRALinear, x: Tensor) -> None:
        at = winners(layer, x)[1]
        won = scatter(torch.ones(at.shape, device=at.device), at, layer.r)
        # Sums of ones are exact in float32 up to 2^24; more tokens at once are counted in parts.
        for part in won.split(1 << 24):
            self.together[name] += (part.t() @ part).to("cpu", torch.int64)
        self.tokens[name] += len(at)

    def report(self) -> dict[str, dict[str, Any]]:
        """Name to what was seen of the layer.

        - usage: (r,) share of tokens that each rank won for; k / r on average.
        - entropy: of the wins over the ranks, over log r; 1 where all win equally.
        - dead: ranks that never won.
        - imbalance: the largest usage over the mean; 1 where all are equal.
        - coactivation: mean share of tokens for which two different ranks won together.
        - expected_coactivation: k (k - 1) / (r (r - 1)), what any choice of k of r gives on average.
        - most_together: the largest such share of any pair, over what independent ranks of their usage would give.
        - tokens: seen; all else is NaN, and dead empty, where none was.
        """
        return {name: _summary(self.together[name], self.tokens[name], a.k) for name, a in self._layers.items()}

    def plot(self) -> Any:
        """A matplotlib figure: the usage of each layer's ranks, and k / r as a line."""
        matplotlib = need("matplotlib.figure", "pip install matplotlib (it is in the extra flyk[demo])")
        report = self.report()
        figure = matplotlib.Figure(figsize=(7, 0.6 + 1.6 * len(report)))
        axes = figure.subplots(len(report), 1, squeeze=False)
        for axis, (name, found) in zip(axes[:, 0], report.items(), strict=True):
            layer = self._layers[name]
            axis.bar(range(layer.r), found["usage"])
            axis.axhline(layer.k / layer.r, color="black", linestyle="--", linewidth=1)
            axis.set_title(f"{name}: entropy {found['entropy']:.3f}, {len(found['dead'])} dead", fontsize=9)
            axis.set_ylabel("share of tokens")
        axes[-1, 0].set_xlabel("rank")
        figure.tight_layout()
        return figure

    def callback(self, every: int = 100) -> Any:
        """A `transformers.TrainerCallback`: watches training, and logs entropy and dead ranks every so many steps.

        It also calls `update_routing_bias` after each optimizer step, as FlyLoRA's balancing asks.
        """
        need("transformers", "pip install 'flyk[peft]'")
        from flyk.adapters.trainer import RoutingCallback

        return RoutingCallback(self, every)


def _top_k(model: nn.Module) -> dict[str, FlyLoRALinear]:
    found = {name: layer for name, layer in adapters(model).items() if isinstance(layer, FlyLoRALinear)}
    if not found:
        raise ValueError("model must have FlyLoRALinear layers, got only others")
    return found


def _summary(together: Tensor, tokens: int, k: int) -> dict[str, Any]:
    r = len(together)
    wins = together.diagonal().double()
    usage, share = wins / tokens, wins / wins.sum()
    pairs = together.double() / tokens
    pairs.fill_diagonal_(0)
    alone = usage.outer(usage)
    unlikely = torch.where(alone > 0, pairs / alone, 0)
    return {
        "usage": usage.tolist(),
        "entropy": float(torch.special.entr(share).sum()) / math.log(r) if r > 1 else 1.0,
        "dead": (wins == 0).nonzero().flatten().tolist() if tokens else [],
        "imbalance": float(usage.max() / usage.mean()),
        "coactivation": float(pairs.sum()) / (r * (r - 1)) if r > 1 else 0.0,
        "expected_coactivation": k * (k - 1) / (r * (r - 1)) if r > 1 else 0.0,
        "most_together": float(unlikely.max()),
        "tokens": tokens,
    }


def task_conflict(model: nn.Module, loaders: Mapping[str, Iterable[Any]]) -> dict[str, dict[str, Any]]:
    """How alike tasks use each layer: the cosine of their mean activations over the ranks.

    A token's activation is the vector (r,) that holds its winners and is zero elsewhere.

    Args:
        model: with `FlyLoRALinear` layers; run in evaluation mode.
        loaders: task to batches, each a tensor, a tuple of positional or a dict of keyword arguments of the model.

    Returns:
        name to `tasks` (list of T), `cosine` (T lists of T) and `conflicts`, the pairs of tasks above 0.7.

    Raises:
        ValueError: the model has no such layer, or a task no batch.
    """
    if not isinstance(loaders, Mapping):
        raise TypeError(f"loaders must be a dict of task to batches, got {type(loaders).__name__}")
    layers, tasks = _top_k(model), list(loaders)
    for task in tasks:
        check_batches(f"loaders[{task!r}]", loaders[task])
    with evaluating(model):
        sums = [_activations(model, layers, task, loaders[task]) for task in tasks]
    return {name: _conflicts(tasks, torch.stack([each[name] for each in sums])) for name in layers}


@torch.no_grad()
def _activations(
    model: nn.Module, layers: dict[str, FlyLoRALinear], task: str, batches: Iterable[Any]
) -> dict[str, Tensor]:
    """Name to the sum (r,) of all tokens' activations."""
    sums = {name: torch.zeros(layer.r, dtype=torch.float64) for name, layer in layers.items()}

    def add(name: str, layer: FlyLoRALinear, x: Tensor) -> None:
        value, at = winners(layer, x)
        sums[name] += scatter(value.double(), at, layer.r).sum(0).cpu()

    count = 0
    with _watching(layers, add):
        for batch in batches:
            call(model, batch)
            count += 1
    if count == 0:
        raise ValueError(f"loaders must have a batch for each task, got none for {task!r}")
    return sums


@contextmanager
def _watching(layers: Mapping[str, FlyLoRALinear], see: Callable[[str, FlyLoRALinear, Tensor], None]) -> Iterator[None]:
    """Calls ``see(name, layer, x)`` before each forward of each layer."""

    def hook(name: str) -> Callable[[Any, tuple[Any, ...]], None]:
        return lambda layer, args: see(name, layer, args[0])

    hooks = [layer.register_forward_pre_hook(hook(name)) for name, layer in layers.items()]
    try:
        yield
    finally:
        for each in hooks:
            each.remove()


def _conflicts(tasks: list[str], sums: Tensor) -> dict[str, Any]:
    unit = nn.functional.normalize(sums, dim=1)
    cosine = unit @ unit.t()
    pairs = [(a, b) for i, a in enumerate(tasks) for j, b in enumerate(tasks) if i < j and cosine[i, j] > CONFLICT]
    return {"tasks": tasks, "cosine": cosine.tolist(), "conflicts": pairs}
