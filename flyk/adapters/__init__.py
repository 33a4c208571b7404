"""FlyLoRA for whole models: wrap, train, save, merge and watch adapters."""

from flyk.adapters.apply import adapters, apply, update_routing_bias
from flyk.adapters.export import export
from flyk.adapters.federated import average_adapters, rank_by_norm, resize
from flyk.adapters.files import load_adapter, save_adapter
from flyk.adapters.merge import merge
from flyk.adapters.merge_adapters import merge_adapters, place
from flyk.adapters.model import FlyLoRAModel
from flyk.adapters.monitor import RoutingMonitor, task_conflict

__all__ = [
    "FlyLoRAModel",
    "RoutingMonitor",
    "adapters",
    "apply",
    "average_adapters",
    "export",
    "load_adapter",
    "merge",
    "merge_adapters",
    "place",
    "rank_by_norm",
    "resize",
    "save_adapter",
    "task_conflict",
    "update_routing_bias",
]
