"""Sphinx: `make docs` builds docs/ into build/docs; a warning is an error."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import flyk

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "docs"))

project = "flyk"
copyright = "the authors of flyk, Apache-2.0"
release = version = flyk.__version__
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_gallery.gen_gallery",
    "command_pages",
    "kernel_pages",
]
exclude_patterns = ["**/README.rst"]

html_theme = "furo"
html_title = f"flyk {release}"
default_role = "literal"  # docstrings put names between single backquotes
myst_heading_anchors = 3
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_preserve_defaults = True
autodoc_class_signature = "mixed"
suppress_warnings = ["config.cache"]
sphinx_gallery_conf = {
    "examples_dirs": str(ROOT / "examples" / "methods"),
    "gallery_dirs": "methods",
    "filename_pattern": "plot_",
    "within_subsection_order": "FileNameSortKey",
    "download_all_examples": False,
    "show_memory": False,
    "show_signature": False,
    "write_computation_times": False,
    "abort_on_example_error": True,
}


def plain(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Docstrings are plain text: what reStructuredText would take for markup is escaped, and indented code is code."""
    made: list[str] = []
    for line in lines:
        above = next((each for each in reversed(made) if each), "")
        code = bool(made) and not made[-1] and _indent(line) >= _indent(above) + 4
        if code and line and not above.startswith("::"):
            made += [" " * _indent(above) + "::", ""]
        made.append(line)
    inside = False
    for i, line in enumerate(made):
        inside = line.strip() == "::" or (inside and (not line or line.startswith("    ")))
        if not inside:
            line = re.sub(r"(: )(\w)\.$", r"\1\2\\.", line)  # a letter and a full stop would number a list
            parts = re.split(r"(``.*?``|`[^`]*`)", line)
            parts[::2] = [re.sub(r"\||\b\w+_(?!\w)", _escape, part) for part in parts[::2]]
            made[i] = "".join(parts)
    lines[:] = made


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _escape(found: re.Match[str]) -> str:
    return found[0].replace("|", r"\|").replace("_", r"\_")


def skip(app: Any, what: str, name: str, obj: Any, skipped: bool, options: Any) -> bool | None:
    """scikit-learn gives every estimator methods to route metadata, whose text refers to its own site."""
    return True if name.startswith("set_") and name.endswith("_request") else None


def setup(app: Any) -> None:
    app.connect("autodoc-process-docstring", plain, priority=400)  # before napoleon
    app.connect("autodoc-skip-member", skip)
