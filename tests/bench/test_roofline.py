"""The predictions: what the page says is what the model gives, and the model is consistent with itself."""

from __future__ import annotations

import dataclasses
import runpy
from pathlib import Path

import pytest
import torch

from flyk.bench import cases
from flyk.bench._case import Floor

ROOT = Path(__file__).parents[2]
model = runpy.run_path(str(ROOT / "bench" / "roofline.py"))
GPUS = {gpu.name: gpu for gpu in model["GPUS"]}


def test_page_is_what_the_command_writes_and_says_that_it_is_predicted() -> None:
    page = (ROOT / "docs" / "predictions.md").read_text()
    assert page == model["text"](cases())
    assert "Nothing on this page was measured." in page
    assert all(case.sizes in page for case in cases())


@pytest.mark.parametrize(
    ("floor", "precision", "seconds", "bound"),
    [
        (Floor(int(4.8e9), 0), "float32", 1e-3, "memory"),
        (Floor(0, int(67e9)), "float32", 1e-3, "arithmetic"),
        (Floor(int(4.8e9), int(494.5e9)), "tf32", 1e-3, "memory"),
        (Floor(int(4.8e9), int(4e12)), "bf16", 4e12 / 989.5e12, "arithmetic"),
        (Floor(1000, 1000), "float32", 5e-6, "launch"),
    ],
)
def test_time_is_the_longer_of_memory_and_arithmetic(floor: Floor, precision: str, seconds: float, bound: str) -> None:
    found = model["predict"](dataclasses.replace(cases()[0], floor=floor), GPUS["H200"], precision)
    assert (found.seconds, found.bound) == (pytest.approx(seconds), bound)


def test_more_of_everything_is_never_slower() -> None:
    for case in cases():
        assert model["predict"](case, GPUS["H200"]).seconds <= model["predict"](case, GPUS["H100"]).seconds
        for gpu in GPUS.values():
            times = [model["predict"](case, gpu, precision).seconds for precision in model["PRECISIONS"]]
            assert times == sorted(times, reverse=True)


def test_crossovers_cost_the_same_on_both_sides() -> None:
    d = m = 1000
    for gpu in GPUS.values():
        for precision in model["PRECISIONS"]:
            nnz, k = model["sparse_share"](gpu, precision) * d, model["scatter_share"](gpu, precision) * m
            assert nnz / gpu.words == pytest.approx(2 * d / gpu.rate(precision))
            assert k**2 / gpu.words == pytest.approx(m**2 / gpu.rate(precision))


def test_conflicts_are_those_of_random_words() -> None:
    banks = torch.randint(32, (20000, 32), generator=torch.Generator().manual_seed(0))
    fullest = torch.nn.functional.one_hot(banks, 32).sum(1).amax(1).double().mean()
    assert float(fullest) == pytest.approx(model["CONFLICTS"], abs=0.02)
