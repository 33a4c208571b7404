"""Every Python example in the README and the documents runs as it stands, and the documents build without a warning."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
EXAMPLES = [
    pytest.param(code, id=f"{path.stem}-{number}")
    for path in DOCUMENTS
    for number, code in enumerate(re.findall(r"^```python\n(.+?)^```", path.read_text(), re.MULTILINE | re.DOTALL))
]
KINDS = {"python", "sh", "text", "{include}", "{toctree}", "{literalinclude}", "{eval-rst}"}


@pytest.mark.parametrize("code", EXAMPLES)
def test_example_runs(code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("peft", "sklearn", "transformers"):
        if package in code:
            pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "example", "exec"), {"__name__": "__main__"})


def test_the_readme_has_its_three_examples() -> None:
    assert sum(example.id.startswith("README-") for example in EXAMPLES) >= 3


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_each_block_says_what_it_is(path: Path) -> None:
    # A block of Python under another name, or none, would not be run above.
    opened = re.findall(r"^```(\S*)", path.read_text(), re.MULTILINE)[::2]
    assert set(opened) <= KINDS


@pytest.mark.parametrize("path", sorted((ROOT / "examples" / "methods").glob("plot_*.py")), ids=lambda path: path.stem)
def test_each_gallery_script_runs(path: Path, tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    drawn = f"import matplotlib; matplotlib.use('Agg'); import runpy; runpy.run_path({str(path)!r})"
    subprocess.run([sys.executable, "-W", "ignore", "-c", drawn], cwd=tmp_path, check=True)


def test_the_documents_build_without_a_warning(tmp_path: Path) -> None:
    for package in ("furo", "myst_parser", "peft", "sklearn", "sphinx_gallery"):
        pytest.importorskip(package)
    # The gallery's scripts run above.
    built = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-D", "plot_gallery=0"]
    ended = subprocess.run([*built, ROOT / "docs", tmp_path], text=True, stderr=subprocess.PIPE, check=False)
    assert ended.returncode == 0, ended.stderr
    assert (tmp_path / "kernels" / "winner_take_all.html").exists()
    assert "radix" in (tmp_path / "kernels" / "winner_take_all.html").read_text()
