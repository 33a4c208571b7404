"""Scaling: what is recorded of a curve, that nothing wrong is timed, and what a figure shows."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import torch

from flyk import ops
from flyk.bench import ema_, modules
from flyk.bench._ceilings import Ceilings
from flyk.bench._scaling import Curve, chosen, draw, measured

LIMITS = {1: Ceilings({2**20: 1e10}, 1e11), 2: Ceilings({2**20: 2e10}, 2e11)}
CURVE = Curve("classes", (2, 3), {"d": 5})
CASES = [ema_.case(2, 5), ema_.case(3, 5)]


def test_a_curve_has_a_point_for_each_size_and_number_of_threads(threads: Callable[[int], None]) -> None:
    threads(2)
    found = measured(CURVE, CASES, LIMITS, least=2, budget=0.0)
    assert (found["op"], found["what"], found["axis"], found["fixed"]) == ("ema_", "in place", "classes", {"d": 5})
    assert [(p["value"], p["threads"]) for p in found["points"]] == [(2, 1), (2, 2), (3, 1), (3, 2)]
    assert [p["floor"] for p in found["points"]] == [200 / 1e10, 200 / 2e10, 300 / 1e10, 300 / 2e10]
    assert all(p["eager"] > 0 and p["flyk"] > 0 and p["fault"] == "" for p in found["points"])
    assert torch.get_num_threads() == 2


def test_a_wrong_point_has_no_times() -> None:
    def wrong(namespace, bank, online, decays):
        ema_.ours(namespace, bank, online, decays)
        return bank.mul_(1.01) if namespace is ops else bank

    spoiled = [CASES[0], dataclasses.replace(CASES[1], ours=wrong)]
    points = measured(CURVE, spoiled, {1: LIMITS[1]}, least=1, budget=0.0)["points"]
    assert points[0]["flyk"] > 0
    assert points[1]["fault"].startswith("flyk is off by")
    assert points[1]["flyk"] is points[1]["eager"] is None


def test_every_curve_grows_and_starts_from_cases_of_its_module() -> None:
    found = chosen(())
    assert {cases[0].op for _, cases in found} == {
        m.__name__.rpartition(".")[2] for m in modules() if hasattr(m, "SCALING")
    }
    for curve, cases in found:
        assert list(curve.values) == sorted(set(curve.values))
        assert len({case.sizes for case in cases}) == len(cases)


def test_a_figure_of_each_operator(tmp_path: Path) -> None:
    points = [
        {"value": v, "threads": t, "fault": "", "eager": v / t, "flyk": v / t / 2, "floor": v / t / 3}
        for v in (1, 10, 100)
        for t in (1, 2)
    ]
    points[4]["fault"] = "flyk is off by 1"
    points[4] |= {"eager": None, "flyk": None}
    about = {"what": "in place", "axis": "rows", "fixed": {"d": 5}, "points": points}
    curves = [about | {"op": "ema_"}, about | {"op": "ema_", "axis": "d"}, about | {"op": "project"}]
    machine = {"flyk": "0", "torch": "2", "processor": "P"}
    paths = draw({"machine": machine, "curves": curves}, tmp_path / "all.svg")
    assert paths == [tmp_path / "all-ema_.svg", tmp_path / "all-project.svg"]
    text = paths[0].read_text()
    for label in ("flyk, 1 thread", "flyk, 2 threads", "eager, 1 thread", "floor, 2 threads"):
        assert text.count(f"<!-- {label} -->") == 2  # a comment beside the glyphs, in each of two panels
