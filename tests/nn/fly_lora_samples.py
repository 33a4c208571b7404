"""FlyLoRALinear layers and inputs for tests."""

import torch
from torch import nn

from flyk.nn import FlyLoRALinear

IN, OUT, R, K = 20, 12, 8, 3
SELECTIONS = ("magnitude", "signed", "biased_magnitude")


def trained(seed=1, dtype=torch.float32, base=nn.Linear, k=K, **options):
    """An adapter as after some training: B and the routing bias are not zero. A class as base is made here."""
    torch.manual_seed(seed)
    layer = FlyLoRALinear(IN, OUT, R, k, base=base(IN, OUT) if base is nn.Linear else base, seed=seed, **options)
    torch.manual_seed(seed)
    with torch.no_grad():
        layer.B.normal_()
        layer.routing_bias.normal_(std=0.3)
    return layer.to(dtype)


def inputs(*shape, dtype=torch.float32, seed=0, **options):
    return torch.randn(*shape, IN, dtype=dtype, generator=torch.Generator().manual_seed(seed)).requires_grad_(**options)


def dense_A(layer):
    A = torch.zeros(layer.r, IN, dtype=torch.float64)
    return A.scatter_(1, layer.projection.indices.long(), layer.projection.values.double())
