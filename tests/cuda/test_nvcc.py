"""The CUDA library as nvcc builds it: for three architectures and those to come, within its budget, on its own."""

from __future__ import annotations

import ctypes
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc"),
]
BUDGET = json.loads((Path(__file__).parent / "budget.json").read_text())
KERNEL = re.compile(
    r"Compiling entry function '(\w+)' for 'sm_(\d+)'\n.*\n *(\d+) bytes stack frame, (\d+) bytes spill stores, "
    r"(\d+) bytes spill loads\n.*Used (\d+) registers(?:.*?, (\d+) bytes smem)?"
)


@pytest.fixture(scope="module")
def built(build: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The library, and what ptxas said."""
    library = tmp_path_factory.mktemp("nvcc") / "_cuda.so"
    done = subprocess.run(build["by_nvcc"](library), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "warning" not in done.stdout + done.stderr
    return library, done.stdout + done.stderr


def test_no_kernel_spills_and_all_keep_within_the_budget(built: tuple[Path, str], build: dict[str, Any]) -> None:
    seen, over = set(), []
    for name, arch, stack, *spilled, registers, shared in KERNEL.findall(built[1]):
        kernel = next(kernel for kernel in BUDGET if re.search(rf"\d{kernel}(I|E)", name))
        seen.add((kernel, int(arch)))
        limit = BUDGET[kernel]
        if int(registers) > limit["registers"] or int(shared or 0) > limit["shared"] or {stack, *spilled} != {"0"}:
            over.append(f"{name} sm_{arch}: {registers} registers, {shared or 0} shared, {stack} stack, {spilled}")
    assert over == []
    assert seen == {(kernel, arch) for kernel in BUDGET for arch in build["ARCHITECTURES"]}


def test_holds_code_for_each_architecture_and_ptx(built: tuple[Path, str], build: dict[str, Any]) -> None:
    if shutil.which("cuobjdump") is None:
        pytest.skip("needs cuobjdump")

    def listed(option: str) -> set[str]:
        said = subprocess.run(["cuobjdump", option, built[0]], capture_output=True, text=True, check=True).stdout
        return set(re.findall(r"sm_(\d+)", said))

    assert listed("--list-elf") == set(map(str, build["ARCHITECTURES"]))
    assert listed("--list-ptx") == {str(build["ARCHITECTURES"][-1])}


def test_needs_no_cuda_library_and_exports_its_entries_alone(built: tuple[Path, str]) -> None:
    needed = subprocess.run(["ldd", built[0]], capture_output=True, text=True, check=True).stdout
    assert not re.search("libcuda|libtorch|libc10", needed)
    symbols = subprocess.run(
        ["nm", "-D", "--defined-only", built[0]], capture_output=True, text=True, check=True
    ).stdout
    exported = {line.split()[-1] for line in symbols.splitlines() if " T " in line}
    assert exported == {"flyk_winner_take_all", "flyk_project_topk", "flyk_winner_gram"}


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_an_entry_says_so(built: tuple[Path, str]) -> None:
    entry = ctypes.CDLL(str(built[0])).flyk_winner_take_all
    entry.restype = ctypes.c_char_p
    assert re.search("CUDA|device", entry(*[ctypes.c_int64(0)] * 11).decode())
