"""fly_lora_linear on the CPU: PyTorch's linear layer, and csrc's update where its output lies."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor

from flyk.backends.cpu import fly_lora

SERVED = "PyTorch's linear layer, then csrc in place"


def fly_lora_linear(
    x: Tensor, weight: Tensor, linear_bias: Tensor | None, *update: Any
) -> tuple[Tensor, Tensor, Tensor]:
    out = F.linear(x, weight, linear_bias)
    return out, *fly_lora.in_place(x, out, *update)
