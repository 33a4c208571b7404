"""The methods compared: LoRA and LoRA-FA by PEFT, FlyLoRA by flyk; each can be put on, saved, and merged over tasks."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from flyk import adapters as fly
from flyk._files import write_whole
from flyk._packages import need

TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")  # the paper's


@dataclass(frozen=True)
class Method:
    """An adapter on each linear layer of every block, scaled by 2 (alpha = 2r), without dropout.

    Attributes:
        name: in tables.
        r: ranks.
        k: ranks that a token uses, for FlyLoRA; None for the others, where it is r.
        frozen: whether A is, at its random start.
    """

    name: str
    r: int
    k: int | None = None
    frozen: bool = False


METHODS = (
    Method("LoRA r8", 8),
    Method("LoRA r32", 32),
    Method("LoRA-FA r32", 32, frozen=True),
    Method("FlyLoRA r32 k8", 32, k=8, frozen=True),
)


def adapt(network: Any, method: Method, seed: int) -> Any:
    """A copy of the network with a fresh adapter, of which alone the parameters are trained; A comes from the seed."""
    network = copy.deepcopy(network)
    if method.k is not None:
        return fly.apply(network, TARGETS, r=method.r, k=method.k, seed=seed)
    peft = need("peft", 'pip install "flyk[lora-demo]"')
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = peft.get_peft_model(network, _config(peft, method))
    for name, parameter in model.named_parameters():
        if method.frozen and ".lora_A." in name:
            parameter.requires_grad_(False)
    return model


def _config(peft: Any, method: Method) -> Any:
    return peft.LoraConfig(r=method.r, lora_alpha=2 * method.r, target_modules=list(TARGETS), task_type="CAUSAL_LM")


def inner(model: Any) -> Any:
    """The causal language model inside what `adapt` or `merged` gave."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def after_step(model: Any, method: Method) -> Callable[[], None]:
    """What a method does after each optimizer step: FlyLoRA balances its ranks (Eq. 9)."""
    return (lambda: None) if method.k is None else (lambda: fly.update_routing_bias(model))


def save(model: Any, method: Method, path: Path) -> None:
    """Write the adapter to a .safetensors file, whole or not at all."""
    if method.k is not None:
        fly.save_adapter(model, path)
        return
    tensors = need("peft", "").get_peft_model_state_dict(model)
    with write_whole(path) as part:
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, part)


def merged(network: Any, method: Method, paths: Sequence[Path], how: str) -> Any:
    """A copy of the network with the adapters of several tasks in one, each weighing one over their number.

    Args:
        how: "dense", ``W + Σ w_t alpha / r B_t A_t`` (Eq. 12), for any method; "concat", for FlyLoRA alone, keeps each
            task's winners: exactly the sum of the updates.
    """
    if method.k is not None:
        parts = [fly.adapters(fly.load_adapter(copy.deepcopy(network), path)) for path in paths]
        return fly.place(copy.deepcopy(network), fly.merge_adapters(parts, method=how))
    peft = need("peft", "")
    names = [str(number) for number in range(len(paths))]
    model = peft.get_peft_model(copy.deepcopy(network), _config(peft, method), adapter_name=names[0])
    for name, path in zip(names, paths, strict=True):
        if name != names[0]:
            model.add_adapter(name, _config(peft, method))
        peft.set_peft_model_state_dict(model, load_file(path), adapter_name=name)
    # PEFT's "cat" sets the ranks side by side, which is the weighted sum of the products B A: Eq. 12.
    model.add_weighted_adapter(names, [1 / len(names)] * len(names), "merged", combination_type="cat")
    model.set_adapter("merged")
    return model
