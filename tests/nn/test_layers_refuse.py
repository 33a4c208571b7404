"""Bad arguments of every layer: one sentence that names the argument, what came and what was wanted."""

from pathlib import Path

import pytest
import torch
from torch import nn

import flyk.nn
from flyk.nn import (
    REAR,
    FlyLoRALinear,
    KernelREAR,
    RandomProjection,
    ShardedREAR,
    TaskGatedFlyLoRALinear,
    TE2Head,
    plan_rear,
)

NAN, F = float("nan"), torch.zeros


def fly(**options):
    return FlyLoRALinear(**{"in_features": 8, "out_features": 4, "r": 4, "k": 2} | options)


def gated(**options):
    return TaskGatedFlyLoRALinear(**{"in_features": 8, "out_features": 4, "rank": 4, "num_experts": 2} | options)


def rear(**options):
    return REAR(**{"in_features": 8, "num_experts": 3, "expansion": 16} | options)


def te2(**options):
    return TE2Head(**{"in_features": 8, "num_classes": 4, "num_experts": 3} | options)


def started():
    head = te2()
    head.start_expert(1)
    return head


LONG = torch.int64
CASES = [
    # FlyLoRALinear
    (lambda: fly()([1.0]), TypeError, r"x must be a tensor, got list"),
    (lambda: fly(detach_input="no"), TypeError, r"detach_input must be True or False, got 'no'"),
    (lambda: fly(base=nn.Linear(8, 4)).merge(approximate="no"), TypeError, r"approximate must be True or False"),
    (lambda: gated(learn_temperature=1), TypeError, r"learn_temperature must be True or False, got 1"),
    (lambda: rear(keep_factor="no"), TypeError, r"keep_factor must be True or False, got 'no'"),
    (lambda: te2(decays=0.9), TypeError, r"decays must be a sequence of numbers, got float"),
    (lambda: fly(in_features=0), ValueError, r"in_features must be at least 1, got 0"),
    (lambda: fly(in_features="8"), TypeError, r"in_features must be an int, got str"),
    (lambda: fly(out_features=-1), ValueError, r"out_features must be at least 1, got -1"),
    (lambda: fly(r=0), ValueError, r"r must be at least 1, got 0"),
    (lambda: fly(r=4.0), TypeError, r"r must be an int, got float"),
    (lambda: fly(k=0), ValueError, r"k must be from 1 to 4, got 0"),
    (lambda: fly(k=5), ValueError, r"k must be from 1 to 4, got 5"),
    (lambda: fly(nnz=9), ValueError, r"nnz must be .*8.*, got 9"),
    (lambda: fly(nnz=0), ValueError, r"nnz must be .*, got 0"),
    (lambda: fly(alpha=NAN), ValueError, r"alpha must be finite and at least 0, got nan"),
    (lambda: fly(alpha="2"), TypeError, r"alpha must be a number, got str"),
    (lambda: fly(dropout=1.5), ValueError, r"dropout must be from 0 to 1, got 1.5"),
    (lambda: fly(bias_update_rate=-1), ValueError, r"bias_update_rate must be finite and at least 0, got -1"),
    (lambda: fly(selection="abs"), ValueError, r"selection must be one of 'magnitude', .* got 'abs'"),
    (lambda: fly(seed=-1), ValueError, r"seed must be .*, got -1"),
    (lambda: fly(base="linear"), TypeError, r"base must be a module or None, got str"),
    (lambda: fly(base=nn.Linear(7, 4)), ValueError, r"base must have in_features 8, got 7"),
    (lambda: fly(base=nn.Linear(8, 5)), ValueError, r"base must have out_features 4, got 5"),
    (lambda: fly(base=nn.Identity())(F(2, 8)), ValueError, r"base must have shape \(2, 4\), got \(2, 8\)"),
    (lambda: fly()(F(2, 7)), ValueError, r"x must have 8 features in its last dimension, got shape \(2, 7\)"),
    (lambda: fly()(F(2, 9)), ValueError, r"x must have 8 features in its last dimension, got shape \(2, 9\)"),
    (lambda: fly()(F(())), ValueError, r"x must have 8 features in its last dimension, got shape \(\)"),
    (lambda: fly()(F(2, 8, dtype=LONG)), TypeError, r"x must be of dtype .*, got int64"),
    (lambda: fly()(F(2, 8), F(2)), TypeError, r"mask must be of dtype bool, got float32"),
    (lambda: fly()(F(2, 8), F(3, dtype=torch.bool)), ValueError, r"mask must have shape \(2,\), got \(3,\)"),
    # TaskGatedFlyLoRALinear
    (lambda: gated(rank=0), ValueError, r"rank must be at least 1, got 0"),
    (lambda: gated(num_experts=5), ValueError, r"num_experts must be from 1 to 4, got 5"),
    (lambda: gated(num_tasks=0), ValueError, r"num_tasks must be at least 1, got 0"),
    (lambda: gated(sparsity=1.1), ValueError, r"sparsity must be from 0 to 1, got 1.1"),
    (lambda: gated(temperature=0), ValueError, r"temperature must be above 0 or None, got 0"),
    (lambda: gated(temperature=-1.0), ValueError, r"temperature must be .*, got -1.0"),
    (lambda: gated(learn_temperature=True), ValueError, r"temperature must be given to be learned, got None"),
    (
        lambda: gated(temperature=1, learn_temperature=True),
        ValueError,
        r"sparsity must leave .* two experts .* got 0.8",
    ),
    (lambda: gated(base=nn.Linear(8, 5)), ValueError, r"base must have out_features 4, got 5"),
    (lambda: fly()(F(2, 8).to_sparse()), TypeError, r"x must be a dense tensor, got sparse_coo"),
    (lambda: rear().update(F(2, 8).to_sparse(), 0), TypeError, r"h must be a dense tensor, got sparse_coo"),
    (lambda: gated()(F(2, 9)), ValueError, r"x must have 8 features in its last dimension, got shape \(2, 9\)"),
    (lambda: gated().set_task(1), ValueError, r"task must be from 0 to 0, got 1"),
    (lambda: gated().set_task("one"), TypeError, r"task must be an int, got str"),
    (lambda: gated().merge(-1), ValueError, r"task must be from 0 to 0, got -1"),
    (lambda: gated(base=nn.Identity()).merge(0), TypeError, r"base must be an nn.Linear .*, got Identity"),
    # REAR
    (lambda: rear(in_features=0), ValueError, r"in_features must be at least 1, got 0"),
    (lambda: rear(num_experts=-1), ValueError, r"num_experts must be at least 0, got -1"),
    (lambda: rear(expansion=0), ValueError, r"expansion must be at least 1, got 0"),
    (lambda: rear(ridge=-1.0), ValueError, r"ridge must be finite and at least 0, got -1.0"),
    (lambda: rear(ridge=float("inf")), ValueError, r"ridge must be finite and at least 0, got inf"),
    (lambda: rear(kind="sparse_sign", nnz="2"), TypeError, r"nnz must be an int, got str"),
    (lambda: rear(kind="dense"), ValueError, r"kind must be one of .*, got 'dense'"),
    (lambda: rear(activation="gelu"), ValueError, r"activation must be one of .*, got 'gelu'"),
    (lambda: rear(k=0), ValueError, r"k must be from 1 to 16, got 0"),
    (lambda: rear(k=17), ValueError, r"k must be from 1 to 16, got 17"),
    (lambda: rear(dtype=torch.float16), TypeError, r"dtype must be torch.float32 or torch.float64, got torch.float16"),
    (lambda: rear(precision="tf16"), ValueError, r"precision must be one of .*, got 'tf16'"),
    (lambda: rear(precision="tf32").update(F(1, 8), 0), ValueError, r"precision 'tf32' must be .* CUDA .* on cpu"),
    (lambda: rear(flush_rows=0), ValueError, r"flush_rows must be at least 1, got 0"),
    (lambda: rear()(F(2, 7)), ValueError, r"h must have 8 features in its last dimension, got shape \(2, 7\)"),
    (lambda: rear()(F(2, 8, device="meta")), ValueError, r"h must be on the module's device, cpu, got meta"),
    (lambda: rear()(F(2, 8, dtype=LONG)), TypeError, r"h must be of dtype .*, got int64"),
    (lambda: rear().merge_(te2()), TypeError, r"other must be a REAR, got TE2Head"),
    (lambda: rear(nonfinite="skip"), ValueError, r"nonfinite must be one of 'refuse', 'drop', 'ignore', got 'skip'"),
    (
        lambda: rear(expansion=2**40),
        ValueError,
        r"expansion must need at most the .* of memory .* got one that needs .*B",
    ),
    (
        lambda: rear(flush_rows=2**50),
        ValueError,
        r"flush_rows must need at most the .* of memory .* got one that needs",
    ),
    (lambda: setattr(rear(), "ridge", -1.0), ValueError, r"ridge must be finite and at least 0, got -1.0"),
    (lambda: rear().choose_ridge(), ValueError, r"choose_ridge needs at least one row .*, got none"),
    (lambda: rear().save("x.pt"), ValueError, r"path must end with .safetensors, got x.pt"),
    (
        lambda: REAR.load("none.safetensors"),
        ValueError,
        r"path must name a checkpoint that can be read whole, got none",
    ),
    # KernelREAR, ShardedREAR, plan_rear
    (lambda: KernelREAR(8, 3, 16, k=17), ValueError, r"k must be from 1 to 16, got 17"),
    (lambda: KernelREAR(8, 3, 16).update(F(2, 7), 0), ValueError, r"h must have 8 features in its last dimension"),
    (lambda: KernelREAR(8, 3, 16).merge_(rear()), TypeError, r"other must be a KernelREAR, got REAR"),
    (lambda: ShardedREAR(8, 3, 16, tolerance=2), ValueError, r"tolerance must be from 0 to 1, got 2"),
    (lambda: ShardedREAR(8, 3, 16, limit=0.5), TypeError, r"limit must be an int, got float"),
    (lambda: ShardedREAR(8, 3, 16).update(F(2, 8), 3), ValueError, r"expert must be from 0 to 2, got 3"),
    (lambda: plan_rear(0, 3, 16, rows=5), ValueError, r"in_features must be at least 1, got 0"),
    (lambda: plan_rear(8, 3, 16, rows=-1), ValueError, r"rows must be at least 0, got -1"),
    (lambda: plan_rear(8, 3, "16", rows=1), TypeError, r"expansion must be an int, got str"),
    # RandomProjection
    (lambda: RandomProjection(8, 4, kind="dense"), ValueError, r"kind must be one of .*, got 'dense'"),
    (lambda: RandomProjection(8, 4, kind="binary"), ValueError, r"nnz must be given for kind 'binary'.*, got None"),
    (lambda: RandomProjection(8, 4, kind="gaussian", nnz=2), ValueError, r"nnz must be None for kind 'gaussian'"),
    (lambda: RandomProjection(8, 4, kind="gaussian")(F(2, 7)), ValueError, r"x must have 8 features"),
    # TE2Head
    (lambda: te2(num_classes=0), ValueError, r"num_classes must be at least 1, got 0"),
    (lambda: te2(num_experts=0), ValueError, r"num_experts must be at least 1, got 0"),
    (lambda: te2(decays=(0.9, 1.1)), ValueError, r"decays must be from 0 to 1, got 1.1"),
    (lambda: te2(decays=("a",)), TypeError, r"decays must be a number, got str"),
    (lambda: te2().start_expert(3), ValueError, r"expert must be from 0 to 2, got 3"),
    (lambda: te2().start_expert(0.5), TypeError, r"expert must be an int, got float"),
    (lambda: started().predict(F(2, 7), 1), ValueError, r"h must have shape \(N, 8\), got \(2, 7\)"),
    (lambda: started().predict(F(2, 8), 3), ValueError, r"expert_ids must be from 0 to 2, got 3"),
    (lambda: started().predict(F(2, 8), torch.tensor([1, 3])), ValueError, r"expert_ids must be from 0 to 2, got 3"),
    (lambda: started().predict(F(2, 8), torch.tensor([1])), ValueError, r"expert_ids must have shape \(2,\), got"),
    (lambda: started().predict(F(2, 8), F(2)), TypeError, r"expert_ids must be of dtype int64, got float32"),
    (lambda: started().predict(F(2, 8), 1, F(4)), TypeError, r"seen must be of dtype bool, got float32"),
]


