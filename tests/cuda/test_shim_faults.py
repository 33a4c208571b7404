"""The shim itself: it finds the races that it is there to find, and no others."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest
import torch
from torch import Tensor

# As in racy.cu: right or faulty, and what is said of the fault.
RIGHT = {0: "neighbour, barrier", 2: "beside, syncwarp", 5: "tally, atomic", 10: "collectives"}
FAULTY = {
    1: "neighbour without a barrier: a race",
    3: "beside with a shuffle alone: a race",
    4: "overwrite: a race",
    6: "tally without atomics: a race",
    8: "lone barrier: a barrier that only some",
    9: "beyond: index 64 of a shared array of 64",
}
ORDERS = (0, 1, 5)


@pytest.fixture(scope="session")
def racy(compile_shim) -> ctypes.CDLL:
    return compile_shim(Path(__file__).parent / "racy.cu")


def run(racy: ctypes.CDLL, which: int, order: int) -> tuple[Tensor, str]:
    source, target = torch.arange(64, dtype=torch.int32) * 3, torch.zeros(64, dtype=torch.int32)
    racy.flyk_shim_order(order)
    racy.flyk_run.restype = ctypes.c_char_p
    fault = racy.flyk_run(*map(ctypes.c_int64, (which, source.data_ptr(), target.data_ptr())))
    return target, (fault or b"").decode()


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("which", RIGHT, ids=RIGHT.get)
def test_right_kernels_pass_in_every_order(racy: ctypes.CDLL, which: int, order: int) -> None:
    source = torch.arange(64, dtype=torch.int32) * 3
    want = {0: source.roll(-1), 2: source.view(-1, 2).flip(1).flatten(), 5: torch.tensor(64).expand(64)}
    target, fault = run(racy, which, order)
    assert fault == ""
    assert torch.equal(target.long(), want.get(which, torch.ones(64)).long())


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("which", FAULTY, ids=FAULTY.get)
def test_faulty_kernels_are_stopped_in_every_order(racy: ctypes.CDLL, which: int, order: int) -> None:
    assert FAULTY[which].split(": ")[1] in run(racy, which, order)[1]


def test_a_race_in_global_memory_shows_in_the_order(racy: ctypes.CDLL) -> None:
    last = {int(run(racy, 7, order)[0][0]) for order in ORDERS}
    assert len(last) == len(ORDERS)
