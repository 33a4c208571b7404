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
    """Docstrings are plain text: outside of backquotes, what reStructuredText would take for markup is escaped."""
    for i, line in enumerate(lines):
        parts = re.split(r"(``.*?``|`[^`]*`)", line)
        parts[::2] = [
            re.sub(r"(\||\b\w+_(?!\w))", lambda m: m[0].replace("|", r"\|").replace("_", r"\_"), p) for p in parts[::2]
        ]
        lines[i] = "".join(parts)


def setup(app: Any) -> None:
    app.connect("autodoc-process-docstring", plain, priority=400)  # before napoleon
