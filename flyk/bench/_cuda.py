"""Measuring on a GPU: by events on the stream, with the host ahead of it and inputs that its cache no longer holds."""

from __future__ import annotations

import dataclasses
import functools
import gc
import itertools
import math
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from flyk import backends
from flyk.bench import _measure
from flyk.bench._case import Case, Inputs
from flyk.bench._ceilings import Ceilings
from flyk.bench._measure import Rival, bind, gradients

SIZES = tuple(2**n for n in range(20, 33, 2))  # bytes moved by a copy
SIDE = 8192  # of the square matrices whose product gives the rate
PRECISIONS = {"float32": "highest", "tf32": "high"}  # as torch.set_float32_matmul_precision calls them
MEMORY = 2**34  # bytes that the copies of a case's inputs may take ...
COPIES = 512  # ... and how many of them there may be
ROUNDS = (20, 0.5)  # of a case: at least so many, and so many seconds of them
LEAD = 0.05  # seconds that the device is kept busy at most while the host prepares a call
UNCOMPILED = "left out on a GPU: its compilation would take most of the eight minutes"


def rotation(size: int, cache: int) -> int:
    """How many copies of inputs of `size` bytes a run goes through, so that none is in a cache of `cache` bytes when
    its turn comes: the others fill it twice. As many as fit into MEMORY, and no more than COPIES.
    """
    wanted = 1 + math.ceil(2 * cache / max(1, size))
    return max(1, min(wanted, MEMORY // max(1, size), COPIES))


def size_of(inputs: Inputs) -> int:
    return sum(t.numel() * t.element_size() for t in inputs.values() if isinstance(t, Tensor))


def place(sets: list[Inputs], device: torch.device, cache: int) -> list[Inputs]:
    """The sets of inputs on the device, and copies of them until a round trip outgrows its cache."""
    placed = [{name: v.to(device) if isinstance(v, Tensor) else v for name, v in inputs.items()} for inputs in sets]
    missing = rotation(size_of(placed[0]), cache) - len(placed)
    return placed + [_copy(placed[i % len(placed)]) for i in range(missing)]


def _copy(inputs: Inputs) -> Inputs:
    return {name: v.clone() if isinstance(v, Tensor) else v for name, v in inputs.items()}


def elapsed(call: Callable[[], Any], lead: float) -> float:
    """Seconds that the device spends on a call which the host has `lead` seconds to prepare."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(int(min(lead, LEAD) * _cycles()))
    start.record()
    call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1e3


@functools.cache
def _cycles() -> float:
    """Of the sleeping kernel, in a second."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(1000)
    start.record()
    torch.cuda._sleep(10**7)
    end.record()
    end.synchronize()
    return 10**7 / (start.elapsed_time(end) / 1e3)


def prepared(call: Callable[[], Any]) -> float:
    """Seconds that the host takes to hand a call to an idle device."""
    synchronize()
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def synchronize() -> None:
    torch.cuda.synchronize()


def time_rounds(case: Case, rivals: dict[str, Rival], sets: list[Inputs], least: int, budget: float) -> None:
    """Fill in every rival's seconds on the device: rounds of one call each, each call on the next of the inputs."""
    live = {name: rival.function for name, rival in rivals.items() if rival.function is not None}
    calls = [{name: bind(case, f, case.inputs_of(name, inputs)) for name, f in live.items()} for inputs in sets]
    names = list(live)
    gc.collect()
    gc.disable()
    try:
        with gradients(case):
            host = {name: min(prepared(call) for _ in range(3)) for name, call in calls[0].items()}
            synchronize()
            start, done, turns = time.perf_counter(), 0, itertools.cycle(calls)
            while done < least or time.perf_counter() - start < budget:
                turn = done % len(names)
                for name in names[turn:] + names[:turn]:
                    spent = elapsed(next(turns)[name], 1.5 * host[name])
                    rivals[name].seconds.append(spent * (case.share if name == "published" else 1))
                done += 1
    finally:
        gc.enable()


def measure_on(device: torch.device) -> Callable[..., dict[str, Any]]:
    """`flyk.bench._measure.measure` for a GPU; torch.compile is left out."""
    cache = torch.cuda.get_device_properties(device).L2_cache_size
    placing = functools.partial(place, device=device, cache=cache)

    def measure(case: Case, limits: Ceilings, *, least: int, budget: float) -> dict[str, Any]:
        case = dataclasses.replace(case, uncompiled=case.uncompiled or UNCOMPILED)
        with torch.cuda.device(device):
            found = _measure.measure(case, limits, least=least, budget=budget, place=placing, time_rounds=time_rounds)
        torch.cuda.empty_cache()
        return found

    return measure


def ceilings(device: torch.device) -> Ceilings:
    """The best copy of each size, from memory that the cache does not hold, and the best float32 product."""
    cache = torch.cuda.get_device_properties(device).L2_cache_size
    copy = {}
    with torch.cuda.device(device):
        for size in SIZES:
            pairs = [torch.ones(2, size // 8, device=device) for _ in range(rotation(size, cache))]
            copy[size] = size / best([functools.partial(pair[0].copy_, pair[1]) for pair in pairs])
            del pairs
        rate = products(device)["float32"]
    torch.cuda.empty_cache()
    return Ceilings(copy, rate)


@functools.cache
def products(device: torch.device) -> dict[str, float]:
    """Operations a second of a large matrix product in each precision."""
    before, rates = torch.get_float32_matmul_precision(), {}
    a = torch.randn(SIDE, SIDE, device=device)
    try:
        for name, setting in PRECISIONS.items():
            torch.set_float32_matmul_precision(setting)
            rates[name] = 2 * SIDE**3 / best([lambda: torch.mm(a, a)])
    finally:
        torch.set_float32_matmul_precision(before)
    half = a.bfloat16()
    return rates | {"bf16": 2 * SIDE**3 / best([lambda: torch.mm(half, half)])}


def best(calls: list[Callable[[], Any]], least: int = 8) -> float:
    """The shortest of many calls, in turns."""
    calls[0]()
    lead = 1.5 * prepared(calls[0])
    return min(elapsed(calls[i % len(calls)], lead) for i in range(max(least, len(calls))))


def machine(device: torch.device) -> dict[str, Any]:
    """What of `flyk._machine.machine` is otherwise on a GPU, and what figures on one depend on besides."""
    about = torch.cuda.get_device_properties(device)
    live = [name for name in backends.BACKENDS if name != "cpu" and name not in backends.missing]
    return {
        "processor": about.name,
        "kernels": ", ".join(live) or "none: the reference in PyTorch",
        "multiprocessors": about.multi_processor_count,
        "cache_bytes": about.L2_cache_size,
        "memory_bytes": about.total_memory,
        "cuda": torch.version.cuda or torch.version.hip,
        "product_flop_per_second": products(device),
        "timing": "events on the stream; inputs in turns through more memory than the cache holds",
    }
