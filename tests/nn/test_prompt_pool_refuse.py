"""PromptPool refuses what only looks like an id, prompts or its own state, in one sentence and before it changes."""

import backbones
import pytest
import torch
from backbones import ROWS, WIDTH

from flyk.nn import PromptPool, TE2Head

LENGTH, LAYERS = 2, (0, 1)


def pool_of(layers=LAYERS):
    return PromptPool(3, LENGTH, WIDTH, layers)


@pytest.mark.parametrize(
    ("make", "error", "sentence"),
    [
        (lambda: PromptPool(True), TypeError, "num_experts must be an int, got bool"),
        (lambda: PromptPool(1, layers=(False, True)), TypeError, "layers must be an int, got bool"),
        (lambda: TE2Head(8, True, 1), TypeError, "num_classes must be an int, got bool"),
        (lambda: TE2Head(8, 2, 1, (True,)), TypeError, "decays must be a number, got bool"),
        (lambda: pool_of().start_expert(True), TypeError, "expert must be an int, got bool"),
        (lambda: pool_of().use(True).__enter__(), TypeError, "expert_ids must be an int, got bool"),
        (
            lambda: pool_of().use(torch.zeros(2, dtype=torch.int64, device="meta")).__enter__(),
            ValueError,
            "expert_ids must be on the pool's device, cpu, or the CPU, got meta",
        ),
        (lambda: pool_of().show(None).__enter__(), TypeError, "prompts must be a tensor, got NoneType"),
        (lambda: pool_of().show([1.0]).__enter__(), TypeError, "prompts must be a tensor, got list"),
    ],
)
def test_refuses_what_only_looks_right(make, error, sentence):
    with pytest.raises(error, match=f"^{sentence}$"):
        make()


def test_names_the_argument_that_does_not_fit_the_rows():
    pool, model = pool_of(), backbones.make()
    pool.attach(model)
    prompts = torch.zeros(ROWS - 1, len(LAYERS), LENGTH, WIDTH)
    for name, given in (("prompts", pool.show(prompts)), ("expert_ids", pool.use(torch.tensor([0, 1])))):
        with pytest.raises(ValueError, match=f"^{name} must be one for each of 3 rows, got 2$"), given:
            model(backbones.images())


def test_state_of_other_layers_is_refused():
    pool, other = pool_of(), pool_of((2, 3))
    pool.start_expert(1)
    before = other.prompts[1].detach().clone()
    with pytest.raises(ValueError, match=r"^layers must be those of the state, \(0, 1\), got \(2, 3\)$"):
        other.load_state_dict(pool.state_dict())
    assert torch.equal(other.prompts[1], before)
    assert other.current is None
    assert not other.started.any()


def test_a_state_that_was_saved_without_layers_still_loads():
    pool, other = pool_of(), pool_of()
    pool.start_expert(1)
    other.load_state_dict(pool.state_dict() | {"_extra_state": torch.tensor(1)})
    assert other.current == 1
    assert torch.equal(other.prompts[1], pool.prompts[1])
