"""PromptPool: what stays bitwise as it was, what gradients reach, hooks, checkpoints, compilers, copies and state."""

import copy
import pickle

import backbones
import pytest
import torch
from backbones import ROWS, WIDTH
from safetensors.torch import load, save
from torch.utils.checkpoint import checkpoint

from flyk.nn import PromptPool

LENGTH, LAYERS = 5, (0, 2)


def pool_of(experts=3):
    torch.manual_seed(2)
    return PromptPool(experts, LENGTH, WIDTH, LAYERS)


def attached(experts=3, layers=LAYERS):
    torch.manual_seed(2)
    pool = PromptPool(experts, LENGTH, WIDTH, layers)
    model = backbones.make().requires_grad_(False)
    pool.attach(model)
    return model, pool


def output(model, x=None):
    return model(backbones.images() if x is None else x).last_hidden_state


def values(pool):
    return [prompts.detach().clone() for prompts in pool.prompts]


def test_prompts_are_one_parameter_an_expert_from_the_unit_interval():
    pool = PromptPool(4)
    assert [tuple(prompts.shape) for prompts in pool.parameters()] == 4 * [(5, 20, 768)]
    together = torch.stack(list(pool.prompts))
    assert together.min() >= 0
    assert together.max() < 1
    assert together.mean().item() == pytest.approx(0.5, abs=0.01)
    assert together.var().item() == pytest.approx(1 / 12, abs=0.002)


def test_a_new_expert_starts_at_the_mean_of_those_that_were_started():
    pool = pool_of(4)
    first = values(pool)
    for expert in (2, 0):
        pool.start_expert(expert)
    before = values(pool)
    assert torch.equal(before[2], first[2])  # the first keeps what it was drawn with
    assert torch.equal(before[0], first[2])
    with torch.no_grad():
        pool.prompts[0].mul_(3)
    before = values(pool)
    pool.start_expert(1)
    assert torch.equal(pool.prompts[1], (before[0] + before[2]) / 2)
    assert torch.equal(pool.prompts[3], first[3])
    assert pool.started.tolist() == [True, True, True, False]
    assert pool.current == 1
    assert [prompts.requires_grad for prompts in pool.prompts] == [False, True, False, False]


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.1, nesterov=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.1, weight_decay=0.1),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.1, weight_decay=0.1, amsgrad=True),
    "adamw, not foreach": lambda p: torch.optim.AdamW(p, lr=0.1, weight_decay=0.1, foreach=False),
    "nadam": lambda p: torch.optim.NAdam(p, lr=0.1, weight_decay=0.1),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.1, momentum=0.9, weight_decay=0.1),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1, weight_decay=0.1),
    "asgd": lambda p: torch.optim.ASGD(p, lr=0.1, weight_decay=0.1),
    "rprop": lambda p: torch.optim.Rprop(p, lr=0.1),
    "lbfgs": lambda p: torch.optim.LBFGS(p, lr=0.1, max_iter=3, history_size=10),
}


class Stubborn(torch.optim.Optimizer):
    """Moves all that it was ever given, whether there is a gradient or not."""

    def __init__(self, params):
        super().__init__(params, {})

    @torch.no_grad()
    def step(self, closure=None):
        with torch.enable_grad():
            closure()
        for group in self.param_groups:
            for p in group["params"]:
                p.add_(-0.1 * (p + (0 if p.grad is None else p.grad)))


OPTIMIZERS["stubborn"] = Stubborn


@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_no_optimizer_moves_the_prompts_of_an_earlier_expert(name, set_to_none):
    """One optimizer over all parameters, never made anew: its momentum, decay and history are those of all experts."""
    model, pool = attached()
    optimizer = OPTIMIZERS[name](list(pool.parameters()))
    target = torch.randn(ROWS, 5, WIDTH, generator=torch.Generator().manual_seed(3))

    def closure():
        optimizer.zero_grad(set_to_none)
        with pool.use(pool.current):
            loss = (output(model) - target).square().mean()
        loss.backward()
        return loss

    kept = {}
    for expert in range(3):
        pool.start_expert(expert)
        start = values(pool)
        for _ in range(3):
            optimizer.step(closure)
        after = values(pool)
        assert not torch.equal(after[expert], start[expert])
        assert all(torch.equal(after[e], prompts) for e, prompts in kept.items())
        assert all(pool.prompts[e].grad is None for e in range(3) if e != expert)
        kept[expert] = after[expert]


