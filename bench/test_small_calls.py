"""What a call costs beyond its kernel, on inputs so small that the work itself is nothing; and a layer that decodes.

pytest bench/test_small_calls.py --benchmark-only --benchmark-columns=median

Each group has the bare kernel beside the operator: the difference is the checks, the dispatch and, with gradients,
autograd. The operator's extra_info holds it in microseconds, as the median difference of interleaved calls.
"""

from __future__ import annotations

import functools
import importlib
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from flyk import ops
from flyk.check import SUBJECTS, Case, arguments_of, cases_of
from flyk.nn import FlyLoRALinear

OPERATORS = [name for name in ops.__all__ if name != "ridge_solve"]  # whose smallest call is a call of LAPACK
RECORDED = ("project", "fly_lora", "masked_cross_entropy")  # whose backward is an operator
CALLS = ("kernel", "operator")


def small(operator: str) -> Case:
    """The first small case of a sparse matrix, with winners, bias and base where there could be."""
    for case in cases_of(operator):
        options = dict(case.options)
        full = all(options.get(name, True) for name in ("nnz", "k", "bias", "base"))
        exact = options.get("precision", "float32") == "float32"
        if full and exact and not case.gradient and min(case.sizes) > 1 and max(case.sizes) < 140:
            return replace(case, dtype=torch.float32, data="normal", layout="contiguous")
    raise LookupError(operator)


def kernel_of(name: str) -> Callable[..., Any]:
    """The function that serves an operator on the CPU, without its checks; `name` may end in _backward."""
    operator, backward = name.removesuffix("_backward"), name.endswith("_backward")
    try:
        module = importlib.import_module(f"flyk.backends.cpu.{operator}")
        return getattr(module, "backward" if backward else operator)
    except (ImportError, AttributeError):
        module = importlib.import_module(f"flyk.ops.{operator}")
        return module.reference_backward if backward else module.reference


class Recorder(TorchDispatchMode):
    """Keeps what a call hands to kernels."""

    def __init__(self) -> None:
        super().__init__()
        self.kernels: list[Callable[[], Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "flyk":
            given = [a.detach() if isinstance(a, Tensor) else a for a in args]
            self.kernels.append(functools.partial(kernel_of(func._schema.name.removeprefix("flyk::")), *given))
        return func(*args, **(kwargs or {}))


def bare(call: Callable[[], Any]) -> Callable[[], None]:
    """The kernels alone that a call runs, on the same arguments."""
    with Recorder() as recorder:
        call()
    kernels = recorder.kernels
    assert kernels

    def run() -> None:
        for kernel in kernels:
            kernel()

    return run


def microseconds(call: Callable[[], Any], times: int = 50) -> float:
    begin = time.perf_counter()
    for _ in range(times):
        call()
    return (time.perf_counter() - begin) / times * 1e6


def measure(benchmark: Any, call: Callable[[], Any], which: str) -> None:
    kernels = bare(call)
    if which == "operator" and benchmark.enabled:
        pairs = [(microseconds(call), microseconds(kernels)) for _ in range(20)]
        benchmark.extra_info["over_kernel_us"] = statistics.median(a - b for a, b in pairs)
    benchmark(call if which == "operator" else kernels)


@pytest.mark.parametrize("which", CALLS)
@pytest.mark.parametrize("operator", OPERATORS)
def test_forward(benchmark: Any, operator: str, which: str) -> None:
    benchmark.group = f"{operator}, no gradient"
    with torch.no_grad():
        measure(benchmark, functools.partial(getattr(ops, operator), **arguments_of(small(operator))), which)


@pytest.mark.parametrize("which", CALLS)
@pytest.mark.parametrize("operator", RECORDED)
def test_forward_and_backward(benchmark: Any, operator: str, which: str) -> None:
    benchmark.group = f"{operator}, forward and backward"
    arguments = arguments_of(small(operator))
    leaves = [arguments[name].requires_grad_() for name in SUBJECTS[operator].differentiable]
    function = getattr(ops, operator)
    grad = torch.ones_like(function(**arguments))
    measure(benchmark, lambda: torch.autograd.grad(function(**arguments), leaves, grad), which)


class Dense(nn.Module):
    """LoRA of the same rank beside a frozen linear, as eager PyTorch does it."""

    def __init__(self, base: nn.Linear, rank: int) -> None:
        super().__init__()
        self.base = base
        self.A = nn.Parameter(torch.randn(rank, base.in_features))
        self.B = nn.Parameter(torch.randn(base.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + 2.0 * ((x @ self.A.t()) @ self.B.t())


@pytest.mark.parametrize("which", ["base", "dense", "flyk"])
@pytest.mark.parametrize("rows", [1, 16])
@pytest.mark.parametrize("size", [1024, 4096])
def test_decoding_layer(benchmark: Any, size: int, rows: int, which: str) -> None:
    benchmark.group = f"layer {size} to {size}, {rows} rows"
    base, x = nn.Linear(size, size), torch.randn(rows, size)
    adapted = FlyLoRALinear(size, size, base=base).eval()
    nn.init.normal_(adapted.B)
    layer = {"base": base, "dense": Dense(base, adapted.r), "flyk": adapted}[which]
    with torch.no_grad():
        benchmark(layer, x)
