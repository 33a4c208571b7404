"""csrc on its own: its tests plain and under sanitizers, and what the compiler made of it: vectors and fixed frames."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PLAIN = ROOT / "build" / "ctest" / "sanitize-OFF"
PATH = os.pathsep.join((sysconfig.get_path("scripts"), os.environ.get("PATH", "")))
COMPILER = os.environ.get("CXX", "c++")

pytestmark = pytest.mark.slow

WIDEST = {"baseline": "xmm", "avx2": "ymm", "avx512": "zmm"}
PRODUCT = r"v?f?n?m(add|ul)\d*p[sd]"
# What the inner loops of a source are made of, as instructions on whole vectors. winner_gram is not here: its loop adds
# to scattered columns.
INNER = {
    "fly_lora": PRODUCT,
    "fly_lora_backward": PRODUCT,
    "project": PRODUCT,
    "project_topk": PRODUCT,
    "winner_take_all": r"v?pcmp\w*",
    "make_projection": r"v?pmul\w*",
}
LARGEST_FRAME = 65536  # bytes: threads may have small stacks


@pytest.fixture(scope="module")
def tested() -> str:
    """What `make ctest` printed; it leaves its objects under build/."""
    for tool in ("make", "cmake", "ctest", COMPILER):
        if shutil.which(tool, path=PATH) is None:
            pytest.skip(f"needs {tool}")
    environment = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MFLAGS")} | {"PATH": PATH}
    done = subprocess.run(["make", "ctest"], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_every_kernel_is_right_in_every_build_plain_and_sanitized(tested: str) -> None:
    names = {path.stem for path in (ROOT / "csrc" / "tests").glob("*.cpp")}
    passed = re.findall(r"Test +#\d+: (\w+) \.+ +Passed", tested)
    assert sorted(passed) == sorted([*names, *names])


def test_no_frame_grows_with_the_input(tested: str) -> None:
    frames = [line.split("\t") for path in PLAIN.glob("**/csrc/cpu/*.su") for line in path.read_text().splitlines()]
    assert frames
    assert [name for name, _, kind in frames if kind == "dynamic"] == []  # "dynamic,bounded" is only aligned
    assert [name for name, size, _ in frames if int(size) > LARGEST_FRAME] == []


@pytest.mark.parametrize("source", INNER)
def test_inner_loops_are_made_of_the_widest_vectors(tested: str, source: str) -> None:
    if shutil.which("objdump") is None:
        pytest.skip("needs objdump")
    found = {path.parents[2].name: path for path in PLAIN.glob(f"**/csrc/cpu/{source}.cpp.o")}
    if "flyk_avx512.dir" not in found:
        pytest.skip("needs an x86-64 build")
    for isa, register in WIDEST.items():
        wanted = re.compile(rf"^{INNER[source]}\s.*%{register}")
        vectors = [loop for loop in inner_loops(found[f"flyk_{isa}.dir"]) if any(map(wanted.match, loop))]
        assert vectors, f"{source} for {isa} has no inner loop of {INNER[source]} on {register}"


def inner_loops(path: Path) -> Iterator[list[str]]:
    """The instructions of each loop of an object file that has no loop within: from a target to its backward jump."""
    command = ["objdump", "-d", "--no-show-raw-insn", str(path)]
    listing = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    for function in listing.split("\n\n"):
        code = [(int(at, 16), text) for at, text in re.findall(r"^\s*([0-9a-f]+):\t(.+)$", function, re.MULTILINE)]
        position = {at: n for n, (at, _) in enumerate(code)}
        loops = []
        for n, (at, text) in enumerate(code):
            jump = re.match(r"j\w+\s+([0-9a-f]+)\b", text)
            if jump and int(jump[1], 16) in position and int(jump[1], 16) <= at:
                loops.append((position[int(jump[1], 16)], n))
        for first, last in loops:
            if not any(first <= other and end <= last for other, end in loops if (other, end) != (first, last)):
                yield [text for _, text in code[first : last + 1]]