def test_gradients_reach_the_experts_named_alone():
    model, pool = attached(4)
    with pool.use(torch.tensor([3, 1, 3])):
        output(model).sum().backward()
    assert [prompts.grad is not None for prompts in pool.prompts] == [False, True, False, True]
    pool.zero_grad()
    with pool.use(2):
        output(model).sum().backward()
    assert [prompts.grad is not None for prompts in pool.prompts] == [False, False, True, False]


def test_several_steps_within_one_use_are_those_of_one_use_a_step():
    results = []
    for once in (True, False):
        model, pool = attached()
        optimizer = torch.optim.SGD(pool.parameters(), lr=0.1, momentum=0.9)

        def step(model=model, optimizer=optimizer):
            optimizer.zero_grad()
            output(model).square().mean().backward()
            optimizer.step()

        if once:
            with pool.use(1):
                for _ in range(3):
                    step()
        else:
            for _ in range(3):
                with pool.use(1):
                    step()
        results.append(pool.prompts[1].detach())
    assert torch.equal(*results)


def test_an_exception_leaves_nothing_behind():
    model, pool = attached()
    plain = output(model)
    with pytest.raises(RuntimeError, match="use is entered already"), pool.use(0), pool.use(1):
        pass
    assert torch.equal(output(model), plain)

    def fail(*_):
        raise ArithmeticError

    broken = model.encoder.layer[2].register_forward_pre_hook(fail)
    with pytest.raises(ArithmeticError), pool.use(0):
        output(model)
    broken.remove()
    assert torch.equal(output(model), plain)


@pytest.mark.parametrize(
    ("make", "error", "sentence"),
    [
        (lambda: PromptPool(0), ValueError, "num_experts must be at least 1, got 0"),
        (lambda: PromptPool(1, 0), ValueError, "length must be at least 1, got 0"),
        (lambda: PromptPool(1, embed_dim="8"), TypeError, "embed_dim must be an int, got str"),
        (lambda: PromptPool(1, layers=3), TypeError, r"layers must be a sequence of numbers, got int"),
        (lambda: PromptPool(1, layers=()), ValueError, r"layers must be one or more rising .*, got \(\)"),
        (lambda: PromptPool(1, layers=(1, 0)), ValueError, r"layers must be one or more rising .*, got \(1, 0\)"),
        (lambda: PromptPool(1, layers=(0, 0)), ValueError, r"layers must be one or more rising .*, got \(0, 0\)"),
        (lambda: PromptPool(1, layers=(-1,)), ValueError, "layers must be at least 0, got -1"),
        (lambda: pool_of().start_expert(3), ValueError, "expert must be from 0 to 2, got 3"),
        (lambda: pool_of().use(3).__enter__(), ValueError, "expert_ids must be from 0 to 2, got 3"),
        (lambda: pool_of().use([0]).__enter__(), TypeError, "expert_ids must be an int, got list"),
        (lambda: pool_of().use(torch.tensor([0, 3])).__enter__(), ValueError, "expert_ids .*3"),
        (lambda: pool_of().use(torch.tensor([-1])).__enter__(), ValueError, "expert_ids .*-1"),
        (lambda: pool_of().use(torch.tensor(1)).__enter__(), ValueError, "expert_ids must have shape"),
        (lambda: pool_of().use(torch.tensor([1.0])).__enter__(), TypeError, "expert_ids must be of dtype int64"),
    ],
)
def test_refuses_bad_arguments(make, error, sentence):
    with pytest.raises(error, match=sentence):
        make()


