"""Measuring: what is recorded, that nothing wrong is timed, and what is said where torch.compile can't help."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import time

import pytest
import torch

from flyk import ops
from flyk.bench import Case, ema_, gram_
from flyk.bench._ceilings import Ceilings
from flyk.bench._measure import RIVALS, compiled, error, input_sets, measure

LIMITS = Ceilings({2**20: 1e10}, 1e11)
SMALL = ema_.case(3, 5)


@pytest.fixture(autouse=True)
def no_cpp(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="aot_eager"))


def spoiled(case: Case, factor: float) -> Case:
    """The case with a kernel of flyk that is wrong; its reference stays right."""

    def wrong(namespace, bank, online, decays):
        case.ours(namespace, bank, online, decays)
        return bank.mul_(factor) if namespace is ops else bank

    return dataclasses.replace(case, ours=wrong)


def test_green_case() -> None:
    found = measure(SMALL, LIMITS, least=6, budget=0.0)
    assert json.loads(json.dumps(found)) == found
    assert (found["op"], found["what"], found["sizes"]) == ("ema_", "in place", "2 heads of 3 x 5")
    assert (found["check"], found["fault"], found["published_share"]) == ("green", "", 1)
    assert found["floor"] == {"bytes": 300, "flop": 90, "seconds": 300 / 1e10}
    assert tuple(found["rivals"]) == RIVALS
    for rival in found["rivals"].values():
        assert rival["rounds"] == 6
        assert 0 < rival["q1"] <= rival["median"] <= rival["q3"]
        assert 0 <= rival["error"] <= found["bound"]


@pytest.mark.parametrize("factor", [1.001, math.nan, math.inf])
def test_wrong_kernel_is_red_and_not_timed(factor: float) -> None:
    found = measure(spoiled(SMALL, factor), LIMITS, least=1, budget=0.0)
    assert found["check"] == "red"
    assert found["fault"].startswith("flyk is off by")
    assert not any("median" in rival or "rounds" in rival for rival in found["rivals"].values())
    assert found["rivals"]["eager"]["error"] < 1e-6


def test_raising_kernel_is_red() -> None:
    def broken(namespace, bank, online, decays):
        if namespace is ops:
            raise RuntimeError("no luck\nat all")
        return SMALL.ours(namespace, bank, online, decays)

    found = measure(dataclasses.replace(SMALL, ours=broken), LIMITS, least=1, budget=0.0)
    assert (found["check"], found["fault"]) == ("red", "flyk raises RuntimeError: no luck")


def test_wrong_shape_and_nothing_to_compare() -> None:
    assert error((torch.zeros(2),), (torch.zeros(3, dtype=torch.float64),)) == math.inf
    assert error((torch.zeros(0),), (torch.zeros(0, dtype=torch.float64),)) == 0
    assert error((torch.tensor(1.5),), (torch.tensor(0.0, dtype=torch.float64),)) == 1.5
    assert error((torch.tensor([1.0, 4.5]),), (torch.tensor([1.0, 5.0], dtype=torch.float64),)) == 0.1


def test_time_of_a_share_is_scaled(monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(G, Q, phi, labels):
        time.sleep(0.02)
        return gram_.published(G, Q, phi, labels)

    case = dataclasses.replace(gram_.case(256, 6, share=4, uncompiled="left out"), published=slow)
    found = measure(case, LIMITS, least=1, budget=0.0)
    assert found["published_share"] == 4
    assert found["rivals"]["published"]["median"] >= 0.08
    assert found["rivals"]["compiled"] == {"absent": "left out"}


def test_rounds_go_on_until_the_budget_is_spent() -> None:
    start = time.perf_counter()
    found = measure(dataclasses.replace(SMALL, uncompiled="left out"), LIMITS, least=1, budget=0.05)
    assert time.perf_counter() - start >= 0.05
    assert found["rivals"]["flyk"]["rounds"] > 1


def test_what_torch_compile_leaves_to_eager_is_no_rival() -> None:
    hidden = torch.compiler.disable(SMALL.eager)

    def eager(bank, online, weights):
        return hidden(bank, online, weights)

    case = dataclasses.replace(SMALL, eager=eager)
    assert compiled(case, input_sets(case)[0]).absent.startswith("not compilable: torch.compile finds nothing")


def test_compiler_that_fails_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(graph, inputs):
        raise RuntimeError("no C++ compiler here")

    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile.func, backend=failing))
    rival = compiled(SMALL, input_sets(SMALL)[0])
    assert rival.function is None
    assert rival.absent.startswith("not compilable: ")
    assert "no C++ compiler here" in rival.absent
