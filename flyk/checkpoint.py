"""Checkpoints: a tree of tensors and plain values in one .safetensors file, whole or not there, with a checksum.

    save("step100.safetensors", {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 100})
    state = load("step100.safetensors")
    model.load_state_dict(state["model"])

A file may come from a stranger: nothing is unpickled, and nothing in it names code or a path. Of a file that was
altered by accident the checksum does not hold; it is no signature and does not say who wrote it.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from flyk._files import safetensors_path, write_whole

VERSION = 1
PLAIN = (str, int, float, bool, type(None))


def save(path: str | Path, state: Any) -> None:
    """Write `state` so that `path` holds all of it or what it held before, also where the process is killed.

    Args:
        path: ends with .safetensors.
        state: tensors, str, int, float, bool and None, in dicts (of str or int keys), lists and tuples, such as
            state dicts of modules and optimizers. Tensors are stored from the CPU, of any strides; one that stands at
            several places is stored once.

    Raises:
        ValueError, TypeError: `path` or something in `state` cannot be stored. Nothing is written then.
        OSError: the file cannot be written (a full disk, no permission); the old one is intact.
    """
    path = safetensors_path(path)
    tensors: dict[str, Tensor] = {}
    tree = _encode(state, "state", tensors, {})
    about = {"version": VERSION, "state": tree, "checksum": _checksum(tree, tensors)}
    try:
        with write_whole(path) as part:
            save_file(tensors, part, metadata={"flyk": json.dumps(about)})
            _sync(part)
    except (OSError, SafetensorError) as error:
        raise OSError(f"{path} could not be written and is as it was before: {error}") from error


def load(path: str | Path) -> Any:
    """What `save` stored, its tensors on the CPU.

    Raises:
        ValueError: the file is missing, truncated, altered, no checkpoint, or of a newer version.
    """
    path = safetensors_path(path)
    try:
        with safe_open(path, "pt") as file:
            about = _read_about(path, (file.metadata() or {}).get("flyk"))
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise ValueError(f"path must name a checkpoint that can be read whole, got {path}: {error}") from error
    try:
        if about["checksum"] != _checksum(about["state"], tensors):
            raise ValueError
        return _decode(about["state"], tensors)
    except (KeyError, ValueError, TypeError, RecursionError):
        altered = f"path must name a checkpoint as it was written, got {path}, whose checksum does not hold"
        raise ValueError(altered) from None


def _sync(path: Path) -> None:
    """The bytes are on the disk before the file takes its name, or a power cut could leave an empty one there."""
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def _read_about(path: Path, text: str | None) -> dict[str, Any]:
    try:
        about = json.loads(text or "")
        version = about["version"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ValueError(f"path must name a checkpoint that flyk saved, got {path}, which does not say so") from None
    if version != VERSION:
        raise ValueError(f"path must name a checkpoint of version {VERSION}, got {path} of version {version!r}")
    return about


def _encode(state: Any, name: str, tensors: dict[str, Tensor], places: dict[Any, str]) -> Any:
    """`state` as JSON in which a container is {its type: its entries} and a tensor {"tensor": its name in the file}."""
    if isinstance(state, Tensor):
        return {"tensor": _store(state.detach(), name, tensors, places)}
    if isinstance(state, dict):
        for key in state:
            if type(key) not in (str, int):
                raise TypeError(f"{name} must have keys of str or int, got {type(key).__name__}")
        return {"dict": [[key, _encode(value, f"{name}.{key}", tensors, places)] for key, value in state.items()]}
    if isinstance(state, (list, tuple)):
        kind = "tuple" if isinstance(state, tuple) else "list"
        return {kind: [_encode(value, f"{name}.{i}", tensors, places) for i, value in enumerate(state)]}
    if type(state) not in PLAIN:
        raise TypeError(f"{name} must be a tensor, number, string, None or a container, got {type(state).__name__}")
    return state


def _store(tensor: Tensor, name: str, tensors: dict[str, Tensor], places: dict[Any, str]) -> str:
    if tensor.layout != torch.strided or tensor.is_complex() or tensor.is_quantized or tensor.is_meta:
        raise ValueError(f"{name} must be a dense real tensor that holds data, got {tensor.dtype} {tensor.layout}")
    place = tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride(), tensor.device
    if tensor.numel() and place in places:
        return places[place]
    while name in tensors:
        name += "'"
    # A copy where it shares memory with something else, for safetensors stores no two tensors of one memory.
    whole = tensor.is_contiguous() and tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()
    alone = whole and tensor.data_ptr() not in places
    tensors[name] = tensor.cpu() if alone else tensor.cpu().clone(memory_format=torch.contiguous_format)
    places[place] = places[tensor.data_ptr()] = name
    return name


def _decode(tree: Any, tensors: dict[str, Tensor]) -> Any:
    if not isinstance(tree, dict):
        return tree
    ((kind, entries),) = tree.items()
    if kind == "tensor":
        return tensors[entries]
    if kind == "dict":
        return {key: _decode(value, tensors) for key, value in entries}
    return {"list": list, "tuple": tuple}[kind](_decode(value, tensors) for value in entries)


def _checksum(tree: Any, tensors: dict[str, Tensor]) -> str:
    """SHA-256 of the tree and of each tensor's name, dtype, shape and bytes."""
    digest = hashlib.sha256(json.dumps(tree).encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)} ".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
