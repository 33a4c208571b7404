"""The numbers of the README and of docs/benchmarks.md are those of the committed results."""

from __future__ import annotations

import runpy
from pathlib import Path

README = Path(__file__).parents[2] / "README.md"


def test_table_is_made_of_committed_results() -> None:
    table = runpy.run_path(str(README.parent / "bench" / "table.py"))
    documents = table["documents"]()
    assert {path.name for path in documents} == {"README.md", "benchmarks.md"}
    for path, text in documents.items():
        assert text == path.read_text(), path.name


def test_table_tells_speed_and_refuses_it_where_the_check_is_red() -> None:
    table = runpy.run_path(str(README.parent / "bench" / "table.py"))
    rivals = {name: {"median": ms / 1e3, "error": 1e-7} for name, ms in {"published": 8, "eager": 3, "flyk": 2}.items()}
    rivals["compiled"] = {"absent": "no compiler"}
    green = {"op": "ema_", "what": "in place", "sizes": "2 heads", "check": "green", "floor": {"seconds": 1e-3}}
    red = green | {"op": "project", "check": "red", "rivals": {}}
    machine = {"processor": "P", "threads": 2, "kernels": "avx2", "torch": "2", "date": "2026-01-02T00:00"}
    new = {"quick": False, "machine": machine, "cases": [green | {"rivals": rivals}]}
    old = {"quick": False, "machine": machine | {"date": "2025-01-02T00:00"}, "cases": [green | {"sizes": "old"}, red]}
    text = table["speed"]([new, old, old | {"quick": True}])
    assert "| `ema_` in place, 2 heads | 8 | 3 | 2 | 4.0x | 1.5x | 50% | 1e-07 |" in text
    assert "| `project` in place, 2 heads | wrong, so not timed |||||||" in text
    assert "ema_` in place, old" not in text


def test_memory_tables_tell_bytes_in_megabytes() -> None:
    table = runpy.run_path(str(README.parent / "bench" / "table.py"))
    machine = {"processor": "P", "threads": 2, "kernels": "avx2", "torch": "2", "date": "2026-01-02T00:00"}
    rivals = {"published": {"peak": 2_500_000}, "compiled": {"absent": "no compiler"}, "flyk": {"peak": 1000}}
    peak = {"op": "ema_", "what": "in place", "sizes": "2 heads", "inputs": 1_500_000_000, "rivals": rivals}
    layer = {"sequence": 2048, "d": 768, "r": 32, "k": 8, "kept": {"LoRA": 6553600, "flyk": 196608}}
    text = table["memory"]([{"quick": False, "machine": machine, "peaks": [peak], "activations": [layer]}])
    assert "| `ema_` in place, 2 heads | 1,500.0 | 2.5 | none | 0.0 |" in text
    assert "| 2048 tokens, 768 to 768, r 32, k 8 | 6.55 | 0.20 |" in text
