"""What each method costs: parameters, tokens a second in training, memory, and the adapter's own time."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from flyk import ops
from flyk._packages import need
from flyk.adapters import adapters
from flyk.adapters.demo.methods import METHODS, TARGETS, Method, adapt, after_step, inner
from flyk.adapters.demo.network import PACKAGES, States, answers, optimizer_of
from flyk.adapters.demo.tasks import Row
from flyk.bench import _memory
from flyk.bench._measure import interleaved
from flyk.bench.fly_lora import published
from flyk.nn import FlyLoRALinear
from flyk.ops.project import dense

PUBLISHED = "published FlyLoRA"


def parameters(network: Any) -> dict[str, dict[str, int]]:
    """For each method the numbers trained, those of them that a token uses, and those that stay as drawn (A)."""
    found = {}
    for method in METHODS:
        model = adapt(network, method, seed=0)
        trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
        found[method.name] = {
            "trained": trained,
            "used": trained * (method.k or method.r) // method.r,
            "drawn": _drawn(model, method),
        }
    return found


def _drawn(model: Any, method: Method) -> int:
    if method.k is not None:
        return sum(layer.projection.values.numel() for layer in adapters(model).values())
    return sum(p.numel() for name, p in model.named_parameters() if ".lora_A." in name and not p.requires_grad)


def training(network: Any, rows: Sequence[Row], states: States, least: int, budget: float) -> dict[str, float]:
    """Tokens a second of a whole training step on these rows: forward, backward and optimizer, methods in turns."""
    steps = {method.name: _step(network, method, lambda model: _loss(model, rows, states)) for method in METHODS}
    tokens = sum(len(row.ids) - 1 for row in rows)
    return {name: tokens / statistics.median(s) for name, s in interleaved([steps], least, budget).items()}


def _step(network: Any, method: Method, loss_of: Callable[[Any], Tensor]) -> Callable[[], None]:
    model = adapt(network, method, seed=0)
    model.train()
    optimizer, done = optimizer_of(model, 1e-3), after_step(model, method)

    def step() -> None:
        loss = loss_of(inner(model))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        done()

    return step


def _loss(network: Any, rows: Sequence[Row], states: States) -> Tensor:
    logits, tokens, _ = answers(network, rows, states)
    return F.cross_entropy(logits, tokens)


def alone(network: Any, rows: int, least: int, budget: float) -> dict[str, float]:
    """Milliseconds of forward and backward of one block's adapters, without the layers that they adapt.

    The published algorithm and flyk's operator at r 32, k 8, and LoRA's two products, on random numbers, in turns.
    """
    linears = [one for name, one in network.model.layers[0].named_modules() if name.rpartition(".")[2] in TARGETS]
    calls = [_calls(rows, one.in_features, one.out_features) for one in linears]
    both = {name: (lambda name=name: [call[name]() for call in calls]) for name in calls[0]}
    return {name: 1e3 * statistics.median(s) for name, s in interleaved([both], least, budget).items()}


def _calls(rows: int, d: int, m: int) -> dict[str, Callable[[], Any]]:
    x, base, grad = (
        torch.randn(rows, d, requires_grad=True),
        torch.randn(rows, m, requires_grad=True),
        torch.randn(rows, m),
    )
    layer = FlyLoRALinear(d, m, r=32, k=8)
    values, indices, bias, scale = layer.projection.values, layer.projection.indices, layer.routing_bias, layer.scale
    fixed, B = dense(values, indices, d), torch.randn(m, 32, requires_grad=True)

    def both(leaves: list[Tensor], forward: Callable[[], Any]) -> Callable[[], Any]:
        return lambda: torch.autograd.grad(forward(), leaves, grad)

    def lora(r: int, frozen: bool) -> Callable[[], Any]:
        down, up = torch.randn(r, d, requires_grad=not frozen), torch.randn(m, r, requires_grad=True)
        leaves = [x, base, up] if frozen else [x, base, down, up]
        return both(leaves, lambda: base + scale * F.linear(F.linear(x, down), up))

    return {
        **{method.name: lora(method.r, method.frozen) for method in METHODS if method.k is None},
        PUBLISHED: both([x, base, B], lambda: published(x, base, fixed, B, 8, bias, scale)),
        METHODS[-1].name: both(
            [x, base, B], lambda: ops.fly_lora(x, base, values, indices, B, 8, bias=bias, scale=scale)
        ),
    }


def kept(network: Any, batch: int, tokens: int) -> dict[str, int]:
    """Bytes kept for the backward of one step on `batch` rows of so many tokens; under "" what the network keeps."""
    found = {}
    for name, model in [("", network), *((method.name, adapt(network, method, seed=0)) for method in METHODS)]:
        model.train()
        x = torch.randn(batch, tokens, network.config.hidden_size, requires_grad=True)
        body, frozen = inner(model).model, [*model.parameters(), *model.buffers()]
        found[name] = _memory.kept(lambda body=body, x=x: body(inputs_embeds=x, use_cache=False)[0], frozen)
    return found


def peaks(network: Any, batch: int, tokens: int) -> dict[str, int] | None:
    """Bytes that a training step takes at its peak beyond network and adapter; None where the system doesn't tell.

    It is measured in a child process (see `flyk.bench._memory`) on a network of the same shape with random weights.
    """
    if not _memory.RESET.exists():
        return None
    config = {**network.config.to_dict(), "num_hidden_layers": len(network.model.layers)}
    script = (
        "import json, sys; from flyk.adapters.demo.cost import peaks_here; "
        "print(json.dumps(peaks_here(**json.load(sys.stdin))))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        input=json.dumps({"config": config, "batch": batch, "tokens": tokens}, default=str),
        env={**os.environ, **_memory.ENVIRONMENT},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


def peaks_here(config: dict[str, Any], batch: int, tokens: int) -> dict[str, int]:
    transformers = need("transformers", PACKAGES)
    made = transformers.AutoConfig.for_model(**config)
    network = transformers.AutoModelForCausalLM.from_config(made).requires_grad_(False)
    x = torch.randn(batch, tokens, made.hidden_size)

    def loss(model: Any) -> Tensor:
        hidden = model.model(inputs_embeds=x, use_cache=False).last_hidden_state
        return model.lm_head(hidden[:, -1]).logsumexp(1).mean()

    return {method.name: _memory.peak(_step(network, method, loss)) for method in METHODS}
