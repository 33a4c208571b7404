"""Timing on a GPU, as far as a machine without one can tell: which inputs, in what form, and what is refused."""

from __future__ import annotations

import dataclasses
import functools
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from flyk.bench import _cuda, cases, ema_, winner_take_all
from flyk.bench._ceilings import Ceilings
from flyk.bench._measure import RIVALS, check, input_sets, measure, rivals_of
from flyk.cli import app

CPU = torch.device("cpu")
SMALL = ema_.case(3, 5)


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The host's clock in place of the device's; what lead every timed call had."""
    leads: list[float] = []

    def elapsed(call: Callable[[], Any], lead: float) -> float:
        leads.append(lead)
        begin = time.perf_counter()
        call()
        return time.perf_counter() - begin

    monkeypatch.setattr(_cuda, "elapsed", elapsed)
    monkeypatch.setattr(_cuda, "synchronize", lambda: None)
    return leads


@pytest.mark.parametrize(
    ("size", "cache", "copies"),
    [
        (100, 1000, 21),  # the 20 others fill the cache twice
        (1000, 1000, 3),
        (5000, 1000, 2),
        (300, 1000, 8),
        (1, 10**9, _cuda.COPIES),
        (_cuda.MEMORY // 3, _cuda.MEMORY, 3),
        (2 * _cuda.MEMORY, 1000, 1),
        (0, 0, 1),
    ],
)
def test_rotation(size: int, cache: int, copies: int) -> None:
    assert _cuda.rotation(size, cache) == copies


def test_place_makes_copies_that_share_no_memory() -> None:
    sets = input_sets(SMALL)[:2]
    size = _cuda.size_of(sets[0])
    assert size == 4 * (2 * 15 + 15 + 2)
    placed = _cuda.place(sets, CPU, cache=3 * size)
    assert len(placed) == 7
    assert len({inputs["bank"].data_ptr() for inputs in placed}) == 7
    assert torch.equal(placed[5]["bank"], sets[1]["bank"])
    assert placed[6]["decays"] == ema_.DECAYS
    assert len(_cuda.place(sets, CPU, cache=0)) == 2


def test_result_has_the_form_of_the_cpu(clock: list[float]) -> None:
    placing = functools.partial(_cuda.place, device=CPU, cache=2000)
    limits = Ceilings({2**20: 1e10}, 1e11)
    options = {"least": 6, "budget": 0.0, "place": placing, "time_rounds": _cuda.time_rounds}
    case = winner_take_all.case(4, 50, 3)
    found = measure(case, limits, **options)
    assert json.loads(json.dumps(found)) == found
    assert tuple(found["rivals"]) == RIVALS
    assert found["check"] == "green"
    live = [rival for rival in found["rivals"].values() if "absent" not in rival]
    assert all(0 < rival["q1"] <= rival["median"] <= rival["q3"] for rival in live)
    assert len(clock) == 6 * len(live)
    assert min(clock) > 0


def test_no_call_finds_the_inputs_of_those_shortly_before_it() -> None:
    met: list[int] = []

    def noted(y: torch.Tensor, k: int):
        met.append(y.data_ptr())
        return winner_take_all.published(y, k)

    case = dataclasses.replace(winner_take_all.case(4, 50, 3), published=noted, eager=noted, uncompiled="left out")
    sets = _cuda.place(input_sets(case), CPU, cache=2000)
    rivals = rivals_of(case, sets[0], ["published", "eager"])
    _cuda.time_rounds(case, rivals, sets, least=7, budget=0.0)
    timed = met[6:]  # after the warm-up, three calls each
    assert len(timed) == 14
    assert timed[: len(sets)] == [inputs["y"].data_ptr() for inputs in sets]
    assert all(a == b for a, b in zip(timed, timed[len(sets) :], strict=False))


def test_ceilings_are_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_cuda, "SIDE", 128)
    _cuda.products.cache_clear()
    assert set(_cuda.products(CPU)) == {"float32", "tf32", "bf16"}
    assert all(rate > 1e6 for rate in _cuda.products(CPU).values())
    assert torch.get_float32_matmul_precision() == "highest"
    _cuda.products.cache_clear()


@pytest.mark.parametrize("case", cases(quick=True), ids=lambda case: case.op)
def test_no_rival_makes_tensors_on_the_cpu_beside_its_inputs(case: Any) -> None:
    """With meta as default, a tensor made without a device is not where the inputs are, and the call fails."""
    inputs = input_sets(case)[0]
    rivals = rivals_of(case, inputs, ["published", "eager", "flyk"])
    with torch.device("meta"):
        assert check(case, rivals, [inputs]) == ""


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_refused_and_a_limit_leaves_cases_out(tmp_path: Path) -> None:
    runner = CliRunner()
    refused = runner.invoke(app, ["bench", "--device", "cuda"])
    assert refused.exit_code == 2
    assert "--device must be on this machine, which has 0 GPUs, got 'cuda'" in refused.output
    file = tmp_path / "none.json"
    stopped = runner.invoke(app, ["bench", "--quick", "--op", "ema_", "--limit", "0", "--json", str(file)])
    assert stopped.exit_code == 0, stopped.output
    found = json.loads(file.read_text())
    assert (found["cases"], found["left_out"]) == ([], [case.name for case in cases(["ema_"], quick=True)])
    assert "left out, for the time was over: ema_ in place" in stopped.output
