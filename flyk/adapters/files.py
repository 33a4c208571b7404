"""Adapters on disk: one .safetensors file of the trained tensors; the rest is a few numbers and the seeds.

A file may come from a stranger: nothing is unpickled, nothing in it names code or a path, and every number and shape
is checked against the model before memory is taken or anything is changed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import nn

from flyk._files import safetensors_path, write_whole
from flyk.adapters import _linears
from flyk.adapters.apply import adapters
from flyk.adapters.model import FlyLoRAModel
from flyk.nn import FlyLoRALinear, TaskGatedFlyLoRALinear
from flyk.nn._adapter import Adapter

Model = TypeVar("Model", bound=nn.Module)
VERSION = 1
FORMS: dict[str, type[Adapter]] = {"top-k": FlyLoRALinear, "task-gated": TaskGatedFlyLoRALinear}
# What a layer of each form is made with, beside its sizes, and the types that its JSON may have.
SETTINGS: dict[str, dict[str, tuple[type, ...]]] = {
    "top-k": {
        "r": (int,),
        "k": (int,),
        "nnz": (int,),
        "alpha": (float, int),
        "selection": (str,),
        "bias_update_rate": (float, int),
        "dropout": (float, int),
        "seed": (int,),
        "detach_input": (bool,),
    },
    "task-gated": {
        "rank": (int,),
        "num_experts": (int,),
        "num_tasks": (int,),
        "alpha": (float, int),
        "sparsity": (float, int),
        "temperature": (float, int, type(None)),
        "learn_temperature": (bool,),
        "seed": (int,),
    },
}
TENSORS = {"top-k": ("B", "routing_bias"), "task-gated": ("B", "gate")}


def save_adapter(model: nn.Module, path: str | Path) -> None:
    """Write the adapters of a model to one .safetensors file: what was trained, and how to make the rest again.

    Raises:
        ValueError: the model has no adapter, or `path` does not end with .safetensors. Nothing is written then.
    """
    path = safetensors_path(path)
    tensors, layers = {}, {}
    for name, layer in adapters(_inner(model)).items():
        form = next(form for form, kind in FORMS.items() if isinstance(layer, kind))
        layers[name] = {"form": form, **layer.settings()}
        tensors |= {f"{name}.{key}": getattr(layer, key).detach().contiguous() for key in TENSORS[form]}
    inputs = {name: layer.in_features for name, layer in adapters(_inner(model)).items()}
    about = {"version": VERSION, "tasks": _tasks(model), "layers": layers, "inputs": inputs}
    with write_whole(path) as part:
        save_file(tensors, part, metadata={"flyk": json.dumps(about)})


def load_adapter(model: Model, path: str | Path) -> Model:
    """Put the adapters of a file around the model's linear layers; adapters that stand there are replaced.

    Args:
        model: what the adapters were saved from, with or without adapters; for task-gated ones a `FlyLoRAModel` of
            the same tasks.
        path: of the file.

    Returns:
        The model itself, all frozen but the adapters.

    Raises:
        ValueError: the file is missing, damaged, of a newer version, or does not fit the model. The model is then as
            it was.
    """
    path, inner = safetensors_path(path), _inner(model)
    try:
        with safe_open(path, "pt") as file:
            layers, inputs = _read_about(path, (file.metadata() or {}).get("flyk"), _tasks(model))
            slices = {key: file.get_slice(key) for key in file.keys()}  # noqa: SIM118
            _check_tensors(path, inner, layers, inputs, slices)
            with _linears.unchanged_on_error(inner), torch.no_grad():
                made = {name: _make(path, inner, name, entry) for name, entry in layers.items()}
                for name, layer in made.items():
                    for key in TENSORS[layers[name]["form"]]:
                        getattr(layer, key).copy_(file.get_tensor(f"{name}.{key}"))
    except (OSError, SafetensorError) as error:
        raise ValueError(f"path must name an adapter that can be read, got {path}: {error}") from error
    _linears.replace(inner, {inner.get_submodule(name): layer for name, layer in made.items()})
    _linears.freeze(inner)
    return model


def _inner(model: nn.Module) -> nn.Module:
    return model.base_model if isinstance(model, FlyLoRAModel) else model


def _tasks(model: nn.Module) -> list[str] | None:
    return model.tasks if isinstance(model, FlyLoRAModel) else None


def _read_about(
    path: Path, text: str | None, tasks: list[str] | None
) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    """The layers that a file tells of, each entry of the right form and types; and their inputs, None where untold."""
    try:
        about = json.loads(text or "")
        version, layers, saved_tasks = about["version"], about["layers"], about["tasks"]
        inputs = {name: about.get("inputs", {}).get(name) for name in layers}
        entries = {name: (entry["form"], entry) for name, entry in layers.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise ValueError(f"path must name an adapter that flyk saved, got {path}, which does not say so") from None
    if version != VERSION:
        raise ValueError(f"path must name an adapter of version {VERSION}, got {path} of version {version!r}")
    if saved_tasks != tasks:
        have = "no FlyLoRAModel" if tasks is None else f"tasks {tasks}"
        raise ValueError(f"model must be the FlyLoRAModel of tasks {saved_tasks} for {path}, got {have}")
    for name, (form, entry) in entries.items():
        known = isinstance(form, str) and form in SETTINGS and set(entry) == {"form", *SETTINGS[form]}
        right = known and all(
            isinstance(entry[key], kinds) and isinstance(entry[key], bool) == (kinds == (bool,))
            for key, kinds in SETTINGS[form].items()
        )
        if not right:
            raise ValueError(f"path must name an adapter of known settings, got {path} with {entry} for {name!r}")
    return layers, inputs


def _check_tensors(
    path: Path, model: nn.Module, layers: dict[str, dict[str, Any]], told: dict[str, Any], slices: dict[str, Any]
) -> None:
    """The tensors of a file are those that its layers have, of the shapes that the model's own layers ask for.

    A tensor is as large as the file holds and A as large as the layer's sizes allow, so with these right no setting can
    ask for more memory than the file and the model take themselves.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    for name, entry in layers.items():
        inputs, outputs = _sizes(path, model, name)
        if told[name] not in (None, inputs):  # A would be another one, which the shape of B does not show
            raise ValueError(f"model must have {told[name]} inputs at {name!r} for {path}, got {inputs}")
        _linears.check_rank(f"rank of {name!r}", entry["r" if entry["form"] == "top-k" else "rank"], inputs, outputs)
        if entry["form"] == "top-k":
            shapes |= {f"{name}.B": (outputs, entry["r"]), f"{name}.routing_bias": (entry["r"],)}
            if not 1 <= entry["nnz"] <= inputs:
                raise ValueError(f"nnz must be from 1 to {inputs} for {name!r} of {path}, got {entry['nnz']}")
        else:
            gate = entry["num_tasks"], entry["num_experts"]
            shapes |= {f"{name}.B": (outputs, entry["rank"]), f"{name}.gate": gate}
    found = {key: tuple(s.get_shape()) for key, s in slices.items()}
    for key in sorted(shapes.keys() | found.keys()):
        if shapes.get(key) != found.get(key):
            raise ValueError(f"{key} must have shape {shapes.get(key)} in {path}, got {found.get(key)}")
    for key, s in slices.items():
        if s.get_dtype() not in ("F64", "F32", "F16", "BF16"):
            raise ValueError(f"{key} must be of a floating dtype in {path}, got {s.get_dtype()}")


def _sizes(path: Path, model: nn.Module, name: str) -> tuple[int, int]:
    try:
        module = model.get_submodule(name) if name else None
    except AttributeError:
        module = None
    sizes = _linears.features(module)
    if module is None or sizes is None:
        raise ValueError(f"model must have a linear layer {name!r} for {path}, got none of that name")
    if not isinstance(module, Adapter):
        _linears.refuse(model, name, module)
    return sizes


def _make(path: Path, model: nn.Module, name: str, entry: dict[str, Any]) -> Adapter:
    """The layer of an entry around the model's own."""
    module = model.get_submodule(name)
    base = module.base if isinstance(module, Adapter) else module
    settings = {key: value for key, value in entry.items() if key != "form"}
    try:
        return FORMS[entry["form"]](*_sizes(path, model, name), base=base, **settings)
    except (ValueError, TypeError) as error:
        raise ValueError(f"path must name an adapter that fits the model, got {path}: {name}: {error}") from error
