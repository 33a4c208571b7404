"""scikit-learn's own checks, whole."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable

from sklearn.utils.estimator_checks import parametrize_with_checks

from flyk.estimators import FlyClassifier, FlyProjection, FlyRegressor

SMALL = [
    FlyProjection(n_components=64),
    FlyProjection(n_components=64, kind="sparse_sign"),
    FlyClassifier(n_components=64),
    FlyClassifier(n_components=64, kind="sparse_sign", on_new_class="grow"),
    FlyRegressor(n_components=64),
]


@parametrize_with_checks(SMALL)
def test_scikit_learn_is_content(estimator: object, check: Callable[[object], None]) -> None:
    check(estimator)


def test_tensors_give_tensors_in_the_checks_of_the_array_api() -> None:
    # scipy reads the variable when it is imported, so these run in a process of their own.
    checks = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "array_api and torch", __file__]
    ran = subprocess.run(checks, env=os.environ | {"SCIPY_ARRAY_API": "1"}, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout
    assert int(re.findall(r"(\d+) passed", ran.stdout)[0]) >= 2 * len(SMALL), ran.stdout