def test_refuses_to_start_an_expert_twice_and_ids_for_other_rows():
    model, pool = attached()
    pool.start_expert(1)
    before = values(pool)
    with pytest.raises(ValueError, match="expert must be one that was not started before, got 1"):
        pool.start_expert(1)
    assert all(map(torch.equal, values(pool), before))
    with pytest.raises(ValueError, match="one for each of 3 rows, got 2"), pool.use(torch.tensor([0, 1])):
        output(model)


@torch.no_grad()
def test_other_hooks_see_the_output_without_prompts():
    model, pool = backbones.make(), pool_of()
    model(backbones.images(), output_hidden_states=True)  # transformers installs its recorders at the first such call
    pool.attach(model)
    with pool.use(0):
        states = model(backbones.images(), output_hidden_states=True).hidden_states
    assert [h.shape[1] for h in states[1:]] == 4 * [5]


def gradients(pool, loss):
    loss.backward()
    return [prompts.grad.clone() for prompts in pool.prompts if prompts.grad is not None]


def test_gradients_through_a_checkpointed_backbone_are_the_same():
    """Transformers checkpoints within a block, in training mode; its blocks have no dropout here."""
    results = []
    for checkpointed in (False, True):
        model, pool = attached()
        model.train()
        if checkpointed:
            model.gradient_checkpointing_enable()
        with pool.use(torch.tensor([0, 2, 0])):
            loss = output(model).square().mean()
        results.append(gradients(pool, loss))
    assert len(results[0]) == len(results[1]) == 2
    for plain, recomputed in zip(*results, strict=True):
        torch.testing.assert_close(plain, recomputed)


def through_blocks(model, run):
    x = model.embeddings(backbones.images()).requires_grad_()
    for block in model.encoder.layer:
        x = run(block, x)
    return x


def test_a_block_that_is_checkpointed_whole_is_computed_again_with_the_prompts_it_had():
    """As timm does: two forwards with other experts, one backward for both, after the uses were left."""
    results = []
    for run in (lambda block, x: block(x), lambda block, x: checkpoint(block, x, use_reentrant=False)):
        model, pool = attached()
        losses = []
        for ids in (0, torch.tensor([1, 0, 2])):
            with pool.use(ids):
                losses.append(through_blocks(model, run).square().mean())
        losses.append(through_blocks(model, run).mean())  # and one without prompts
        results.append(gradients(pool, sum(losses)))
    for plain, recomputed in zip(*results, strict=True):
        torch.testing.assert_close(plain, recomputed)


def test_one_checkpoint_may_be_around_blocks_that_all_have_prompts():
    results = []
    for checkpointed in (False, True):
        model, pool = attached(layers=(0, 1, 2))
        blocks = torch.nn.Sequential(*model.encoder.layer[:3])
        x = model.embeddings(backbones.images())
        with pool.use(torch.tensor([0, 2, 0])):
            y = checkpoint(blocks, x, use_reentrant=False) if checkpointed else blocks(x)
        results.append(gradients(pool, y.square().mean()))
    for plain, recomputed in zip(*results, strict=True):
        torch.testing.assert_close(plain, recomputed)


def test_two_pools_on_one_backbone_leave_each_other_alone():
    """Whether one or both are in use, and when the blocks are computed again."""
    results = []
    for run in (lambda block, x: block(x), lambda block, x: checkpoint(block, x, use_reentrant=False)):
        model, pool = attached()
        with pool.use(0), torch.no_grad():
            alone = through_blocks(model, run)
        other = PromptPool(2, 3, WIDTH, (0, 1))
        other.attach(model)
        with pool.use(0):
            first = through_blocks(model, run)
            with other.use(1):
                both = through_blocks(model, run)
        assert torch.equal(first, alone)
        assert both.shape == first.shape
        results.append([*gradients(pool, first.square().mean() + both.square().mean()), other.prompts[1].grad])
    for plain, recomputed in zip(*results, strict=True):
        torch.testing.assert_close(plain, recomputed)


def test_an_input_used_with_other_prompts_since_is_refused_when_computed_again():
    model, pool = attached()
    x, block = model.embeddings(backbones.images()), model.encoder.layer[0]
    with pool.use(0):
        y = checkpoint(block, x, use_reentrant=False)
    with pool.use(1):
        block(x)
    with pytest.raises(RuntimeError, match="get an input of its own for each use"):
        y.sum().backward()


