"""The layers of flyk: frozen projections, FlyLoRA adapters, REAR in its forms, TE2 heads, prompts and FlyPrompt."""

from flyk.nn.fly_lora import FlyLoRALinear
from flyk.nn.fly_prompt import FlyPrompt
from flyk.nn.kernel_rear import KernelREAR
from flyk.nn.plan_rear import plan_rear
from flyk.nn.prompt_pool import PromptHandle, PromptPool
from flyk.nn.random_projection import RandomProjection
from flyk.nn.rear import REAR
from flyk.nn.sharded_rear import ShardedREAR
from flyk.nn.task_gated import TaskGatedFlyLoRALinear
from flyk.nn.te2 import TE2Head

__all__ = [
    "REAR",
    "FlyLoRALinear",
    "FlyPrompt",
    "KernelREAR",
    "PromptHandle",
    "PromptPool",
    "RandomProjection",
    "ShardedREAR",
    "TE2Head",
    "TaskGatedFlyLoRALinear",
    "plan_rear",
]
