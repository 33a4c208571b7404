"""Every case at a small size: the rivals agree with float64 and with one another, and write nothing they should not."""

from __future__ import annotations

import functools
import inspect

import pytest
import torch
from torch import Tensor

from flyk import ops
from flyk.bench import (
    Case,
    cases,
    ema_,
    ensemble,
    expand_gram_,
    fly_lora,
    gram_,
    masked_cross_entropy,
    project,
    project_topk,
    ridge_solve,
    winner_take_all,
)
from flyk.bench._case import decided
from flyk.bench._measure import Rival, bind, check, fresh, gradients, input_sets, rivals_of

SMALL = [
    ema_.case(3, 5),
    ensemble.case(11, 8, 4, 7),
    ensemble.case(3, 8, 5, 7),  # more experts than rows
    expand_gram_.case(4, 12, 30, classes=3, share=2),
    expand_gram_.case(4, 12, 30, classes=3, precision="bf16"),
    expand_gram_.case(4, 12, 30, classes=3, precision="bf16x3"),
    expand_gram_.case(17, 12, 30, k=5, classes=3),  # more rows than the buffer holds
    expand_gram_.case(2, 12, 30, k=5, nnz=4, classes=3),
    fly_lora.case(7, 16, 10, 8, 2),
    fly_lora.case(7, 16, 10, 8, 2, backward=True),
    fly_lora.case(7, 16, 10, 8, 2, in_place=True),
    gram_.case(128, 27, classes=3, share=2),
    masked_cross_entropy.case(9, 12, 4),
    masked_cross_entropy.case(9, 12, 4, backward=True),
    project.case(5, 12, 9, 3),
    project.case(5, 12, 9, 3, "relu"),
    project.case(5, 12, 9, None, "relu"),
    project_topk.case(6, 12, 40, 3, 7),
    ridge_solve.case(40, 3),
    ridge_solve.case_again(40, 2000, 3),
    winner_take_all.case(6, 100, 7),
    winner_take_all.case(6, 20, 20),
]
over_small = pytest.mark.parametrize("case", SMALL, ids=lambda case: case.name)


@pytest.fixture(autouse=True)
def no_cpp(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.compile traces and functionalises, but leaves the code to eager PyTorch: quick, and needs no compiler."""
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="aot_eager"))


def kinds(chosen: list[Case]) -> set[tuple[str, str]]:
    return {(case.op, case.what) for case in chosen}


def test_each_use_of_each_operator_is_here_and_measured() -> None:
    full, quick = cases(), cases(quick=True)
    assert {case.op for case in full} == {case.op for case in quick} == set(ops.__all__)
    assert kinds(SMALL) == kinds(full) | kinds(quick)
    names = [case.name for case in full]
    assert len(set(names)) == len(names)


@over_small
def test_rivals_agree_with_float64(case: Case) -> None:
    sets = input_sets(case)
    rivals = rivals_of(case, sets[0])
    assert check(case, rivals, sets[:2]) == ""
    for name, rival in rivals.items():
        assert rival.absent if rival.error is None else 0 <= rival.error <= case.bound, name
    assert case.uncompiled or rivals["compiled"].error is not None


@over_small
def test_rivals_write_to_the_state_alone_and_give_the_same_again(case: Case) -> None:
    inputs = input_sets(case)[0]
    for name, rival in rivals_of(case, inputs).items():
        if rival.function is None:
            continue
        given = fresh(case, case.inputs_of(name, inputs))
        before = {n: v.clone() for n, v in given.items() if isinstance(v, Tensor)}
        with gradients(case):
            first = case.compared(bind(case, rival.function, given)(), given)
            again = case.compared(
                bind(case, rival.function, given | {n: before[n].clone() for n in case.state})(), given
            )
        changed = {n for n, v in before.items() if not torch.equal(v, given[n].detach())}
        assert changed <= set(case.state), name
        assert all(map(torch.equal, first, again)), name


def test_the_long_published_rival_gets_a_share_of_the_rows() -> None:
    case = gram_.case(256, 6, share=4)
    inputs = input_sets(case)[0]
    cut = case.inputs_of("published", inputs)
    assert len(cut["phi"]) == len(cut["labels"]) == 64
    assert cut["G"] is inputs["G"]
    assert case.inputs_of("flyk", inputs) is inputs


def test_input_sets_differ_and_are_the_same_each_time() -> None:
    case = fly_lora.case(7, 16, 10, 8, 2)
    sets, again = input_sets(case), input_sets(case)
    assert len(sets) == 4
    for name in ("x", "base", "values", "B"):
        assert not torch.equal(sets[0][name], sets[1][name])
        assert torch.equal(sets[3][name], again[3][name])


def test_large_inputs_come_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flyk.bench._measure.INPUT_BYTES", 1)
    assert len(input_sets(ema_.case(3, 5))) == 1


def test_rows_whose_winners_rounding_decides_are_replaced() -> None:
    scores = torch.tensor([[3.0, 2.0, 1.0], [2.0, 2.0, 1.0], [5.0, 1.0, 0.0]])
    x = torch.tensor([[0.0], [1.0], [2.0]])
    assert decided(x, scores, 1).flatten().tolist() == [0.0, 2.0, 0.0]
    assert decided(x, scores, 3).equal(x)


@over_small
def test_a_wrong_kernel_is_seen(case: Case) -> None:
    """One entry off by a hundred times what is allowed."""
    right = functools.partial(case.ours, ops)

    def wrong(**given):
        result = right(**given)
        first = result if isinstance(result, Tensor) else result[0]
        spoiled = first.detach().clone()
        spoiled[(0,) * spoiled.dim()] += 100 * case.bound * max(1.0, float(spoiled.abs().max()))
        return spoiled + 0 * first if isinstance(result, Tensor) else (spoiled, *result[1:])

    wrong.__signature__ = inspect.signature(right)  # a rival is given the inputs that it names
    assert check(case, {"flyk": Rival(wrong)}, input_sets(case)[:1]).startswith("flyk is off by")
