"""What the built extension is made of: it knows no torch, brings no thread pool, and runs on any processor."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest

_C = pytest.importorskip("flyk._C", reason="the extension was not built")

# First in the name of every instruction beyond the x86-64 baseline that GCC and Clang use for our three builds: the
# vector extensions (their names begin with v, verr and verw apart) and BMI2.
WIDE = re.compile(r"^(v(?!err|erw)|mulx|shlx|shrx|sarx|rorx|pdep|pext(?!r)|bzhi)")


def tool(*command: str) -> str:
    if shutil.which(command[0]) is None:
        pytest.skip(f"needs {command[0]}")
    return subprocess.run([*command, _C.__file__], check=True, capture_output=True, text=True).stdout


def test_refers_to_no_torch_symbol_and_exports_its_entry_alone() -> None:
    symbols = tool("nm", "-D").splitlines()
    assert not [s for s in symbols if re.search(r"\b_ZNK?(2at|3c10|5torch)", s)]
    exported = [s.split()[-1] for s in symbols if re.search(r" [TDBR] ", s)]  # weak ones are the standard library's
    assert exported == ["PyInit__C"]


def test_links_no_torch_and_no_openmp() -> None:
    needed = re.findall(r"NEEDED.*\[(.+)\]", tool("readelf", "-d"))
    assert needed
    assert not [library for library in needed if re.search("torch|c10|omp|cuda|python", library)]


def test_only_the_wide_builds_hold_wide_instructions() -> None:
    if "x86-64" not in tool("objdump", "-f"):
        pytest.skip("needs an x86-64 build")
    wide: dict[str, set[str]] = {}
    name, functions = "", []
    for line in tool("objdump", "-d", "-C", "--no-show-raw-insn").splitlines():
        if label := re.match(r"^[0-9a-f]+ <(.+)>:$", line):
            name = label[1]
            functions.append(name)
        elif WIDE.match(instruction := line.partition("\t")[2]):
            wide.setdefault(name, set()).add(instruction.split()[0])
    assert any("flyk::baseline::" in f for f in functions)
    assert any("flyk::avx512::" in f for f in wide)  # else this test could not fail
    assert {f: w for f, w in wide.items() if not re.search("flyk::(avx2|avx512|amx)::", f)} == {}
