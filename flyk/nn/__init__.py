"""The layers of flyk: frozen projections, FlyLoRA adapters, the REAR router in its forms, and TE2 heads."""

from flyk.nn.fly_lora import FlyLoRALinear
from flyk.nn.kernel_rear import KernelREAR
from flyk.nn.plan_rear import plan_rear
from flyk.nn.random_projection import RandomProjection
from flyk.nn.rear import REAR
from flyk.nn.sharded_rear import ShardedREAR
from flyk.nn.task_gated import TaskGatedFlyLoRALinear
from flyk.nn.te2 import TE2Head

__all__ = [
    "REAR",
    "FlyLoRALinear",
    "KernelREAR",
    "RandomProjection",
    "ShardedREAR",
    "TE2Head",
    "TaskGatedFlyLoRALinear",
    "plan_rear",
]
