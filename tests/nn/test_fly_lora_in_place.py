"""FlyLoRALinear around a frozen linear layer: added in place, and only where nobody else sees the base's output."""

import copy

import pytest
import torch
from fly_lora_samples import IN, OUT, K, R, inputs, trained
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from flyk.nn import FlyLoRALinear
from flyk.ops.fly_lora_linear import fly_lora_linear


def seen_of(layer, x, **options):
    """The operators of flyk that a forward and backward of the layer runs."""
    with Seen() as seen:
        layer(x, **options).sum().backward()
    return seen.names


class Seen(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "flyk":
            self.names.append(func._opname)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_frozen_linear_base_is_added_to_in_place_with_the_same_bits_and_gradients(dtype, bias):
    layer = trained(dtype=dtype, base=nn.Linear(IN, OUT, bias=bias))
    x, grad = inputs(3, 7, dtype=dtype, requires_grad=True), torch.randn(3, 7, OUT).to(dtype)
    assert seen_of(layer, x)[0] == "fly_lora_linear"
    apart = copy.deepcopy(layer)
    apart.base.register_forward_hook(lambda *_: None)
    assert seen_of(apart, x)[0] == "fly_lora"
    out, wanted = layer(x), apart(x)
    assert torch.equal(out, wanted)
    found = torch.autograd.grad(out, (x, layer.B), grad)
    wanted = torch.autograd.grad(wanted, (x, apart.B), grad)
    # In a half type each of the two sums of x's gradient is rounded, at its own size, whatever they add up to.
    close = {"atol": 0.02, "rtol": 0.02} if dtype == torch.bfloat16 else {}
    torch.testing.assert_close(found, wanted, **close)
    layer.B.requires_grad_(False)
    torch.testing.assert_close(torch.autograd.grad(layer(x), x, grad), wanted[:1], **close)


def test_what_a_hook_keeps_of_the_base_is_never_written_to():
    x, kept = inputs(6), []
    hooked, anywhere = trained(), trained()
    hooked.base.register_forward_hook(lambda module, args, out: kept.append(out))
    hooked(x)
    handle = nn.modules.module.register_module_forward_hook(
        lambda module, args, out: kept.append(out) if module is anywhere.base else None
    )
    try:
        anywhere(x)
    finally:
        handle.remove()
    assert len(kept) == 2
    assert all(torch.equal(out, trained().base(x)) for out in kept)


class Same(nn.Module):
    def forward(self, x):
        return x


class Child(nn.Linear):
    held = None

    def forward(self, x):
        self.held = super().forward(x)
        return self.held.view_as(self.held)


def test_a_base_that_is_not_a_plain_linear_keeps_its_output():
    square, x = FlyLoRALinear(IN, IN, R, K, base=Same()), inputs(6)
    nn.init.normal_(square.B)
    before = x.detach().clone()
    assert not torch.equal(square(x), before)
    assert torch.equal(x, before)
    layer = trained(base=Child(IN, OUT))
    layer(x)
    assert torch.equal(layer.base.held, nn.functional.linear(x, layer.base.weight, layer.base.bias))
    layer = trained()
    held = []
    layer.base.forward = lambda x: held.append(nn.functional.linear(x, layer.base.weight)) or held[0]
    assert not torch.equal(layer(x), held[0])
    assert torch.equal(held[0], nn.functional.linear(x, layer.base.weight))


def test_a_base_thawed_again_gets_its_gradient():
    layer, x = trained(), inputs(6)
    layer.base.requires_grad_(True)
    layer(x).sum().backward()
    torch.testing.assert_close(layer.base.weight.grad, x.sum(0).expand(OUT, IN))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_opcheck_of_both_operators_behind_it(dtype):
    layer, x = trained(dtype=dtype), inputs(4, dtype=dtype)
    update = (layer.projection.values, layer.projection.indices, layer.B.detach(), K, layer.routing_bias, 2.0, "signed")
    torch.library.opcheck(torch.ops.flyk.fly_lora_, (x, layer.base(x).detach(), *update))
    update = (*update[:2], layer.B, *update[3:])
    x.requires_grad_()
    torch.library.opcheck(torch.ops.flyk.fly_lora_linear, (x, layer.base.weight, layer.base.bias, *update))


def test_the_operator_refuses_a_weight_that_does_not_fit_or_trains():
    layer, x = trained(), inputs(4)
    update = (layer.projection.values, layer.projection.indices, layer.B, K, None, 2.0, "magnitude")
    with pytest.raises(ValueError, match=r"weight must have shape \(12, 20\), got \(20, 12\)"):
        fly_lora_linear(x, layer.base.weight.t(), None, *update)
    with pytest.raises(ValueError, match="weight must be frozen, got a tensor that requires grad"):
        fly_lora_linear(x, layer.base.weight.clone().requires_grad_(), None, *update)
