"""FlyLoraLayer: a base layer and the FlyLoRA updates of any number of named adapters."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from peft.tuners.tuners_utils import BaseTunerLayer, _get_in_out_features, check_adapters_to_merge
from peft.utils import quantization_extra_repr, resolve_quantization_backend
from torch import Tensor, nn

from flyk.adapters._linears import check_rank
from flyk.adapters.peft.projection import StoredProjection
from flyk.nn import FlyLoRALinear

BASE = "__base__"  # PEFT's name for no adapter in a mixed batch


class FlyLoraLayer(nn.Module, BaseTunerLayer):
    """What PEFT puts in the place of a linear layer.

    Attributes:
        base_layer: the layer itself, of any kind that PEFT can give weights of, quantised ones too.
        flylora_update: adapter name to `FlyLoRALinear` without a base.
    """

    adapter_layer_names = ("flylora_update",)
    other_param_names = ()

    def __init__(self, base_layer: nn.Module, fan_in_fan_out: bool = False, **kwargs: Any) -> None:
        super().__init__()
        self.base_layer, self.fan_in_fan_out, self.kwargs = base_layer, fan_in_fan_out, kwargs
        self.flylora_update = nn.ModuleDict()
        self._disable_adapters = False
        self.merged_adapters: list[str] = []
        self.quantization_backend = resolve_quantization_backend(
            self.get_base_layer(), get_apply_tensor_subclass=kwargs.get("get_apply_tensor_subclass")
        )
        inputs, outputs = _get_in_out_features(self.get_base_layer())
        if inputs is None or outputs is None:
            raise TypeError(f"target_modules must name linear layers, got a {type(base_layer).__name__}")
        self.in_features, self.out_features = inputs, outputs

    def update_layer(
        self,
        adapter_name: str,
        settings: dict[str, Any],
        *,
        save_projection: bool,
        init_weights: bool,
        inference_mode: bool = False,
    ) -> None:
        """Add the update of an adapter, made with the `settings` of `FlyLoRALinear`."""
        nnz = settings.get("nnz")
        if nnz is not None and nnz > self.in_features:
            raise ValueError(f"nnz must be from 1 to {self.in_features}, the layer's inputs, got {nnz}")
        check_rank("r", settings["r"], self.in_features, self.out_features)
        update: Any = FlyLoRALinear(self.in_features, self.out_features, **settings)
        if save_projection:
            update.projection = StoredProjection(update.projection)
        if not init_weights:
            nn.init.normal_(update.B, std=0.1)
        self.flylora_update[adapter_name] = update
        self._move_adapter_to_device_of_base_layer(adapter_name)
        self.set_adapter(self.active_adapters, inference_mode=inference_mode)

    def forward(self, x: Tensor, *args: Any, adapter_names: list[str] | None = None, **kwargs: Any) -> Tensor:
        """The base layer's output plus the active adapters' updates; with `adapter_names` one adapter for each row."""
        if adapter_names is not None:
            self._check_names(x, adapter_names)
        if self.disable_adapters and self.merged:
            self.unmerge()
        out = self.base_layer(x, *args, **kwargs)
        if self.disable_adapters or self.merged:
            return out
        if self.quantization_backend is not None:
            out = self.quantization_backend.maybe_clone_base_result(out)
        if adapter_names is not None:
            return self._add_by_row(x, out, adapter_names)
        for name in self.active_adapters:
            if name in self.flylora_update:
                out = self._add(name, x, out)
        return out

    def _add(self, name: str, x: Tensor, out: Tensor) -> Tensor:
        update: Any = self.flylora_update[name]
        if torch.is_autocast_enabled(x.device.type):
            return update(x, base_out=out).to(out.dtype)
        dtype = update.B.dtype
        return update(self._cast_input_dtype(x, dtype), base_out=out.to(dtype)).to(out.dtype)

    def _check_names(self, x: Tensor, adapter_names: list[str]) -> None:
        if len(adapter_names) != len(x):
            raise ValueError(
                "Length of `adapter_names` should be the same as the number of inputs, but got "
                f"{len(adapter_names)} and {len(x)} respectively."
            )
        if self.merged:
            raise ValueError(
                "Cannot pass `adapter_names` when there are merged adapters, please call `unmerge_adapter` first."
            )

    def _add_by_row(self, x: Tensor, out: Tensor, adapter_names: list[str]) -> Tensor:
        out = out.clone()
        for name in dict.fromkeys(adapter_names):
            if name in self.flylora_update:
                rows = torch.tensor([i for i, wanted in enumerate(adapter_names) if wanted == name], device=out.device)
                out[rows] = self._add(name, x[rows], out[rows])
        return out

    def get_base_weight(self) -> Tensor:
        """The base's weight, dequantised."""
        # In evaluation on a CPU bitsandbytes packs a 4-bit weight in a way that PEFT cannot read; asked for its state,
        # it unpacks it.
        self.get_base_layer().state_dict()
        return super().get_base_weight()

    def get_delta_weight(self, adapter: str) -> Tensor:
        """What all ranks of an adapter together add to the base's weight, in the base's layout."""
        update: Any = self.flylora_update[adapter]
        delta = update.dense_delta()
        return delta.t() if self.fan_in_fan_out else delta

    def supports_lora_conversion(self, adapter_name: str = "default") -> bool:
        """Only with k = r is the update a product of two matrices."""
        return all(update.k == update.r for update in self._updates([adapter_name]))

    def _updates(self, names: list[str]) -> list[Any]:
        return [self.flylora_update[name] for name in names if name in self.flylora_update]

    @torch.no_grad()
    def merge(self, safe_merge: bool = False, adapter_names: list[str] | None = None) -> None:
        """Add the updates of the named or active adapters to the base's weight.

        Raises:
            NotImplementedError: an adapter has k < r; nothing is merged then.
            ValueError: `safe_merge`, and the merged weight is not finite.
        """
        names = [name for name in check_adapters_to_merge(self, adapter_names) or [] if name in self.flylora_update]
        for update in self._updates(names):
            if update.k < update.r:
                raise NotImplementedError(
                    f"FlyLoRA with k = {update.k} of r = {update.r} cannot be merged into a weight: its winners depend "
                    "on the input. flyk.adapters.merge_adapters(method='dense') merges all ranks, which is another "
                    "function."
                )
        if names and self.quantization_backend is not None:
            warnings.warn("flyk: merging into a quantised weight rounds it anew, so outputs change", stacklevel=2)
        for name in names:
            weight = self.get_base_weight()
            merged = weight + self.get_delta_weight(name).to(weight)
            if safe_merge and not torch.isfinite(merged).all():
                raise ValueError(f"NaNs detected in the merged weights. The adapter {name} seems to be broken")
            self.set_base_weight(merged)
            self.merged_adapters.append(name)

    @torch.no_grad()
    def unmerge(self) -> None:
        """Take the merged updates out of the base's weight again."""
        if not self.merged:
            warnings.warn("Already unmerged. Nothing to do.", stacklevel=2)
        while self.merged_adapters:
            weight = self.get_base_weight()
            self.set_base_weight(weight - self.get_delta_weight(self.merged_adapters.pop()).to(weight))

    def __repr__(self) -> str:
        return f"flylora.{super().__repr__()}"

    def extra_repr(self) -> str:
        return quantization_extra_repr(self)
