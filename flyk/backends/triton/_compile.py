"""Every kernel compiled ahead of time, for GPUs that need not be there, as its operator would launch it.

The operators' own `examples()` are run on tensors without data and their launches noted down (`_launch.recorded`), so
nothing is compiled that is not launched, and nothing has to be described twice.
"""

from __future__ import annotations

import importlib
import re
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from flyk import tuning
from flyk.backends.triton import BACKWARDS, COMPILED
from flyk.backends.triton._launch import Launch, recorded

TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "sm_100": GPUTarget("cuda", 100, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
    tuning.SMALL: GPUTarget("cuda", 86, 32),
}
TYPES = {
    **{torch.float32: "fp32", torch.float64: "fp64", torch.bfloat16: "bf16", torch.float16: "fp16"},
    **{torch.int64: "i64", torch.int32: "i32", torch.bool: "i1"},
}
OPTIONS = ("num_warps", "num_stages", "enable_fp_fusion")


@dataclass(frozen=True)
class Compiled:
    """One kernel in one configuration for one architecture.

    Args:
        operator, kernel: whose it is.
        architecture: a name in TARGETS.
        dtype: of its first tensor.
        configuration: block sizes, num_warps and num_stages.
        registers: 32-bit registers of a thread (vector registers on AMD).
        spills: bytes of a thread's stack, where registers go that did not fit; 0 is what is wanted.
        shared: bytes of shared memory of a block.
        code: the assembly, and Triton's own form `ttir`.
    """

    operator: str
    kernel: str
    architecture: str
    dtype: str
    configuration: dict[str, int]
    registers: int
    spills: int
    shared: int
    code: str
    ttir: str


def launches(operator: str, architecture: str) -> list[Launch]:
    """What the operator's examples launch there, each specialisation of a kernel once."""
    module = importlib.import_module(f"flyk.backends.triton.{operator}")
    with recorded(architecture) as found:
        for arguments in module.examples():
            getattr(module, operator)(*arguments)
        if operator in BACKWARDS:
            for arguments in module.backward_examples():
                module.backward(*arguments)
    return list({_key(launch): launch for launch in found}.values())


def compiled(architecture: str, operators: tuple[str, ...] = COMPILED) -> Iterator[Compiled]:
    """Every kernel of the operators in every configuration for one architecture."""
    for operator in operators:
        for launch in launches(operator, architecture):
            yield _compile(operator, launch, architecture)


def _key(launch: Launch) -> Any:
    signature, constants, attributes = _specialised(launch)
    return (
        launch.kernel.__name__,
        *(tuple(sorted(d.items(), key=repr)) for d in (signature, constants)),
        repr(attributes),
    )


def _specialised(launch: Launch) -> tuple[dict[str, Any], dict[str, Any], dict[tuple[int], Any]]:
    """Types, constants and divisibility of the arguments, as a launch on contiguous, aligned tensors has them."""
    signature: dict[str, Any] = {}
    constants: dict[str, Any] = {name: v for name, v in launch.constants.items() if name not in OPTIONS}
    attributes: dict[tuple[int], Any] = {}
    for at, (parameter, value) in enumerate(zip(launch.kernel.params, launch.args, strict=False)):
        name, free = parameter.name, not parameter.do_not_specialize
        if value is None or (free and isinstance(value, int) and value == 1):
            constants[name] = value
        elif isinstance(value, Tensor):
            signature[name] = f"*{TYPES[value.dtype]}"
            attributes[(at,)] = [["tt.divisibility", 16]]
        elif isinstance(value, float):
            signature[name] = "fp32"
        elif isinstance(value, tuple):  # of numbers
            signature[name] = ("fp32",) * len(value)
        else:
            signature[name] = "i32" if -(2**31) <= value < 2**31 else "i64"
            if free and value % 16 == 0:
                attributes[(at,)] = [["tt.divisibility", 16]]
    return signature | dict.fromkeys(constants, "constexpr"), constants, attributes


def _compile(operator: str, launch: Launch, architecture: str) -> Compiled:
    signature, constants, attributes = _specialised(launch)
    # A signature is in the order of the parameters.
    signature = {p.name: signature[p.name] for p in launch.kernel.params}
    options = {name: value for name, value in launch.constants.items() if name in OPTIONS}
    source = ASTSource(launch.kernel, signature, constexprs=constants, attrs=attributes)
    built = triton.compile(source, target=TARGETS[architecture], options=options)
    if "cubin" in built.asm:
        code, (registers, spills) = built.asm["ptx"], _cuda_resources(built.asm["cubin"])
    else:
        code, (registers, spills) = built.asm["amdgcn"], _amd_resources(built.asm["amdgcn"])
    return Compiled(
        operator,
        launch.kernel.__name__,
        architecture,
        next(TYPES[a.dtype] for a in launch.args if isinstance(a, Tensor)),
        {name: v for name, v in launch.constants.items() if type(v) is int},
        registers,
        spills,
        built.metadata.shared,
        code,
        built.asm["ttir"],
    )


def _cuda_resources(cubin: bytes) -> tuple[int, int]:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [knobs.nvidia.cuobjdump.path, "-res-usage", file.name]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return _number(r"REG:(\d+)", said), _number(r"STACK:(\d+)", said)


def _amd_resources(code: str) -> tuple[int, int]:
    return _number(r"\.vgpr_count:\s*(\d+)", code), _number(r"\.private_segment_fixed_size:\s*(\d+)", code)


def _number(pattern: str, text: str) -> int:
    found = re.search(pattern, text)
    assert found, f"{pattern} is not in what the compiler said"
    return int(found[1])
