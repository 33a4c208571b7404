"""What a build leaves: wheels with and without the extension, never anything stale, and a whole sdist."""

from __future__ import annotations

import os
import sysconfig
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from flyk import backends

NO_COMPILER = {"CXX": "/bin/false"}
PURE = """
import warnings
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import flyk
ours = [str(w.message) for w in caught if "flyk" in str(w.message)]
assert len(ours) == 1 and "/bin/false" in ours[0], [str(w.message) for w in caught]
import torch
x, values = torch.randn(3, 8), torch.randn(5, 8)
torch.testing.assert_close(flyk.ops.project(x, values), x @ values.t())
print(flyk.__file__)
"""


@pytest.fixture(scope="module")
def tree(copy_tree: Callable[[], Path]) -> Path:
    return copy_tree()


@pytest.fixture(scope="module")
def wheels(tree: Path, python: Callable[..., str]) -> dict[str, Path]:
    """Three wheels of one tree, in this order: without a compiler, with one, without one again."""
    made = {}
    for name, environment in {"pure": NO_COMPILER, "built": {}, "pure again": NO_COMPILER}.items():
        folder = tree / "wheels" / name
        python("-m", "pip", "wheel", "--no-build-isolation", "--no-deps", "-w", folder, ".", cwd=tree, **environment)
        (made[name],) = folder.glob("*.whl")
    return made


def members(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


@pytest.mark.slow
@pytest.mark.skipif("cpu" in backends.missing, reason="the extension could not be built here")
def test_wheel_holds_the_package_and_its_extension_alone(wheels: dict[str, Path], root: Path) -> None:
    names = members(wheels["built"])
    (extension,) = (name for name in names if name.startswith("flyk/_C."))
    kinds = ("*.py", "py.typed", "tuning/*.json")
    files = {path.relative_to(root).as_posix() for kind in kinds for path in (root / "flyk").rglob(kind)}
    assert {"flyk/__init__.py", "flyk/py.typed", "flyk/tuning/sm_90.json", "flyk/estimators/classifier.py"} <= files
    assert names == files | {extension}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["pure", "pure again"])
def test_wheel_without_compiler_is_pure_python_and_says_why(wheels: dict[str, Path], name: str) -> None:
    # The second comes after a good build in the same tree: its extension must be gone.
    assert not any(member.startswith("flyk/_C.") for member in members(wheels[name]))
    with zipfile.ZipFile(wheels[name]) as archive:
        assert "/bin/false" in archive.read("flyk/_build_failure.txt").decode()


@pytest.mark.slow
def test_install_without_compiler_serves_by_plain_pytorch(
    wheels: dict[str, Path], python: Callable[..., str], tmp_path: Path
) -> None:
    python("-m", "pip", "install", "--no-deps", "--target", tmp_path / "site", wheels["pure"], cwd=tmp_path)
    # Without `site`, for an editable install hooks in there and would find the tree's own extension.
    path = os.pathsep.join((str(tmp_path / "site"), sysconfig.get_path("purelib")))
    output = python("-S", "-c", PURE, cwd=tmp_path, PYTHONPATH=path, FLYK_BACKEND="")
    assert str(tmp_path / "site") in output


def test_sdist_holds_what_a_build_needs(tree: Path, python: Callable[..., str], root: Path) -> None:
    python("setup.py", "--quiet", "sdist", "--dist-dir", "sdist", cwd=tree)
    (archive,) = (tree / "sdist").glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
    sources = {path.relative_to(root).as_posix() for path in (root / "csrc").rglob("*") if path.is_file()}
    assert sources | {"CMakeLists.txt", "setup.py", "pyproject.toml", "README.md", "LICENSE"} <= names
    assert not any(name.startswith("flyk/_C.") or name.endswith("_build_failure.txt") for name in names)


@pytest.mark.parametrize("tool", ["cmake", "ninja", "pybind11"])
def test_build_in_place_survives_a_missing_tool(
    copy_tree: Callable[[], Path], python: Callable[..., str], tmp_path: Path, tool: str
) -> None:
    # One that fails stands in its place, first on the path.
    if tool == "pybind11":
        (tmp_path / "pybind11.py").write_text("raise ModuleNotFoundError('no pybind11 here')")
        environment = {"PYTHONPATH": str(tmp_path)}
    else:
        (tmp_path / tool).write_text(f"#!/bin/sh\necho error: no {tool} here\nexit 1\n")
        (tmp_path / tool).chmod(0o755)
        environment = {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    tree = copy_tree()
    stale = tree / "flyk" / "_build_failure.txt"
    stale.write_text("an old reason\n")
    python("setup.py", "build_ext", "--inplace", cwd=tree, **environment)
    assert not list(tree.glob("flyk/_C.*"))
    assert tool in stale.read_text()
    assert "an old reason" not in stale.read_text()


def test_a_failed_build_of_the_cuda_kernels_leaves_an_install_that_says_why(
    copy_tree: Callable[[], Path], python: Callable[..., str]
) -> None:
    tree = copy_tree()
    library, note = tree / "flyk" / "_cuda.so", tree / "flyk" / "_cuda_failure.txt"
    library.write_text("an old library")
    asked = {"FLYK_BUILD_CUDA": "1", "CUDACXX": "/bin/false"}
    python("setup.py", "build_ext", "--inplace", cwd=tree, **NO_COMPILER, **asked)
    assert not library.exists()
    assert "/bin/false" in note.read_text()
    python("setup.py", "build_ext", "--inplace", cwd=tree, **NO_COMPILER, FLYK_BUILD_CUDA="")
    assert not note.exists()
