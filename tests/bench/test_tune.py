"""Crossovers: where two sets of times cross, the dispatch forced both ways, and the file they are kept in."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from flyk import backends
from flyk.bench import expand_gram_, modules
from flyk.bench._tune import Crossover, crossing, find, write

needs_kernels = pytest.mark.skipif("cpu" in backends.missing, reason="the extension was not built")
SWEEP = (1.0, 2.0, 4.0, 8.0)


@pytest.mark.parametrize(
    ("below", "above", "found"),
    [
        ((1, 2, 4, 8), (3, 3, 3, 3), 3.0),  # straight lines in the logarithms: equal at 3
        ((1, 1, 1, 1), (2, 2, 2, 2), 8.0),  # below to the end
        ((2, 2, 2, 2), (1, 1, 1, 1), 0.0),  # above from the start
        ((1, 1, 9, 8), (3, 3, 3, 3), 2.83),  # as far from 2 as from 4, in the logarithms
        ((1, 4, 1, 8), (3, 3, 3, 3), 5.77),  # one measurement was disturbed
    ],
)
def test_crossing(below: tuple[float, ...], above: tuple[float, ...], found: float) -> None:
    assert crossing(SWEEP, below, above) == pytest.approx(found, rel=1e-2)


@needs_kernels
def test_both_ways_are_the_dispatch_with_its_constant_set(monkeypatch: pytest.MonkeyPatch) -> None:
    from flyk.backends.cpu import expand_gram_ as dispatch

    tuned, seen = dispatch.SCATTER_DENSITY, []
    case = expand_gram_.case(2, 8, 40, k=4, classes=3)

    def ours(ops, G):
        seen.append(dispatch.SCATTER_DENSITY)
        time.sleep(0.001 if dispatch.SCATTER_DENSITY > 0 else 0.005)

    object.__setattr__(case, "ours", ours)
    found = find(Crossover("scatter_density", SWEEP, lambda size: case), least=2, budget=0.0)
    assert set(seen) == {0.0, float("inf")}
    assert tuned == dispatch.SCATTER_DENSITY
    assert (found["op"], found["name"], found["crossover"]) == ("expand_gram_", "scatter_density", 8.0)
    assert all(0 < b < a for b, a in zip(found["below"], found["above"], strict=True))


@needs_kernels
def test_every_crossover_is_one_that_the_dispatch_reads() -> None:
    import importlib

    from flyk.backends.cpu._library import crossovers

    listed = [
        (module.__name__.rpartition(".")[2], c) for module in modules() for c in getattr(module, "CROSSOVERS", ())
    ]
    assert listed
    for op, crossover in listed:
        constant = getattr(importlib.import_module(f"flyk.backends.cpu.{op}"), crossover.name.upper())
        assert constant == crossovers(op)[crossover.name]
        assert list(crossover.sweep) == sorted(crossover.sweep)


def test_writing_keeps_what_else_a_file_holds(tmp_path: Path) -> None:
    file = tmp_path / "avx2.json"
    file.write_text('{"a": {"x": 1, "y": 2}, "b": {"z": 3}}')
    write([{"op": "a", "name": "x", "crossover": 5.0}, {"op": "c", "name": "w", "crossover": 6.0}], file)
    assert json.loads(file.read_text()) == {"a": {"x": 5.0, "y": 2}, "b": {"z": 3}, "c": {"w": 6.0}}
