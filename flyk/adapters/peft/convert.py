"""Opening checkpoints of the published PEFT fork, which calls its adapters LoRA."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from flyk._files import write_whole
from flyk.adapters.peft.config import PICKLED, WEIGHTS, FlyLoraConfig

CONFIG = "adapter_config.json"
# Fields that say the same in both configurations, by their names there and here.
SAME = {
    "r": "r",
    "top_k": "k",
    "lora_dropout": "dropout",
    "bias_u": "bias_update_rate",
    "target_modules": "target_modules",
    "modules_to_save": "modules_to_save",
    "fan_in_fan_out": "fan_in_fan_out",
    "task_type": "task_type",
    "base_model_name_or_path": "base_model_name_or_path",
    "inference_mode": "inference_mode",
}
# Fields of the fork that change what the adapter computes, each with the one value that flyk has an equal of.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "bias": ("none",),
    "use_dora": (False, None),
    "rank_pattern": ({}, None),
    "alpha_pattern": ({}, None),
    "layers_to_transform": (None,),
    "target_parameters": (None, []),
}


def convert_reference_checkpoint(
    directory: str | Path, into: str | Path, *, selection: str = "magnitude", detach_input: bool = False
) -> dict[str, Any]:
    """Turn an adapter that the published PEFT fork saved into one of flyk's, which PEFT loads.

    The fork names its type LORA and keeps `lora_A`, `lora_B` and `lora_topk_bias`. Its A came from a generator, not
    from a seed of ours, so it is stored with the adapter.

    Args:
        directory: of the fork's adapter_config.json and adapter_model.safetensors.
        into: directory to write the same two files into; it is made.
        selection: "signed" is what the fork does; "magnitude" what the paper's Eq. 8 says.
        detach_input: True is what the fork does: no gradient to the input through the adapter.

    Returns:
        what was kept: `layers`, `config` (the fields of the new configuration), `passed_on` (tensors of other modules)
        and `dropped` (fields of the fork that nothing here stands for).

    Raises:
        ValueError: a file is missing, damaged or pickled, or says what flyk has no equal of. Nothing is written then.
    """
    directory, into = Path(directory), Path(into)
    theirs = _read_config(directory / CONFIG)
    tensors = _read_tensors(directory)
    layers = dict(_layers(tensors))
    if not layers:
        raise ValueError(f"directory must hold lora_A, lora_B and lora_topk_bias of the fork, got none in {directory}")
    r, nnz = theirs["r"], max(int((A != 0).sum(1).max()) for A, _, _ in layers.values())
    scale = theirs["lora_alpha"] / (r**0.5 if theirs.get("use_rslora") else r)
    ours = {new: theirs[old] for old, new in SAME.items() if old in theirs}
    config = FlyLoraConfig(
        **ours, alpha=scale * r, nnz=nnz, selection=selection, detach_input=detach_input, save_projection=True
    )
    saved = {}
    for name, (A, B, bias) in layers.items():
        if not all(t.is_floating_point() for t in (A, B, bias)):
            raise ValueError(f"{name} must have floating lora_A, lora_B and lora_topk_bias, got others")
        if A.shape[0] != r or B.shape[1] != r or bias.shape != (r,):
            raise ValueError(f"{name} must have {r} ranks, got lora_A {tuple(A.shape)} and lora_B {tuple(B.shape)}")
        at = f"{name}.flylora_update"
        saved |= {f"{at}.B": B, f"{at}.routing_bias": bias.float(), f"{at}.projection.seed": torch.tensor(0)}
        saved[f"{at}.projection.values"], saved[f"{at}.projection.indices"] = _sparse(A, nnz)
    others = {key: t for key, t in tensors.items() if ".lora_" not in key}
    into.mkdir(parents=True, exist_ok=True)
    with write_whole(into / WEIGHTS) as part:
        save_file({key: t.contiguous() for key, t in (saved | others).items()}, part, metadata={"format": "pt"})
    config.save_pretrained(str(into))
    understood = {*SAME, *NEUTRAL, "lora_alpha", "use_rslora", "peft_type", "init_lora_weights"}
    return {
        "layers": list(layers),
        "config": config.to_dict(),
        "passed_on": sorted(others),
        "dropped": sorted(
            key for key, value in theirs.items() if key not in understood and value not in (None, {}, [])
        ),
    }


def _read_config(path: Path) -> dict[str, Any]:
    try:
        theirs = json.loads(path.read_text())
        wanted = {"r": (int,), "top_k": (int,), "lora_alpha": (int, float)}
        right = theirs["peft_type"] == "LORA" and theirs["r"] > 0
        right = right and all(type(theirs[key]) in kinds for key, kinds in wanted.items())
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        right = False
        theirs = {}
    if not right:
        raise ValueError(f"directory must hold the fork's {CONFIG} of type LORA with r, top_k, lora_alpha, got {path}")
    for key, neutral in NEUTRAL.items():
        if theirs.get(key, neutral[0]) not in neutral:
            raise ValueError(f"{key} must be {neutral[0]!r}, which is all that flyk can keep, got {theirs[key]!r}")
    return theirs


def _read_tensors(directory: Path) -> dict[str, Tensor]:
    if not (directory / WEIGHTS).exists() and (directory / PICKLED).exists():
        raise ValueError(f"directory must hold {WEIGHTS}, got a pickle, which flyk does not open: {directory}")
    try:
        return load_file(directory / WEIGHTS)
    except (OSError, SafetensorError) as error:
        raise ValueError(f"directory must hold {WEIGHTS} that can be read, got {directory}: {error}") from error


def _layers(tensors: dict[str, Tensor]) -> Iterator[tuple[str, tuple[Tensor, Tensor, Tensor]]]:
    """Name to (A, B, bias) of each adapted layer."""
    for key, A in tensors.items():
        name, found, _ = key.partition(".lora_A.")
        if not found:
            continue
        B = tensors.get(f"{name}.lora_B.weight")
        bias = next((t for k, t in tensors.items() if k.startswith(f"{name}.lora_topk_bias")), None)
        if B is None or bias is None or A.dim() != 2 or B.dim() != 2:
            raise ValueError(
                f"directory must hold lora_A, lora_B and lora_topk_bias of each layer, got not all of {name}"
            )
        yield name, (A, B, bias.flatten())


def _sparse(A: Tensor, nnz: int) -> tuple[Tensor, Tensor]:
    """A as (values, indices) of nnz entries a row; a row with fewer is filled up with columns where it is zero."""
    indices = (A != 0).int().argsort(dim=1, descending=True, stable=True)[:, :nnz].sort(1).values
    return A.gather(1, indices), indices.int()
