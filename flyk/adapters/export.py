"""Programs for use elsewhere: a merged model through torch.export, also in int8, and what that changes."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from flyk._files import write_whole
from flyk._packages import need
from flyk.adapters._outputs import evaluating, listed, outputs, relative_change
from flyk.nn._adapter import Adapter


def export(
    model: nn.Module, inputs: Iterable[Any], path: str | Path | None = None, *, int8: bool = False
) -> tuple[ExportedProgram, dict[str, float]]:
    """Make a program of a model, and measure how far its outputs are from the model's.

    The model must hold no adapter any more: merge them first, by `merge`, `FlyLoRAModel.merge_and_unload` or PEFT's
    `merge_and_unload`. For k < r that is a change of its own, which `merge` measures.

    Args:
        model: any module that torch.export takes; it stays as it is.
        inputs: batches, all of them tensors, tuples of positional or dicts of keyword arguments of the model. The
            program is made from the first, and takes others of different sizes where that one's are at least 2. For a
            language model of transformers put ``"use_cache": False`` into each.
        path: .pt2 file to write the program to, for `torch.export.load`.
        int8: give linear layers int8 weights, a scale for each row, and quantise their inputs row by row as they come.
            This needs torchao, and so does loading the program.

    Returns:
        the program and, over all inputs, `change` ``‖f_program - f‖ / ‖f‖`` and `agreement`, the share of rows of the
        output whose largest entry stays the same one.

    Raises:
        ValueError: there are no inputs, an adapter is left, or `path` does not end with .pt2.
        ModuleNotFoundError: `int8` without torchao.
    """
    batches = listed("inputs", inputs)
    if path is not None and Path(path).suffix != ".pt2":
        raise ValueError(f"path must end with .pt2, got {path}")
    for name, module in model.named_modules():
        if isinstance(module, Adapter):
            raise ValueError(f"model must hold no adapter: merge them first, got one at {name!r}")
    with evaluating(model):
        before = outputs(model, batches)
        program = _program(_quantised(model) if int8 else model, batches[0])
    after = outputs(program.module(), batches)
    if path is not None:
        with write_whole(Path(path)) as part:
            torch.export.save(program, part)
    same = torch.cat([(a.argmax(-1) == b.argmax(-1)).flatten() for a, b in zip(after, before, strict=True)])
    return program, {"change": relative_change(after, before), "agreement": float(same.double().mean())}


def _quantised(model: nn.Module) -> nn.Module:
    quantization = need("torchao.quantization", "pip install 'flyk[export]'")
    model = copy.deepcopy(model)
    quantization.quantize_(model, quantization.Int8DynamicActivationInt8WeightConfig())
    return model


def _program(model: nn.Module, batch: Any) -> ExportedProgram:
    """The program of a model in evaluation mode, for tensors of any sizes."""
    args: tuple[Any, ...] = batch if isinstance(batch, tuple) else () if isinstance(batch, Mapping) else (batch,)
    kwargs = dict(batch) if isinstance(batch, Mapping) else {}
    free = [_free(value) for value in args], {name: _free(value) for name, value in kwargs.items()}
    with torch.no_grad():
        return torch.export.export(model, args, kwargs, dynamic_shapes=tuple(free[0]) or free[1])


def _free(value: Any) -> Any:
    return dict.fromkeys(range(value.dim()), Dim.AUTO) if isinstance(value, Tensor) else None
