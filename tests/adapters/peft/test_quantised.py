"""Quantised base layers, of bitsandbytes and torchao, through the one class: trained, merged, taken apart again."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import pytest
import torch
from torch import nn

pytest.importorskip("peft")

from peft import get_peft_model

from flyk.adapters import adapters
from flyk.adapters.peft import FlyLoraConfig, FlyLoraLayer

X = torch.randn(20, 64, generator=torch.Generator().manual_seed(0))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.lin = nn.Linear(64, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.lin(x)


def bitsandbytes(kind: str, **options) -> Net:
    module = pytest.importorskip("bitsandbytes", exc_type=ImportError)
    net = Net()
    layer = getattr(module.nn, kind)(64, 32, **options)
    layer.load_state_dict(net.lin.state_dict())
    net.lin = layer
    return net.to("cpu")


def int8_of_bitsandbytes() -> Net:
    return bitsandbytes("Linear8bitLt", has_fp16_weights=False)


def int4_of_bitsandbytes() -> Net:
    return bitsandbytes("Linear4bit", compute_dtype=torch.float32, quant_type="nf4")


def int8_of_torchao() -> Net:
    quantization = pytest.importorskip("torchao.quantization", exc_type=ImportError)
    net = Net()
    quantization.quantize_(net, quantization.Int8WeightOnlyConfig())
    # As transformers leaves it on a model that it quantises; PEFT quantises again by it.
    made = SimpleNamespace(get_apply_tensor_subclass=quantization.Int8WeightOnlyConfig)
    net.hf_quantizer = SimpleNamespace(quantization_config=made)
    return net


# Each with the relative change of the output that merging may cost: the sum is quantised again.
KINDS = {int8_of_bitsandbytes: 0.02, int4_of_bitsandbytes: 0.2, int8_of_torchao: 0.02}


def tuned(make, k: int) -> tuple[nn.Module, nn.Module]:
    """The adapted model, and its quantised base alone."""
    base = make()
    alone = copy.deepcopy(base)
    return get_peft_model(base, FlyLoraConfig(r=8, k=k, target_modules=["lin"], init_weights=False)), alone


@pytest.mark.parametrize("make", KINDS, ids=lambda make: make.__name__)
def test_trains_on_top_of_the_quantised_layer(make) -> None:
    model, alone = tuned(make, k=2)
    assert isinstance(model.base_model.model.lin, FlyLoraLayer)
    (layer,) = adapters(model).values()
    out = model.train()(X)
    torch.testing.assert_close(out, alone(X) + layer(X))
    grad = torch.randn(20, 32, generator=torch.Generator().manual_seed(1))
    found = torch.autograd.grad(out, layer.B, grad)
    torch.testing.assert_close(found, torch.autograd.grad(layer(X), layer.B, grad))
    assert [name for name, p in model.named_parameters() if p.requires_grad] == [
        "base_model.model.lin.flylora_update.default.B"
    ]
    with model.disable_adapter():
        torch.testing.assert_close(model(X), alone(X))


@pytest.mark.parametrize("make", KINDS, ids=lambda make: make.__name__)
def test_merges_for_k_r_up_to_quantising_again(make) -> None:
    model = tuned(make, k=8)[0]
    out = model.eval()(X)
    with pytest.warns(UserWarning, match="merging into a quantised weight rounds it anew"):
        model.merge_adapter()
    assert model.base_model.model.lin.merged
    assert (model(X) - out).norm() <= KINDS[make] * out.norm()
    model.unmerge_adapter()
    assert (model(X) - out).norm() <= 2 * KINDS[make] * out.norm()
