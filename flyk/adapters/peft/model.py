"""FlyLoraModel: PEFT's tuner that puts a FlyLoraLayer in the place of each targeted layer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from peft.tuners.tuners_utils import BaseTuner, BaseTunerLayer
from peft.utils import (
    TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING,
    get_quantization_kwargs,
)
from peft.utils.other import get_pattern_key
from torch import nn

from flyk.adapters._linears import features, layer_seed
from flyk.adapters.peft.config import FlyLoraConfig
from flyk.adapters.peft.layer import BASE, FlyLoraLayer


class FlyLoraModel(BaseTuner):
    """A model with FlyLoRA adapters, as `peft.get_peft_model` makes it from a `FlyLoraConfig`."""

    prefix = "flylora_"
    tuner_layer_cls = FlyLoraLayer
    target_module_mapping = TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING

    def _check_new_adapter_config(self, config: Any) -> None:
        super()._check_new_adapter_config(config)
        configs: Any = self.peft_config.values()
        if len({each.save_projection for each in configs}) > 1:
            raise ValueError(f"save_projection must be the same for all adapters, got {config.save_projection} now")

    def _create_and_replace(
        self,
        peft_config: Any,
        adapter_name: str,
        target: nn.Module,
        target_name: str,
        parent: nn.Module,
        current_key: str,
        parameter_name: str | None = None,
    ) -> None:
        options: Any = {
            "save_projection": peft_config.save_projection,
            "init_weights": peft_config.init_weights,
            "inference_mode": peft_config.inference_mode,
        }
        settings = _settings(peft_config, current_key)
        if isinstance(target, FlyLoraLayer):
            target.update_layer(adapter_name, settings, **options)
            return
        base = target.get_base_layer() if isinstance(target, BaseTunerLayer) else target
        if features(base) is None or isinstance(base, nn.Embedding):
            raise ValueError(
                f"Target module {target} is not supported: FlyLoRA adapts linear layers, also quantized ones, and "
                "`transformers.pytorch_utils.Conv1D`."
            )
        layer = FlyLoraLayer(target, type(base).__name__ == "Conv1D", **get_quantization_kwargs(self))
        layer._active_adapter = adapter_name
        layer.update_layer(adapter_name, settings, **options)
        if adapter_name not in self.active_adapters:
            layer.requires_grad_(False)
        self._replace_module(parent, target_name, layer, target)

    def _cast_adapter_dtype(self, adapter_name: str, autocast_adapter_dtype: bool = True) -> None:
        # A is made anew in the wider dtype, which casting B alone, as PEFT does, would not see to.
        if autocast_adapter_dtype:
            for layer in self._layers():
                if adapter_name in layer.flylora_update:
                    update: Any = layer.flylora_update[adapter_name]
                    if update.B.dtype in (torch.float16, torch.bfloat16):
                        update.to(torch.float32)
        super()._cast_adapter_dtype(adapter_name, autocast_adapter_dtype)

    def _layers(self) -> list[FlyLoraLayer]:
        return [module for module in self.model.modules() if isinstance(module, FlyLoraLayer)]

    @classmethod
    def _remove_adapter_name_from_key(cls, key: str, adapter_name: str) -> str:
        return key.replace(f".flylora_update.{adapter_name}.", ".flylora_update.")

    @contextmanager
    def _enable_peft_forward_hooks(self, *args: Any, **kwargs: Any) -> Iterator[None]:
        """Hands `adapter_names`, which a model's own forward would swallow, to each of our layers."""
        adapter_names = kwargs.pop("adapter_names", None)
        if adapter_names is None:
            yield
            return
        if self.training:
            raise ValueError("Cannot pass `adapter_names` when the model is in training mode.")
        known = {name for layer in self._layers() for name in layer.flylora_update}
        unknown = sorted(set(adapter_names) - known - {BASE})
        if unknown:
            raise ValueError(f"Trying to infer with non-existing adapter(s): {', '.join(unknown)}")
        beams = kwargs.get("num_beams") or 1
        names = [name for name in adapter_names for _ in range(beams)]

        def hand_over(_: nn.Module, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
            return args, kwargs | {"adapter_names": names}

        handles = [layer.register_forward_pre_hook(hand_over, with_kwargs=True) for layer in self._layers()]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()


def _settings(config: FlyLoraConfig, key: str) -> dict[str, Any]:
    """The arguments of the `FlyLoRALinear` of the layer that `key` names."""
    r = config.rank_pattern.get(get_pattern_key(list(config.rank_pattern), key), config.r)
    alpha = config.alpha_pattern.get(get_pattern_key(list(config.alpha_pattern), key), config.alpha)
    return {
        "r": r,
        "k": r if config.k == config.r else min(config.k, r),
        "nnz": config.nnz,
        "alpha": alpha,
        "selection": config.selection,
        "bias_update_rate": config.bias_update_rate,
        "dropout": config.dropout,
        "seed": layer_seed(config.seed, key),
        "detach_input": config.detach_input,
    }
