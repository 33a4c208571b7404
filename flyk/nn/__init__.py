"""The layers of flyk: frozen projections, FlyLoRA adapters, the REAR router and TE2 heads."""

from flyk.nn.fly_lora import FlyLoRALinear
from flyk.nn.random_projection import RandomProjection
from flyk.nn.rear import REAR
from flyk.nn.task_gated import TaskGatedFlyLoRALinear
from flyk.nn.te2 import TE2Head

__all__ = ["REAR", "FlyLoRALinear", "RandomProjection", "TE2Head", "TaskGatedFlyLoRALinear"]
