"""Prompts that were computed elsewhere: the same as a pool's own, with their gradient."""

import pytest
import torch
import transformers

from flyk.nn import PromptPool


@pytest.fixture(scope="module")
def backbone():
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 28, "patch_size": 14}
    return transformers.Dinov2Model(transformers.Dinov2Config(**sizes)).eval().requires_grad_(False)


def test_shown_prompts_are_as_used_ones(backbone):
    pool, x = PromptPool(2, 3, 32, (0, 1)), torch.randn(4, 3, 28, 28)
    handle = pool.attach(backbone)
    ids = torch.tensor([0, 1, 1, 0])
    with pool.use(ids):
        used = backbone(x).last_hidden_state
    given = torch.stack([pool.prompts[e] for e in ids.tolist()]).detach().requires_grad_()
    with pool.show(given):
        shown = backbone(x).last_hidden_state
    torch.testing.assert_close(used, shown)
    shown[:2].sum().backward()
    assert given.grad[:2].any((1, 2, 3)).all()
    assert not given.grad[2:].any()
    handle.remove()


def test_bad_prompts_are_named(backbone):
    pool, x = PromptPool(1, 3, 32, (0, 1)), torch.randn(4, 3, 28, 28)
    handle = pool.attach(backbone)
    with pytest.raises(ValueError, match="prompts must"), pool.show(torch.zeros(4, 2, 2, 32)):
        pass
    with pytest.raises(ValueError, match="4 rows, got 3"), pool.show(torch.zeros(3, 2, 3, 32)):
        backbone(x)
    with pool.use(0), pytest.raises(RuntimeError, match="entered already"), pool.show(torch.zeros(4, 2, 3, 32)):
        pass
    handle.remove()
