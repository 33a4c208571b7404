"""Which kernels serve, and how they live in a process: forced backends, instruction sets, threads, forks."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from flyk import backends, ops
from flyk.check import SUBJECTS, serving

ROOT = Path(__file__).parents[1]
csrc = pytest.mark.skipif("cpu" in backends.missing, reason=f"csrc does not serve: {backends.missing.get('cpu')}")

SERVING = """
import warnings
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    {before}
    import flyk
from flyk.check import SUBJECTS, serving
served = sorted(name for name in SUBJECTS if serving(name, "cpu") == "cpu")
print(len([w for w in caught if "flyk" in str(w.message)]), served)
"""
HIDDEN = """
    import sys
    class Hide:
        def find_spec(self, name, path=None, target=None):
            if name == "flyk._C":
                raise ImportError("hidden by the test")
    sys.meta_path.insert(0, Hide())
"""
CHECK = """
import flyk
from flyk.check import cases_of, check_case
from flyk.backends.cpu._library import _C
results = [check_case(c) for name in {operators!r} for c in cases_of(name, quick={quick})]
print(_C.isa(), len(results), *[str(r) for r in results if not r.passed], sep="\\n")
"""


def python(code: str, fails: bool = False, **environment: str) -> str:
    """What another process prints, or the error it ends with."""
    clean = {k: v for k, v in os.environ.items() if k not in ("FLYK_BACKEND", "FLYK_CPU")}
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", code]
    ran = subprocess.run(command, cwd=ROOT, env=clean | environment, capture_output=True, text=True, check=False)
    assert (ran.returncode != 0) == fails, ran.stdout + ran.stderr
    return (ran.stderr if fails else ran.stdout).strip()


def test_reference_can_be_forced() -> None:
    assert python(SERVING.format(before=""), FLYK_BACKEND="reference") == "0 []"


@csrc
def test_cpu_can_be_forced_and_is_the_default() -> None:
    forced = python(SERVING.format(before=""), FLYK_BACKEND="cpu")
    assert forced == python(SERVING.format(before=""))
    assert forced.startswith("0 [")
    for name in ("winner_take_all", "project", "project_topk", "fly_lora", "expand_gram_"):
        assert repr(name) in forced


def test_an_unknown_backend_is_refused() -> None:
    error = python("import flyk", fails=True, FLYK_BACKEND="abacus").splitlines()[-1]
    assert error.startswith("ValueError: FLYK_BACKEND must be one of reference, cpu")
    assert "'abacus'" in error


def test_without_the_extension_plain_pytorch_serves_with_one_warning() -> None:
    assert python(SERVING.format(before=HIDDEN)) == "1 []"


def test_a_forced_backend_that_is_not_there_is_an_error() -> None:
    error = python(SERVING.format(before=HIDDEN), fails=True, FLYK_BACKEND="cpu").splitlines()[-1]
    assert "CPU kernels are not there" in error
    assert "hidden by the test" in error


@csrc
def test_what_serves_each_operator_is_said_truly() -> None:
    said = importlib.import_module("flyk.backends.cpu").SERVED
    for name in SUBJECTS:
        assert said.get(name, "reference").startswith("reference") == (serving(name, "cpu") == "reference"), name


@csrc
def test_an_unknown_instruction_set_is_refused_at_import() -> None:
    error = python("import flyk", fails=True, FLYK_CPU="mmx").splitlines()[-1]
    assert error.startswith("ValueError: FLYK_CPU must be one of")
    assert "baseline" in error
    assert error.endswith("got mmx")


@csrc
@pytest.mark.slow
@pytest.mark.parametrize("level", ["baseline", "avx2", "avx512", "amx"])
def test_every_instruction_set_is_right(level: str) -> None:
    if level not in importlib.import_module("flyk.backends.cpu").INSTRUCTION_SETS:
        pytest.skip(f"this processor has no {level}")
    operators = [name for name in SUBJECTS if serving(name, "cpu") == "cpu"]
    isa, count, *faults = python(CHECK.format(operators=operators, quick=False), FLYK_CPU=level).splitlines()
    assert isa == level
    assert int(count) > 200
    assert faults == []


def thread_pools() -> set[str]:
    """The OpenMP runtimes mapped into this process."""
    maps = Path("/proc/self/maps")
    if not maps.exists():
        pytest.skip("needs /proc")
    files = {line.split()[-1] for line in maps.read_text().splitlines() if "/" in line}
    return {file for file in files if any(name in Path(file).name for name in ("libgomp", "libomp", "libiomp"))}


def work(rows: int = 4096) -> list[torch.Tensor]:
    """Enough for every kernel of csrc to share among threads."""
    x = torch.randn(rows, 96, generator=torch.Generator().manual_seed(0), requires_grad=True)
    values, B = torch.ones(32, 8), torch.ones(64, 32, requires_grad=True)
    indices = torch.arange(8).expand(32, 8) + torch.arange(32)[:, None]
    out = ops.fly_lora(x, None, values, indices, B, 8)
    out.sum().backward()
    G, Q = torch.zeros(32, 32), torch.zeros(32, 2)
    ops.expand_gram_(G, Q, x.detach(), values, indices, torch.arange(rows) % 2, k=4)
    winners = ops.winner_take_all(x.detach(), 5)
    assert x.grad is not None
    assert B.grad is not None
    return [out.detach(), x.grad, B.grad, G.tril(), Q, *winners]


def same(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def tasks() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


@csrc
def test_one_pool_of_threads_that_follows_torch(threads: Callable[[int], None]) -> None:
    code = (
        "import sys, torch; sys.path.insert(0, 'tests'); import test_backends as t; t.same([], []); "
        "torch.set_num_threads({}); before = t.tasks(); t.work(); print(len(t.thread_pools()), t.tasks() - before)"
    )
    assert python(code.format(1)).split() == ["1", "0"]  # one thread: none was started
    pools, started = map(int, python(code.format(3)).split())
    assert pools == 1
    assert started >= 2  # beside the one there was; autograd has one of its own


def test_threads_calling_at_once_get_their_own_results() -> None:
    want, found = work(), {}

    def call(i: int) -> None:
        found[i] = work()

    callers = [threading.Thread(target=call, args=(i,)) for i in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert len(found) == 4
    assert all(same(got, want) for got in found.values())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_runs_kernels() -> None:
    """The pool's threads do not survive a fork, its locks do: a child that waited for them would hang."""
    code = """
import os, sys, torch; sys.path.insert(0, "tests")
import test_backends as t
from flyk import ops
y = torch.randn(4096, 96)
want = ops.winner_take_all(y, 5)
if (child := os.fork()) == 0:
    got = ops.winner_take_all(y, 5)
    os._exit(0 if t.same(list(got), list(want)) else 1)
for _ in range(300):
    done, status = os.waitpid(child, os.WNOHANG)
    if done:
        break
    __import__("time").sleep(0.1)
else:
    os.kill(child, 9)
print("hung" if not done else os.waitstatus_to_exitcode(status))
"""
    assert python(code) == "0"
