"""The operators in plain PyTorch, with the same signatures and checks: the definition of correct.

They are ordinary differentiable code, so autograd through them is the reference for the gradients too. The default
kernel of each operator is the same function.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable
from typing import Any

from flyk import ops

__all__ = ops.__all__


def _twin(name: str) -> Callable[..., Any]:
    module = importlib.import_module(f"flyk.ops.{name}")
    public = getattr(ops, name)
    signature = inspect.signature(public)

    @functools.wraps(public)
    def reference(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        positional = tuple(bound.arguments.values())
        module.check(*positional)
        if hasattr(module, "check_values"):
            module.check_values(*positional)
        result = module.reference(*positional)
        return result[0] if name == "fly_lora" else result

    return reference


project = _twin("project")
winner_take_all = _twin("winner_take_all")
project_topk = _twin("project_topk")
fly_lora = _twin("fly_lora")
gram_ = _twin("gram_")
expand_gram_ = _twin("expand_gram_")
ridge_solve = _twin("ridge_solve")
ema_ = _twin("ema_")
ensemble = _twin("ensemble")
masked_cross_entropy = _twin("masked_cross_entropy")
