"""All that is to be done where there is a GPU, in under eight minutes: `make gpu`.

Builds in place for this Python, holds every operator to its reference on the device, sweeps the tuning file, and
measures; results go into bench/results/<gpu>-<date>.json. Each stage has its share of the time and is stopped after it;
what fails is said at the end, and the rest is done all the same. Needs torch, and triton and nvcc for their kernels.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
OUT = ROOT / "build" / "gpu"
CUDA_OPERATORS = "winner_take_all,project_topk,expand_gram_"  # those that the CUDA C++ kernels serve
FLYK = (sys.executable, "-m", "flyk")


@dataclass(frozen=True)
class Stage:
    """One command, the seconds that it may take, and what is set in its environment."""

    name: str
    seconds: int
    command: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)


def bench(backend: str, seconds: int, *more: str) -> Stage:
    # A case that has begun is let finish; the stage leaves it a third of its time.
    limits = ("--limit", str(seconds * 2 // 3), "--json", str(OUT / f"{backend}.json"))
    command = (*FLYK, "bench", "--device", "cuda", *limits, *more)
    return Stage(f"bench {backend}", seconds, command, serving(backend))


def serving(backend: str) -> dict[str, str]:
    """Triton serves beside the CPU's kernels, which make the inputs fast, unless another backend is forced."""
    return {"FLYK_BACKEND": "" if backend == "triton" else backend}


def check(backend: str, seconds: int, *more: str) -> Stage:
    return Stage(f"check {backend}", seconds, (*FLYK, "check", "--device", "cuda", *more), {"FLYK_BACKEND": backend})


# The CUDA kernels are built apart from the rest, which needs more of this Python than nvcc does.
STAGES = (
    Stage("build cpu", 70, (sys.executable, "setup.py", "--quiet", "build_ext", "--inplace")),
    Stage("build cuda", 60, (sys.executable, "csrc/cuda/build.py", "flyk/_cuda.so")),
    check("triton", 70),
    check("cuda", 35, "--op", CUDA_OPERATORS),
    Stage("sweep", 75, (sys.executable, "bench/sweep.py", "45"), serving("triton")),
    bench("triton", 110),
    bench("cuda", 60, "--op", CUDA_OPERATORS),
)


def run(stage: Stage) -> dict[str, Any]:
    """Run it, its output shown as it comes; how it ended."""
    print(f"== {stage.name}, at most {stage.seconds} s", flush=True)
    begin = time.monotonic()
    try:
        environment = {**os.environ, **stage.environment}
        code = subprocess.run(stage.command, cwd=ROOT, env=environment, timeout=stage.seconds, check=False).returncode
        ended = "passed" if code == 0 else f"failed with {code}"
    except subprocess.TimeoutExpired:
        ended = "stopped: its time was over"
    return {"stage": stage.name, "seconds": round(time.monotonic() - begin, 1), "ended": ended}


def merged(found: dict[str, dict[str, Any]], stages: list[dict[str, Any]]) -> dict[str, Any]:
    """One result of the several backends' ones: the first with its cases, those of the others beside them."""
    first, *others = found
    beside = {name: {"machine": found[name]["machine"], "cases": found[name]["cases"]} for name in others}
    return {**found[first], "backends": beside, "stages": stages}


def file_name(machine: dict[str, Any]) -> str:
    gpu = re.sub(r"[^a-z0-9]+", "-", machine["processor"].lower()).strip("-")
    return f"{gpu}-{machine['date'][:10]}.json"


def main() -> int:
    OUT.mkdir(parents=True, exist_ok=True)
    for old in OUT.glob("*.json"):
        old.unlink()
    ended = [run(stage) for stage in STAGES]
    results = (OUT / f"{backend}.json" for backend in ("triton", "cuda"))
    found = {path.stem: json.loads(path.read_text()) for path in results if path.exists()}
    for each in ended:
        print(f"{each['stage']:14} {each['seconds']:6.1f} s  {each['ended']}")
    if found:
        result = merged(found, ended)
        target = ROOT / "bench" / "results" / file_name(result["machine"])
        target.write_text(json.dumps(result, indent=1) + "\n")
        print(target.relative_to(ROOT))
    return int(any(each["ended"] != "passed" for each in ended))


if __name__ == "__main__":
    sys.exit(main())
