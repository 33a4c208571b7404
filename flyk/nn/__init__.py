"""The layers of flyk: frozen projections, FlyLoRA adapters, the REAR router, TE2 heads, prompts and FlyPrompt."""

from flyk.nn.fly_lora import FlyLoRALinear
from flyk.nn.fly_prompt import FlyPrompt
from flyk.nn.prompt_pool import PromptHandle, PromptPool
from flyk.nn.random_projection import RandomProjection
from flyk.nn.rear import REAR
from flyk.nn.task_gated import TaskGatedFlyLoRALinear
from flyk.nn.te2 import TE2Head

__all__ = [
    "REAR",
    "FlyLoRALinear",
    "FlyPrompt",
    "PromptHandle",
    "PromptPool",
    "RandomProjection",
    "TE2Head",
    "TaskGatedFlyLoRALinear",
]