def test_every_layer_has_cases():
    """Those of prompts and of FlyPrompt stand in their own files."""
    text = Path(__file__).read_text()
    unnamed = {name for name in flyk.nn.__all__ if f"{name}(" not in text}
    assert unnamed == {"FlyPrompt", "PromptHandle", "PromptPool"}


@pytest.mark.parametrize(("call", "error", "sentence"), CASES, ids=range(len(CASES)))
def test_bad_arguments_are_refused_in_one_sentence(call, error, sentence):
    with pytest.raises(error, match=f"^{sentence}") as caught:
        call()
    assert type(caught.value) is error
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("h", "expert", "error", "sentence"),
    [
        (F(2, 8).numpy(), 0, TypeError, r"h must be a tensor, got ndarray"),
        (F(2, 7), 0, ValueError, r"h must have 8 features in its last dimension, got shape \(2, 7\)"),
        (F(()), 0, ValueError, r"h must have 8 features in its last dimension, got shape \(\)"),
        (F(2, 8, dtype=LONG), 0, TypeError, r"h must be of dtype .*, got int64"),
        (F(2, 8), 3, ValueError, r"expert must be from 0 to 2, got 3"),
        (F(2, 8), -1, ValueError, r"expert must be from 0 to 2, got -1"),
        (F(2, 8), "a", TypeError, r"expert must be an int, got str"),
        (F(2, 8), torch.tensor([0, 3]), ValueError, r"expert must be from 0 to 2, got 3"),
        (F(2, 8), torch.tensor([0]), ValueError, r"expert must have shape \(2,\), got \(1,\)"),
        (F(2, 8), torch.tensor([0.0, 1.0]), TypeError, r"expert must be of dtype int64, .*, got float32"),
        (F(2, 8), torch.tensor([True, False]), TypeError, r"expert must be of dtype int64, .*, got bool"),
    ],
)
def test_a_refused_update_changes_nothing(h, expert, error, sentence):
    module, good = rear(flush_rows=5), torch.ones(3, 8)
    module.update(good, 1)
    with pytest.raises(error, match=f"^{sentence}"):
        module.update(h, expert)
    untouched = rear(flush_rows=5)
    untouched.update(good, 1)
    assert torch.equal(module.counts, untouched.counts)
    assert torch.equal(module.solve(), untouched.solve())


def test_a_refused_base_is_not_frozen():
    base = nn.Linear(8, 4)
    with pytest.raises(ValueError, match="nnz"):
        fly(base=base, nnz=9)
    assert base.weight.requires_grad
