"""Another adapter in the place of one that a model has, without a new module or tensor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from peft import get_peft_model_state_dict, set_peft_model_state_dict
from peft.utils.save_and_load import load_peft_weights

from flyk.adapters.peft.config import FlyLoraConfig

# What two adapters of one form may differ in.
FREE = ("auto_mapping", "base_model_name_or_path", "inference_mode", "init_weights", "peft_version", "revision", "seed")


def swap_adapter_(model: Any, directory: str | Path, adapter_name: str = "default") -> None:
    """Overwrite an adapter's tensors with those of a saved one: a compiled model stays compiled.

    Args:
        model: a `PeftModel` of a `FlyLoraConfig`.
        directory: of adapter_config.json and adapter_model.safetensors, of the same settings but for the seed.
        adapter_name: of the adapter that is overwritten.

    Raises:
        ValueError: the model has no such adapter, or the saved one differs in its settings, tensors or their shapes.
            Nothing is changed then.
    """
    ours = model.peft_config.get(adapter_name)
    if not isinstance(ours, FlyLoraConfig):
        have = ", ".join(map(repr, model.peft_config))
        raise ValueError(f"adapter_name must be of a FlyLoRA adapter of the model, got {adapter_name!r}; it has {have}")
    theirs = FlyLoraConfig.from_pretrained(str(directory)).to_dict()
    for name, value in ours.to_dict().items():
        if name not in FREE and value != theirs[name]:
            raise ValueError(f"directory must hold an adapter of {name} {value!r}, got {theirs[name]!r} in {directory}")
    saved = load_peft_weights(str(directory), device="cpu")
    shapes, found = (
        {key: tuple(tensor.shape) for key, tensor in tensors.items()}
        for tensors in (get_peft_model_state_dict(model, adapter_name=adapter_name), saved)
    )
    for key in sorted(shapes.keys() | found.keys()):
        if shapes.get(key) != found.get(key):
            wanted, got = shapes.get(key), found.get(key)
            raise ValueError(f"directory must hold {key} of shape {wanted}, got {got} in {directory}")
    set_peft_model_state_dict(model, saved, adapter_name=adapter_name)