@pytest.mark.parametrize(("blocks", "reentrant"), [(1, True), (3, False)])
def test_a_checkpoint_that_loses_the_prompts_is_refused_and_never_wrong(blocks, reentrant):
    model, pool = attached()
    x = model.embeddings(backbones.images()).requires_grad_()
    with pool.use(0):
        y = checkpoint(torch.nn.Sequential(*model.encoder.layer[:blocks]), x, use_reentrant=reentrant)
    with pytest.raises(RuntimeError, match="a checkpoint must not be reentrant, be around one block"):
        y.sum().backward()


def test_bfloat16_autocast_and_a_bfloat16_backbone_take_float32_prompts():
    model, pool = attached()
    with pool.use(0):
        exact = output(model)
        with torch.autocast("cpu", torch.bfloat16):
            low = output(model)
            low.float().square().mean().backward()
    assert (low.float() - exact).abs().max() < 0.1 * exact.abs().max()
    assert pool.prompts[0].grad.dtype == torch.float32
    model.to(torch.bfloat16)
    with pool.use(torch.tensor([0, 1, 0])):
        assert output(model, backbones.images().bfloat16()).dtype == torch.bfloat16


@pytest.mark.slow
def test_a_compiled_backbone_is_one_graph_for_all_experts():
    torch._dynamo.reset()
    model, pool = attached(12)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    with torch.no_grad():
        plain = output(model)
        assert torch.equal(output(compiled), plain)  # compiled without prompts, then with some
    with pool.use(0):
        output(compiled).square().mean().backward()
    with torch._dynamo.config.patch(error_on_recompile=True):
        for expert in range(1, 12):
            with pool.use(expert):
                output(compiled).square().mean().backward()
    found = [prompts.grad.clone() for prompts in pool.prompts]
    pool.zero_grad()
    for expert in range(12):
        with pool.use(expert):
            output(model).square().mean().backward()
    for compiled_gradient, prompts in zip(found, pool.prompts, strict=True):
        torch.testing.assert_close(compiled_gradient, prompts.grad)
    with torch.no_grad():
        for ids in (torch.tensor([0, 5, 0]), torch.tensor([3, 1, 7])):
            with pool.use(ids):
                torch.testing.assert_close(output(compiled), output(model))


@torch.no_grad()
@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda pair: pickle.loads(pickle.dumps(pair))])
def test_a_copy_of_backbone_and_pool_belongs_together(duplicate):
    model, pool = attached()
    pool.start_expert(1)
    copied_model, copied_pool = duplicate((model, pool))
    plain = output(model)
    with pool.use(1):
        prompted = output(model)
        assert torch.equal(output(copied_model), plain)
    with copied_pool.use(1):
        assert torch.equal(output(copied_model), prompted)


def test_state_comes_back_exactly_and_trains_the_current_expert_alone():
    pool, other = pool_of(), PromptPool(3, LENGTH, WIDTH, LAYERS)
    for expert in (2, 0):
        pool.start_expert(expert)
    other.load_state_dict(load(save(pool.state_dict())))
    assert all(map(torch.equal, values(other), values(pool)))
    assert other.current == 0
    assert other.started.tolist() == [True, False, True]
    assert [prompts.requires_grad for prompts in other.prompts] == [True, False, False]
    with pytest.raises(ValueError, match="current must be from -1 to 2, got 3"):
        other.set_extra_state(torch.tensor(3))
    untouched = PromptPool(3, LENGTH, WIDTH, LAYERS)
    other.load_state_dict(untouched.state_dict())
    assert other.current is None
    assert all(prompts.requires_grad for prompts in other.prompts)


def test_a_backbone_keeps_the_names_of_its_state():
    model = backbones.make()
    names = list(model.state_dict())
    pool_of().attach(model)
    assert list(model.state_dict()) == names
    assert "current=None" in repr(pool_of())
