"""Bad calls: the type of the error, one sentence that names the argument, and nothing written."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from samples import OPERATORS, same, typical
from torch import Tensor

from flyk import ops, reference
from flyk.check import arguments_of
from flyk.check.run import served, written

NAN = math.nan


def meta(t: Tensor) -> Tensor:
    return t.to("meta")


def trim(t: Tensor) -> Tensor:
    """One entry less in the last dimension."""
    return t[..., :-1]


def put(value: int) -> Any:
    def change(t: Tensor) -> Tensor:
        t = t.clone()
        t.view(-1)[-1] = value
        return t

    return change


def size(of: str, dim: int, more: int = 0) -> Any:
    """A label, column or k just out of range, which other arguments set."""
    return lambda arguments, name: _filled(arguments[name], arguments[of].shape[dim] + more)


def _filled(value: Any, number: int) -> Any:
    return put(number)(value) if isinstance(value, Tensor) else number


SCALAR = torch.tensor(1.0)
V, T = ValueError, TypeError
FROZEN = [
    ("values", lambda t: t[0], V),
    ("values", torch.Tensor.double, T),
    ("values", torch.Tensor.long, T),
    ("values", meta, V),
    ("values", lambda t: t.clone().requires_grad_(), V),
    ("indices", trim, V),
    ("indices", torch.Tensor.float, T),
    ("indices", meta, V),
    ("indices", put(-1), V),
    ("indices", put(2**31 - 1), V),
    ("indices", 3, T),
]
CHOICE = [
    ("k", -1, V),
    ("k", 10**6, V),
    ("k", 1.5, T),
    ("bias", trim, V),
    ("bias", torch.Tensor.long, T),
    ("bias", meta, V),
    ("bias", 0.5, T),
    ("selection", "largest", V),
    ("selection", None, T),
]
INPUT = [("{}", lambda t: t.long(), T), ("{}", lambda _: SCALAR, V), ("{}", lambda t: t.tolist(), T), ("{}", None, T)]
STATISTICS = [
    ("G", lambda t: t[:-1], V),
    ("G", torch.Tensor.bfloat16, T),
    ("G", lambda t: t.mT, V),
    ("G", meta, V),
    ("Q", lambda t: t[:-1], V),
    ("Q", torch.Tensor.double, T),
    ("Q", lambda t: t.mT.contiguous().mT, V),
    ("labels", torch.Tensor.int, T),
    ("labels", trim, V),
    ("labels", put(-1), V),
    ("labels", size("Q", 1), V),
    ("labels", meta, V),
    ("precision", "fp8", V),
    ("precision", "tf32", V),
]
# For each operator: the argument, what it becomes (a function of it, or the thing itself), and the error.
BAD: dict[str, list[tuple[str, Any, type[Exception]]]] = {
    "project": [
        *[(name.format("x"), *rest) for name, *rest in INPUT],
        *FROZEN,
        *[("activation", "gelu", V), ("activation", 1, T), ("precision", "fp8", V), ("precision", "tf32", V)],
    ],
    "winner_take_all": [*[(name.format("y"), *rest) for name, *rest in INPUT], *CHOICE, ("k", size("y", -1, 1), V)],
    "project_topk": [
        *[(name.format("x"), *rest) for name, *rest in INPUT],
        *FROZEN,
        *CHOICE,
        *[("k", size("values", 0, 1), V), ("activation", "gelu", V)],
    ],
    "fly_lora": [
        *[(name.format("x"), *rest) for name, *rest in INPUT],
        *FROZEN,
        *CHOICE,
        *[
            ("k", size("values", 0, 1), V),
            ("B", trim, V),
            ("B", torch.Tensor.double, T),
            ("B", meta, V),
            ("B", None, T),
        ],
        *[("base", trim, V), ("base", torch.Tensor.double, T), ("base", meta, V), ("base", 0, T), ("scale", "1", T)],
    ],
    "gram_": [
        *STATISTICS,
        *[("phi", torch.Tensor.long, T), ("phi", lambda t: t[0], V), ("phi", meta, V)],
    ],
    "expand_gram_": [
        *STATISTICS,
        *FROZEN,
        *[("h", torch.Tensor.long, T), ("h", lambda t: t[0], V), ("h", meta, V), ("activation", "gelu", V)],
        *[("k", -1, V), ("k", size("values", 0, 1), V), ("k", 1.5, T)],
    ],
    "ridge_solve": [
        *[("G", trim, V), ("G", torch.Tensor.bfloat16, T), ("G", lambda t: t[0], V), ("G", meta, V)],
        *[("Q", lambda t: t[:-1], V), ("Q", torch.Tensor.double, T), ("Q", meta, V), ("ridge", -1.0, V)],
        *[("ridge", NAN, V), ("ridge", math.inf, V), ("ridge", "1", T), ("ridge", torch.ones(2), T)],
    ],
    "ema_": [
        *[("bank", lambda _: SCALAR, V), ("bank", torch.Tensor.long, T), ("bank", meta, V)],
        *[("online", trim, V), ("online", torch.Tensor.double, T), ("online", None, T)],
        *[("decays", (0.5,), V), ("decays", (0.5, 1.5), V), ("decays", (-0.1, 0.5), V), ("decays", (NAN, 0.5), V)],
        *[("decays", 0.9, T), ("decays", ("a", "b"), T)],
    ],
    "ensemble": [
        *[("h", lambda t: t[0], V), ("h", torch.Tensor.long, T), ("h", meta, V)],
        *[("online_weight", trim, V), ("online_weight", torch.Tensor.double, T)],
        *[("bank_weight", trim, V), ("bank_weight", lambda t: t[0], V), ("bank_weight", torch.Tensor.double, T)],
        *[("bank_bias", trim, V), ("bank_bias", torch.Tensor.double, T)],
        *[("expert_ids", put(-1), V), ("expert_ids", size("bank_weight", 0), V), ("expert_ids", trim, V)],
        *[("expert_ids", torch.Tensor.int, T), ("expert_ids", meta, V)],
        *[("seen", torch.zeros(5, dtype=torch.bool), V), ("seen", torch.ones(4, dtype=torch.bool), V)],
        *[("seen", torch.ones(5), T)],
    ],
    "masked_cross_entropy": [
        *[("logits", lambda t: t[0], V), ("logits", torch.Tensor.long, T), ("logits", None, T)],
        *[("target", put(-1), V), ("target", size("logits", 1), V), ("target", trim, V)],
        *[("target", torch.Tensor.int, T), ("target", meta, V)],
    ],
    "make_projection_": [
        *[("kind", "dense", V), ("kind", 3, T), ("in_features", -1, V), ("in_features", 2**31, V)],
        *[("std", 0.0, V), ("std", -1.0, V), ("std", NAN, V), ("std", 1e-45, V), ("std", 1e39, V)],
        *[("seed", -1, V), ("seed", 2**63, V), ("seed", 2**80, V), ("first", -1, V), ("seed", 0.5, T)],
        *[("values", torch.Tensor.double, T), ("values", trim, V), ("values", lambda t: t.mT.contiguous().mT, V)],
        *[("indices", torch.Tensor.long, T), ("indices", trim, V), ("indices", meta, V)],
        *[("indices", lambda _: None, V), ("indices", lambda t: t.mT.contiguous().mT, V)],
    ],
    "count_winners_": [
        *[("counts", torch.Tensor.float, T), ("counts", lambda t: t[None], V), ("counts", meta, V)],
        *[("indices", torch.Tensor.int, T), ("indices", put(-1), V), ("indices", size("counts", 0), V)],
        *[("mask", torch.Tensor.long, T), ("mask", trim, V)],
    ],
}
CALLS = [
    pytest.param(operator, name, change, error, id=f"{operator}-{name}")
    for operator, changes in BAD.items()
    for name, change, error in changes
]


def bad(operator: str, name: str, change: Any) -> dict[str, Any]:
    """Arguments of a sample that has the tensor in question, with `name` spoiled."""
    for case in typical(operator):
        options = {key: True if value is False else value for key, value in case.options}
        arguments = arguments_of(case.__class__(**{**vars(case), "options": tuple(options.items())}))
        if isinstance(change, Tensor) or not callable(change) or arguments[name] is not None:
            break
    if callable(change) and not isinstance(change, Tensor):
        two = getattr(change, "__code__", None) is not None and change.__code__.co_argcount == 2
        change = change(arguments, name) if two else change(arguments[name])
    return arguments | {name: change}


@pytest.mark.parametrize(("operator", "name", "change", "error"), CALLS)
def test_bad_call_is_refused_in_one_sentence(operator: str, name: str, change: Any, error: type[Exception]) -> None:
    arguments = bad(operator, name, change)
    before = {n: arguments[n].clone() for n in written(operator) if isinstance(arguments[n], Tensor)}
    with pytest.raises(error) as raised:
        served(operator)(**arguments)
    text = str(raised.value)
    assert raised.type is error
    assert name in text
    assert "\n" not in text
    assert ". " not in text
    assert len(text) < 240
    assert same(
        [arguments[n] for n in before if before[n].device.type == "cpu"],
        [t for t in before.values() if t.device.type == "cpu"],
    )


def test_table_names_every_operator_and_argument() -> None:
    assert set(BAD) == set(OPERATORS)
    for operator in OPERATORS:
        arguments = set(arguments_of(typical(operator)[0]))
        unnamed = arguments - {name for name, *_ in BAD[operator]}
        assert unnamed <= {"online_bias"}  # said of bank_bias


def test_reference_twins_refuse_the_same() -> None:
    x, values = torch.randn(3, 4), torch.randn(5, 4)
    for module in (ops, reference):
        with pytest.raises(ValueError, match="k must be from 0 to 5"):
            module.project_topk(x, values, None, 6)
        G, Q = torch.zeros(5, 5), torch.zeros(5, 2)
        with pytest.raises(ValueError, match="labels must be from 0 to 1, got 2"):
            module.gram_(G, Q, torch.randn(3, 5), torch.tensor([0, 1, 2]))
        assert not G.any()
        assert not Q.any()


def test_a_system_that_is_not_positive_definite_is_refused() -> None:
    with pytest.raises(ValueError, match="ridge must make G"):
        ops.ridge_solve(-torch.eye(3), torch.ones(3, 1), 0.5)
    with pytest.raises(ValueError, match="ridge must make G"):
        ops.ridge_solve(torch.full((3, 3), NAN), torch.ones(3, 1), 0.5)
