"""What pyproject.toml promises: no torch to build, the extras, and one version of each tool."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def project() -> dict:
    if sys.version_info < (3, 11):
        pytest.skip("needs tomllib")
    import tomllib

    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def names(requirements: list[str]) -> set[str]:
    return {re.split(r"[^A-Za-z0-9_-]", requirement)[0].lower() for requirement in requirements}


def test_a_build_needs_no_torch(project: dict) -> None:
    # Under build isolation it would bring a second one, of another build; the extension knows no torch anyway.
    assert names(project["build-system"]["requires"]) == {"setuptools", "pybind11", "cmake", "ninja"}


def test_the_core_needs_little(project: dict) -> None:
    assert names(project["project"]["dependencies"]) == {"torch", "numpy", "safetensors", "tqdm", "typer"}
    assert "torch>=2.10" in project["project"]["dependencies"]


def test_extras(project: dict) -> None:
    extras = project["project"]["optional-dependencies"]
    assert {"peft", "sklearn", "vision", "bench", "docs", "demo", "test"} <= set(extras)
    assert "scikit-learn" in names(extras["sklearn"])
    assert not any("torch" in names(extra) for extra in extras.values())
    told = re.findall(r"^\| `([\w-]+)` \|", (ROOT / "docs" / "start.md").read_text(), re.MULTILINE)
    assert sorted(told) == sorted(extras)


def test_each_extra_that_a_message_names_is_there(project: dict) -> None:
    named = {
        extra
        for folder in ("flyk", "docs")
        for kind in ("*.py", "*.md")
        for path in (ROOT / folder).rglob(kind)
        for extra in re.findall(r"flyk\[([\w-]+)\]", path.read_text())
    }
    assert {"sklearn", "bench"} <= named <= set(project["project"]["optional-dependencies"])


def test_the_hooks_run_the_same_ruff(project: dict) -> None:
    (pinned,) = (r for r in project["project"]["optional-dependencies"]["test"] if r.startswith("ruff=="))
    hooks = (ROOT / ".pre-commit-config.yaml").read_text()
    assert f"rev: v{pinned.removeprefix('ruff==')}" in hooks
