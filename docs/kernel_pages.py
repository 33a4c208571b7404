"""A page for each operator, made from what stands in its sources: its meaning, its floor and how each kernel works."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path
from typing import Any

from flyk import ops

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "docs" / "kernels"
# What a kernel's comment refers to is in files that it shares with others.
SHARED = {
    "fly_lora": ["cpu/fly_lora_backward.cpp", "cpu/fly_lora.h", "cpu/rank_scores.h"],
    "project": ["cpu/project.h", "amx/product.cpp"],
    "project_topk": ["cpu/project.h"],
    "gram_": ["amx/product.cpp"],
    "expand_gram_": ["cpu/winner_gram.cpp", "amx/product.cpp", "cuda/winner_gram.cu"],
    "winner_take_all": ["cuda/select.h"],
}


def comment(path: Path) -> str:
    """The comment that a source begins with, its numbered steps as a list."""
    lines = []
    for line in path.read_text().splitlines():
        if not line.startswith("//"):
            break
        lines.append(line.removeprefix("//").removeprefix(" "))
    text = "\n".join(lines)
    text = re.sub(r"(?m)^(\d\.|-) ", r"\n\1 ", text)  # a list wants a line before it
    return escaped(re.sub(r"\((\d)\) ", r"\n\n\1. ", text))


def docstring(path: Path, function: str | None = None) -> str:
    tree = ast.parse(path.read_text())
    found: Any = tree
    if function:
        found = next(node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == function)
    return escaped(ast.get_docstring(found) or "")


def escaped(text: str) -> str:
    """Plain text as Markdown: what would be emphasis or HTML stands as it is."""
    parts = re.split(r"(``.*?``|`[^`]*`)", text, flags=re.DOTALL)
    parts[::2] = [re.sub(r"([*_<>\[\]$])", r"\\\1", part) for part in parts[::2]]
    return "".join(parts)


def page(name: str) -> str:
    """One operator: meaning, floor, ladder, and what serves it on a GPU."""
    meaning = inspect.getdoc(getattr(ops, name)) or ""
    meaning = escaped(meaning.partition("\nArgs:")[0])
    bench, csrc = ROOT / "flyk" / "bench" / f"{name}.py", ROOT / "csrc"
    backend, triton = (ROOT / "flyk" / "backends" / each / f"{name}.py" for each in ("cpu", "triton"))
    parts = [f"# {escaped(name)}", meaning]
    if bench.exists():
        parts += ["## What it is measured against", docstring(bench), f"**Floor.** {docstring(bench, 'floor')}"]
    parts += ["## On the CPU", docstring(backend)]
    sources = [f"cpu/{name}.cpp", *SHARED.get(name, []), f"cuda/{name}.cu"]
    sources = [source for source in sources if (csrc / source).exists()]
    parts += [told(csrc, source) for source in sources if not source.startswith("cuda")]
    if triton.exists():
        parts += ["## On a GPU", docstring(triton)]
    parts += [told(csrc, source) for source in sources if source.startswith("cuda")]
    return "\n\n".join(parts) + "\n"


def told(csrc: Path, source: str) -> str:
    return f"`csrc/{source}`\n\n{comment(csrc / source)}"


def write(app: Any) -> None:
    PAGES.mkdir(exist_ok=True)
    for name in ops.__all__:
        path, text = PAGES / f"{name}.md", page(name)
        if not path.exists() or path.read_text() != text:
            path.write_text(text)


def setup(app: Any) -> dict[str, bool]:
    app.connect("builder-inited", write)
    return {"parallel_read_safe": True}
