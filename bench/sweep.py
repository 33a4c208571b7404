"""Measures, on this machine's GPU, the choices that its file under flyk/tuning holds, and rewrites the file.

python bench/sweep.py SECONDS
"""

from __future__ import annotations

import contextlib
import functools
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from flyk import backends, ops, tuning
from flyk.backends.cuda import _library, expand_gram_
from flyk.bench import _cuda, cases
from flyk.bench._measure import bind, fresh, gradients, input_sets

CUDA = torch.device("cuda")
BETTER = 0.97  # of the time before, or a change is not worth having
LIMITS = {"num_warps": (1, 16), "num_stages": (1, 5)}
DENSITIES = (0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4)
ROWS, FEATURES, M = 1024, 768, 10000  # of the update by which scattering and panels are compared

Row = dict[str, int]


def neighbours(row: Row) -> Iterator[Row]:
    """The configuration with one of its options moved by one step; sizes of blocks, which change results, stay."""
    for name in LIMITS.keys() & row.keys():
        low, high = LIMITS[name]
        steps = (row[name] // 2, row[name] * 2) if name == "num_warps" else (row[name] - 1, row[name] + 1)
        yield from (row | {name: value} for value in steps if low <= value <= high)


def improve(rows: list[Row], seconds: Callable[[], float], over: Callable[[], bool]) -> None:
    """Each row in turn is replaced, in place, by its best neighbour while that is faster and time is left."""
    best = seconds()
    for at, row in enumerate(rows):
        moved = True
        while moved and not over():
            moved, start = False, rows[at]
            for candidate in neighbours(start):
                rows[at] = candidate
                found = seconds()
                if found < BETTER * best:
                    best, row, moved = found, candidate, True
            rows[at] = row


def crossover(faster: Callable[[float], bool]) -> float:
    """The largest of DENSITIES up to which all are `faster`; 0 if the first is not."""
    found = 0.0
    for density in DENSITIES:
        if not faster(density):
            break
        found = density
    return found


def scattering_is_faster(density: float) -> bool:
    """expand_gram_ with that share of winners: by the kernel, or by the reference's panels."""
    draw = torch.Generator().manual_seed(0)
    h, values = torch.randn(ROWS, FEATURES, generator=draw).to(CUDA), torch.randn(M, FEATURES, generator=draw).to(CUDA)
    G, Q, labels = torch.zeros(M, M, device=CUDA), torch.zeros(M, 10, device=CUDA), torch.arange(ROWS, device=CUDA) % 10
    arguments = (G, Q, h, values, None, labels, "relu", int(density * M))
    ways = (expand_gram_.scatter, expand_gram_.reference)
    scatter, panels = (_cuda.best([functools.partial(way, *arguments)]) for way in ways)
    return scatter < panels


@contextlib.contextmanager
def noted() -> Iterator[set[str]]:
    """Within, the kernels whose configurations are looked up are noted, and none is remembered."""
    looked_up, kept = set(), tuning.configuration
    look_up = kept.__wrapped__

    def look(architecture: str, kernel: str, size: int) -> Row:
        looked_up.add(kernel)
        return look_up(architecture, kernel, size)

    tuning.configuration = look
    try:
        yield looked_up
    finally:
        tuning.configuration = kept
        kept.cache_clear()


def calls_of(op: str) -> list[Callable[[], Any]]:
    """The operator's cases on the device."""
    made = []
    for case in cases([op]):
        (inputs,) = _cuda.place(input_sets(case)[:1], CUDA, cache=0)
        call = bind(case, functools.partial(case.ours, ops), fresh(case, inputs))

        def graded(case=case, call=call) -> Any:
            with gradients(case):
                return call()

        made.append(graded)
    return made


def timed(calls: list[Callable[[], Any]]) -> float:
    """Their times together; infinite where a configuration asks for more than the device has."""
    try:
        return sum(_cuda.best([call]) for call in calls)
    except Exception as error:  # triton names a class of its own for each limit
        print(f"  left: {type(error).__name__}")
        return float("inf")


def main(budget: float) -> Path:
    end = time.monotonic() + budget
    architecture = tuning.gpu(torch.cuda.current_device())
    path = Path(tuning.__file__).parent / f"{architecture}.json"
    file: dict[str, Any] = tuning.load(architecture)
    with contextlib.suppress(backends.Unavailable):
        _library.load()
        share = crossover(scattering_is_faster)
        file["winner_gram"] = [{"scatter_percent": round(100 * share)}]
        print(f"expand_gram_: scattering is faster up to {share:.0%} winners")
    if "triton" in backends.BACKENDS and "triton" not in backends.missing:
        for op in ops.__all__:
            if time.monotonic() > end:
                print(f"{op}: left as it is, for the time is over")
                continue
            with noted() as kernels:
                calls = calls_of(op)
                timed(calls)
                for kernel in sorted(kernels):
                    before = json.dumps(file[kernel])
                    improve(file[kernel], lambda calls=calls: timed(calls), lambda: time.monotonic() > end)
                    print(f"{op}: {kernel} {'stays' if json.dumps(file[kernel]) == before else 'is changed'}")
    path.write_text(json.dumps(file, indent=2) + "\n")
    return path


if __name__ == "__main__":
    print(main(float(sys.argv[1])))
