"""FlyLoRA for whole models: wrap, train, save, merge and watch adapters."""

from flyk.adapters.apply import adapters, apply, update_routing_bias
from flyk.adapters.files import load_adapter, save_adapter
from flyk.adapters.model import FlyLoRAModel

__all__ = ["FlyLoRAModel", "adapters", "apply", "load_adapter", "save_adapter", "update_routing_bias"]
