"""Install flyk from its sdist under the Python and the torch that run this, and hold its operators to the reference.

PYTHON tests/packaging/try_python.py

The build is isolated, as `pip install flyk` makes it, so it needs a package index; the environment is left as it is.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

ROOT = Path(__file__).parents[2]


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run("setup.py", "--quiet", "sdist", "--dist-dir", folder, cwd=ROOT)
        (sdist,) = folder.glob("*.tar.gz")
        brings(sdist)
        run("-m", "pip", "install", "--quiet", "--no-deps", "--target", folder / "site", sdist, cwd=folder)
        told = json.loads(run("-m", "flyk", "info", "--json", cwd=folder, PYTHONPATH=f"{folder / 'site'}"))
        assert told["torch"] == torch.__version__
        assert told["instruction_sets"], told["kernels"]  # else the extension was not built, or not loaded
        checked = run("-m", "flyk", "check", "--quick", cwd=folder, PYTHONPATH=f"{folder / 'site'}")
    print(
        f"Python {platform.python_version()}, torch {torch.__version__}, {told['kernels']}:", checked.splitlines()[-1]
    )


def brings(sdist: Path) -> None:
    """No torch comes with flyk where there is one, neither to build it nor to run it."""
    asked = ("-m", "pip", "install", "--quiet", "--dry-run", "--report", "-", sdist)
    report = json.loads(run(*asked, cwd=sdist.parent))
    names = {entry["metadata"]["name"].lower() for entry in report["install"]}
    assert "flyk" in names
    assert not any(each == "torch" or each.startswith(("nvidia", "triton")) for each in names), names


def run(*arguments: object, cwd: Path, **environment: str) -> str:
    command = [sys.executable, *map(str, arguments)]
    # What is beside the installed package must not serve in its place.
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | environment
    ended = subprocess.run(command, cwd=cwd, env=env, text=True, stdout=subprocess.PIPE, check=False)
    assert ended.returncode == 0, f"{' '.join(command)}\n{ended.stdout}"
    return ended.stdout


if __name__ == "__main__":
    main()
