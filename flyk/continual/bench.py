"""The bench: configs into runs, runs into folders, folders into reports and tables."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flyk._charts import need_matplotlib
from flyk.continual.config import load_config
from flyk.continual.material import Material
from flyk.continual.run import run
from flyk.continual.run_report import write_run_report


def run_config(
    path: Path, out: Path, changes: Mapping[str, Any], *, progress: bool = True, material: Material | None = None
) -> tuple[dict[str, Any], Path]:
    """Runs a config, with some keys set otherwise, in <out>/<its name>/seed-<seed>: the result, its report's path."""
    config = load_config(path, **changes)
    need_matplotlib()  # said before the work, not after it
    folder = out / path.stem / f"seed-{config.seed}"
    result = run(config, folder, material, progress=progress)
    return result, write_run_report(result, path.stem, folder)
