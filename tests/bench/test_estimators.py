"""The comparison of classifiers measures what it says, and its page shows the committed figures."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("river")
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def bench() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "bench" / "estimators.py"))


def test_the_page_is_made_of_committed_results(bench: dict[str, Any]) -> None:
    assert bench["document"]() == (ROOT / "docs" / "estimators.md").read_text()


@pytest.mark.parametrize("name", ["FlyClassifier, streamed", "SGDClassifier, streamed", "RidgeClassifier"])
def test_measures_one(bench: dict[str, Any], name: str) -> None:
    found = bench["measure"]("digits", name, splits=1)
    assert 0.8 < found["accuracy"] <= 1
    assert found["learning"] > 0
    assert found["predicting"] > 0
    if name == "RidgeClassifier":
        assert found["sorted by class"] is None
    elif name == "FlyClassifier, streamed":
        assert found["sorted by class"] == found["accuracy"]
    else:
        assert found["sorted by class"] < found["accuracy"]
    assert name in bench["row"](found)
