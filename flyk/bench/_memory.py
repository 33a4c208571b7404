"""Memory: what each operator takes at its peak beyond its inputs, and what a layer keeps for its backward.

The peak is the process's own (the kernel's high-water mark of resident memory), so that csrc's scratch memory, torch's
tensors and a library's buffers all count. It is taken in a child process whose allocator gives back to the system what
is freed (`ENVIRONMENT`), or memory that was freed earlier would be taken again unseen.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flyk._machine import RESET, forget_peak_memory, resident
from flyk.bench import cases
from flyk.bench._case import Case
from flyk.bench._measure import RIVALS, bind, fresh, gradients, rivals_of
from flyk.bench.fly_lora import published as published_fly_lora
from flyk.nn import FlyLoRALinear
from flyk.ops.project import dense

# glibc maps each block of 64 KiB or more on its own and unmaps it when freed; MKL keeps no buffers.
ENVIRONMENT = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "0", "MKL_DISABLE_FAST_MM": "1"}
SEQUENCE, WIDTHS, RANK, WINNERS = 2048, (768, 2048, 4096), 32, 8  # of the table of what is kept


def measured(operators: Sequence[str], *, quick: bool) -> list[dict[str, Any]]:
    """The peaks of each case's rivals, measured in a child process.

    Raises:
        ValueError: there is no such operator, or the system doesn't tell a process's peak, as Linux does.
    """
    if not RESET.exists():
        raise ValueError("--memory needs Linux, which tells and resets the peak of a process's memory under /proc/self")
    cases(operators, quick=quick)  # refuses a wrong name here
    script = (
        "import json, sys; from flyk.bench._memory import peaks; print(json.dumps(peaks(**json.loads(sys.argv[1]))))"
    )
    asked = json.dumps({"operators": list(operators), "quick": quick})
    done = subprocess.run(
        [sys.executable, "-c", script, asked], env={**os.environ, **ENVIRONMENT}, stdout=subprocess.PIPE, check=True
    )
    return json.loads(done.stdout.splitlines()[-1])


def peaks(operators: Sequence[str], quick: bool) -> list[dict[str, Any]]:
    return [_peaks(case) for case in cases(operators, quick=quick)]


def _peaks(case: Case) -> dict[str, Any]:
    inputs = case.inputs(torch.Generator().manual_seed(0))
    rivals = {}
    for name, rival in rivals_of(case, inputs, RIVALS).items():
        if rival.function is None:
            rivals[name] = {"absent": rival.absent}
            continue
        given = fresh(case, case.inputs_of(name, inputs))
        with gradients(case):
            rivals[name] = {"peak": peak(bind(case, rival.function, given))}
        del given
    size = sum(tensor.nbytes for tensor in inputs.values() if isinstance(tensor, Tensor))
    return {"op": case.op, "what": case.what, "sizes": case.sizes, "inputs": size, "rivals": rivals}


def peak(call: Callable[[], Any]) -> int:
    """Bytes that a call takes at its peak beyond what was there, its result among them; after one call to warm up."""
    call()
    gc.collect()
    forget_peak_memory()
    before = resident("VmRSS")
    result = call()
    found = resident("VmHWM") - before
    del result
    return max(0, found)


class _Held:
    """A tensor that autograd keeps, for as long as it does."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


def kept(forward: Callable[[], Any], frozen: Sequence[Tensor]) -> int:
    """Bytes that autograd keeps from a forward for its backward, without `frozen`: parameters and fixed matrices."""
    held: weakref.WeakSet[_Held] = weakref.WeakSet()

    def pack(tensor: Tensor) -> _Held:
        holder = _Held(tensor)
        held.add(holder)
        return holder

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda holder: holder.tensor):
        out = forward()
    gc.collect()
    storages = {h.tensor.untyped_storage().data_ptr(): h.tensor.untyped_storage().nbytes() for h in held}
    for tensor in frozen:
        storages.pop(tensor.untyped_storage().data_ptr(), None)
    del out
    return sum(storages.values())


def activations(sequence: int = SEQUENCE, widths: Sequence[int] = WIDTHS) -> list[dict[str, Any]]:
    """What one adapted layer of width d to d keeps for its backward in float32, its frozen linear included."""
    return [{"sequence": sequence, "d": d, "r": RANK, "k": WINNERS, "kept": _layer(sequence, d)} for d in widths]


def _layer(sequence: int, d: int) -> dict[str, int]:
    x = torch.randn(sequence, d, requires_grad=True)  # of the layer before, which wants its gradient
    base = nn.Linear(d, d)
    layer = FlyLoRALinear(d, d, r=RANK, k=WINNERS, base=base)
    A = dense(layer.projection.values, layer.projection.indices, d)
    bias, B, trained = layer.get_buffer("routing_bias"), layer.B, A.clone().requires_grad_()
    fixed = [*layer.parameters(), *layer.buffers(), *layer.projection.buffers(), A, trained]

    def low_rank(down: Tensor) -> Tensor:
        return base(x) + layer.scale * F.linear(F.linear(x, down), B)

    return {
        "LoRA": kept(lambda: low_rank(trained), fixed),
        "LoRA-FA": kept(lambda: low_rank(A), fixed),
        "published FlyLoRA": kept(lambda: published_fly_lora(x, base(x), A, B, WINNERS, bias, layer.scale), fixed),
        "flyk": kept(lambda: layer(x), fixed),
    }
