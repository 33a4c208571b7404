"""TE2Head: the bank, prediction against a plain loop, and its state."""

import copy
import pickle

import numpy as np
import pytest
import torch
from safetensors.torch import load, save
from torch import nn

from flyk.nn import TE2Head

D, C, E = 6, 5, 3


def head(started=(0, 2), decays=(0.9, 0.99), dtype=torch.float32):
    """A head that has trained on a few experts: all heads of the bank differ."""
    torch.manual_seed(0)
    module = TE2Head(D, C, E, decays).to(dtype)
    for expert in started:
        module.start_expert(expert)
        for _ in range(3):
            nn.init.normal_(module.online.weight)
            nn.init.normal_(module.online.bias)
            module.ema_step()
    return module


def inputs(n=7, dtype=torch.float32):
    return torch.randn(n, D, dtype=dtype, generator=torch.Generator().manual_seed(1))


def test_banks_follow_the_online_head_while_their_expert_is_current():
    module = TE2Head(D, C, E, (0.5, 1.0, 0.0))
    module.start_expert(1)
    start = module.online.weight.detach().clone()
    assert torch.equal(module.bank_weight[1], start.expand(3, C, D))
    first, second = torch.ones(C, D), torch.full((C, D), 3.0)
    for weight in (first, second):
        module.online.weight.data.copy_(weight)
        module.online.bias.data.fill_(weight[0, 0])
        module.ema_step()
    torch.testing.assert_close(module.bank_weight[1, 0], 0.25 * start + 0.25 * first + 0.5 * second)
    torch.testing.assert_close(module.bank_weight[1, 1], start)
    torch.testing.assert_close(module.bank_weight[1, 2], second)
    torch.testing.assert_close(module.bank_bias[1, 2], torch.full((C,), 3.0))
    assert module.bank_weight[[0, 2]].count_nonzero() == 0
    resting = module.bank_weight[1].clone()
    module.start_expert(0)
    module.online.weight.data.zero_()
    module.ema_step()
    assert torch.equal(module.bank_weight[1], resting)
    assert module.started.tolist() == [True, True, False]


def test_steps_before_any_expert_are_refused():
    with pytest.raises(RuntimeError, match="ema_step needs a current expert: call start_expert first"):
        TE2Head(D, C, E).ema_step()


@pytest.mark.parametrize("seen", [None, [True, False, True, True, False]])
def test_prediction_is_that_of_a_plain_loop(seen):
    module, h = head(dtype=torch.float64), inputs(dtype=torch.float64)
    ids = [0, 2, 2, 0, 0, 2, 0]
    online = (module.online.weight, module.online.bias)
    expected = []
    for row, expert in zip(h, ids, strict=True):
        heads = [online, *zip(module.bank_weight[expert].double(), module.bank_bias[expert].double(), strict=True)]
        logits = np.stack([(w @ row + b).detach().numpy() for w, b in heads])
        if seen is not None:
            logits[:, ~np.array(seen)] = -np.inf
        p = np.exp(logits - logits.max(1, keepdims=True))
        expected.append((p / p.sum(1, keepdims=True)).max(0))
    p = module.predict(h, torch.tensor(ids), None if seen is None else torch.tensor(seen))
    np.testing.assert_allclose(p.numpy(), expected, rtol=1e-5)
    assert not p.requires_grad


def test_one_id_stands_for_all_rows():
    module, h = head(), inputs()
    assert torch.equal(module.predict(h, 2), module.predict(h, torch.full((7,), 2)))
    assert torch.equal(module.predict(h, np.int64(2)), module.predict(h, 2))
    assert module.predict(inputs(0), 2).shape == (0, C)


@pytest.mark.parametrize("ids", [1, torch.tensor([0, 2, 1, 0, 1, 0, 0])])
def test_experts_never_started_are_refused(ids):
    with pytest.raises(ValueError, match="expert_ids must be of experts that were started, got 1"):
        head().predict(inputs(), ids)


def test_forward_is_the_online_head_and_trains_it_alone():
    module, h = head(), inputs()
    assert torch.equal(module(h.view(7, 1, D)), module.online(h).view(7, 1, C))
    assert {name for name, _ in module.named_parameters()} == {"online.weight", "online.bias"}
    module(h).sum().backward()
    module.ema_step()
    module.start_expert(1)
    assert not module.bank_weight.requires_grad


def test_training_resumes_from_the_state():
    module = head()
    state = load(save(module.state_dict()))
    torch.manual_seed(5)
    other = TE2Head(D, C, E)
    other.load_state_dict(state)
    assert other.current == 2
    for either in (module, other):
        either.online.weight.data.fill_(0.5)
        either.ema_step()
    assert torch.equal(other.predict(inputs(), 2), module.predict(inputs(), 2))
    fresh = TE2Head(D, C, E)
    other.load_state_dict(fresh.state_dict())
    assert other.current is None


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda module: pickle.loads(pickle.dumps(module))])
def test_copies_are_equal_and_apart(copied):
    module = head()
    twin = copied(module)
    assert torch.equal(twin.predict(inputs(), 2), module.predict(inputs(), 2))
    twin.online.weight.data.zero_()
    twin.ema_step()
    assert not torch.equal(twin.bank_weight, module.bank_weight)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_averages_still_move_when_the_module_is_cast_to_a_half_type(dtype):
    module = TE2Head(D, C, E, (0.99,))
    module.online.weight.data.fill_(1.0)
    module.start_expert(0)
    module.to(dtype)
    module.online.weight.data.fill_(1.125)
    for _ in range(100):
        module.ema_step()
    assert module.online.weight.dtype == dtype
    torch.testing.assert_close(module.bank_weight[0], torch.full((1, C, D), 1.125 - 0.125 * 0.99**100))
    assert module.predict(inputs(dtype=dtype), 0).dtype == torch.float32


def test_repr_and_casts():
    assert "num_experts=3, decays=(0.9, 0.99), current=2" in repr(head())
    assert head().to("meta").bank_weight.device.type == "meta"
