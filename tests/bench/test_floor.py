"""Floors against numbers counted by hand, and how they turn into seconds."""

from __future__ import annotations

import pytest

from flyk._machine import machine
from flyk.bench import (
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
from flyk.bench._case import Floor
from flyk.bench._ceilings import SIZES, Ceilings, ceilings

COUNTED = [
    # x 2x3 and y 2x4 in float32, R 4x3; a product and a sum for each of 2x4x3.
    (project.floor(2, 3, 4, None), 4 * (6 + 8 + 12), 48),
    # The same with two entries a row of R, each a value and an int32 column.
    (project.floor(2, 3, 4, 2), 4 * (6 + 8) + 64, 32),
    # Two rows of 5 read, 2 winners of 4 bytes and indices of 8 a row written.
    (winner_take_all.floor(2, 5, 2), 40 + 48, 0),
    (project_topk.floor(2, 3, 4, 2, 1), 24 + 64 + 24, 32),
    # x 2x3, base and out 2x4; A 5 rows of 2 values and columns, B 4x5. A row: 5x2 and 4x1 products and sums.
    (fly_lora.floor(2, 3, 4, 5, 1, 2, False), 4 * (6 + 8 + 8) + 80 + 80, 2 * 2 * (10 + 4)),
    # Backward besides: grad 2x4 read, grad_x 2x3 and grad_B 4x5 written, winners written and read, A and B read.
    (fly_lora.floor(2, 3, 4, 5, 1, 2, True), 248 + 4 * (8 + 6) + 2 * 2 * 12 + 160 + 80, 56 + 2 * 2 * (4 + 2 + 4)),
    # The triangle of 10x10 read and written (half of 800 bytes), Q 10x2 read and written, phi 3x10 read.
    (gram_.floor(3, 10, 2), 400 + 160 + 120, 300 + 30),
    # h 3x4, R 10x4; to expand 2x4x10 a row, the triangle 100 a row, Q 10.
    (expand_gram_.floor(3, 4, 10, 2, None), 48 + 160 + 400 + 160, 3 * (80 + 100 + 10)),
    (expand_gram_.floor(3, 4, 10, 2, 5), 48 + 160 + 400 + 160, 3 * (80 + 25 + 5)),
    (expand_gram_.floor(3, 4, 10, 2, 5, nnz=2), 48 + 160 + 400 + 160, 3 * (40 + 25 + 5)),
    # Half of 30x30 and twice 30x2; 30³/3 and two triangular solves of 30² flop for each target.
    (ridge_solve.floor(30, 2), 1800 + 480, 9000 + 3600),
    # Two heads of 6 read and written, one read.
    (ema_.floor(2, 6), 5 * 24, 36),
    # h 4x3 and p 4x5; of the 2 classes seen, the online and two experts' two heads of 2x3 and 2; ids, seen; 3 heads of
    # 2x3 a row.
    (ensemble.floor(4, 3, 2, 2, 5, 2), 4 * (12 + 20 + 5 * 8) + 32 + 5, 4 * 3 * 2 * 3 * 2),
    # Three rows of 2 present columns, three int64 targets; then again, and a 3x7 gradient.
    (masked_cross_entropy.floor(3, 7, 2, False), 24 + 24, 0),
    (masked_cross_entropy.floor(3, 7, 2, True), 48 + 48 + 84, 0),
]


@pytest.mark.parametrize(("floor", "moved", "flop"), COUNTED)
def test_counted_by_hand(floor: Floor, moved: int, flop: int) -> None:
    assert (floor.bytes, floor.flop) == (moved, flop)


def test_absent_experts_are_not_read() -> None:
    assert ensemble.floor(4, 3, 100, 2, 2, 2) == ensemble.floor(4, 3, 4, 2, 2, 2)


@pytest.mark.parametrize(("moved", "flop", "seconds"), [(50, 0, 5), (101, 0, 20.2), (5000, 0, 1000), (50, 20, 10)])
def test_seconds_are_the_longer_of_moving_and_computing(moved: int, flop: int, seconds: float) -> None:
    limits = Ceilings({100: 10.0, 1000: 5.0}, flop_rate=2.0)
    assert Floor(moved, flop).seconds(limits) == pytest.approx(seconds)


def test_ceilings_are_those_of_a_computer() -> None:
    found = ceilings()
    assert set(found.copy) == set(SIZES)
    assert all(1e6 < rate < 1e14 for rate in (*found.copy.values(), found.flop_rate))


def test_machine_tells_what_figures_depend_on() -> None:
    about = machine()
    wanted = {"flyk", "torch", "python", "system", "processor", "cores", "threads", "kernels", "date"}
    assert wanted <= set(about)
    assert all(about[name] for name in wanted)
