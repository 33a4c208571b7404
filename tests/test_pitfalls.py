"""docs/pitfalls.md names a test for each class, and each test is there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
ROWS = [
    line
    for line in (ROOT / "docs" / "pitfalls.md").read_text().splitlines()
    if re.match(r"\| *\d* *\|", line) and "**" not in line and "held by" not in line
]
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def test_every_class_has_a_row_and_every_row_a_test() -> None:
    assert [number[1] for row in ROWS if (number := re.match(r"\| (\d+) \|", row))] == [str(n) for n in range(1, 28)]
    assert all(NAMED.search(row) for row in ROWS)


def test_every_test_that_is_named_exists() -> None:
    for path, name in NAMED.findall("\n".join(ROWS)):
        assert f"\ndef {name}(" in (ROOT / path).read_text(), f"{path}::{name}"
