"""Measures of online continual learning, as FlyPrompt (arXiv 2602.01976) and its Si-Blurry benchmark define them.

A history is an array (E, C): the accuracy of each of C classes at E moments, NaN where the class was not exposed yet
(no training sample of it had been seen) or has no test sample. Accuracies are fractions from 0 to 1.

Arrays may be given as lists or tensors; what has another shape or other entries is refused by ValueError or TypeError.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flyk.ops._check import shape

# By the dtype they are brought to: the kinds of numpy that may stand for them, and their name.
ENTRIES = {"int64": ("iu", "whole numbers"), "bool": ("b", "True or False"), "float64": ("iuf", "numbers")}


def accuracy(prediction: ArrayLike, target: ArrayLike, exposed: ArrayLike) -> float:
    """Accuracy on exposed classes: the share of the test rows with an exposed target that are predicted right.

    Args:
        prediction: (N,) predicted classes.
        target: (N,) true classes, whole numbers from 0 to C - 1.
        exposed: (C,) bool, the classes seen in training so far.

    Returns:
        a fraction, NaN if no test row has an exposed target.
    """
    exposed = _array("exposed", exposed, "bool", "C")
    prediction, target = _rows("prediction", prediction, target, len(exposed))
    rows = exposed[target]
    return float(np.mean(prediction[rows] == target[rows])) if rows.any() else float("nan")


def class_accuracies(prediction: ArrayLike, target: ArrayLike, exposed: ArrayLike) -> NDArray[np.float64]:
    """One row of a history: (C,) the accuracy of each class, NaN where it is not exposed or has no test row."""
    exposed = _array("exposed", exposed, "bool", "C")
    prediction, target = _rows("prediction", prediction, target, len(exposed))
    total = np.bincount(target, minlength=len(exposed)).astype(np.float64)
    right = np.bincount(target[prediction == target], minlength=len(exposed))
    total[~exposed | (total == 0)] = np.nan
    return right / total


def a_auc(accuracies: ArrayLike) -> float:
    """A_auc = mean of the accuracies at equal intervals of the stream, the area under the accuracy curve."""
    accuracies = _array("accuracies", accuracies, "float64", "E")
    return float(np.mean(accuracies)) if len(accuracies) else float("nan")


def a_avg(task_ends: ArrayLike) -> float:
    """A_avg = mean of the accuracies at the ends of the tasks."""
    task_ends = _array("task_ends", task_ends, "float64", "E")
    return float(np.mean(task_ends)) if len(task_ends) else float("nan")


def a_last(task_ends: ArrayLike) -> float:
    """A_last = accuracy at the end of the last task."""
    task_ends = _array("task_ends", task_ends, "float64", "E")
    return float(task_ends[-1]) if len(task_ends) else float("nan")


def forgetting(history: ArrayLike) -> float:
    """F_last = mean over classes of (max over earlier moments of a_{e,c}) - a_{last,c}; lower is better.

    The mean is over the classes with a positive accuracy at an earlier moment; NaN if there is none.

    Args:
        history: (E, C), one row for each task end.
    """
    history = _array("history", history, "float64", "E", "C")
    if len(history) < 2:
        return float("nan")
    best = np.nan_to_num(history[:-1], nan=0.0).max(axis=0)
    known = best > 0
    return float(np.mean(best[known] - history[-1, known])) if known.any() else float("nan")


def backward_transfer(history: ArrayLike) -> float:
    """BWT = mean over classes of a_{last,c} - a_{first,c}, with `first` the first moment of a non-zero accuracy.

    The mean is over the classes whose first moment is an earlier one than the last; NaN if there is none.

    Args:
        history: (E, C), one row for each task end.
    """
    history = _array("history", history, "float64", "E", "C")
    if len(history) < 2:
        return float("nan")
    positive = np.nan_to_num(history, nan=0.0) > 0
    first = positive.argmax(axis=0)
    known = np.flatnonzero(positive[:-1].any(axis=0))
    change = history[-1, known] - history[first[known], known]
    return float(np.mean(change)) if len(known) else float("nan")


def measures(
    accuracies: ArrayLike,
    history: ArrayLike,
    at_interval: ArrayLike,
    at_task_end: ArrayLike,
) -> dict[str, float]:
    """A_auc over the tests at intervals; A_avg, A_last, forgetting and BWT over those at task ends.

    Args:
        accuracies: (E,) of each test.
        history: (E, C), one row for each test.
        at_interval, at_task_end: (E,) bool, why each test was made.
    """
    accuracies = _array("accuracies", accuracies, "float64", "E")
    tests = len(accuracies)
    history = _array("history", history, "float64", tests, "C")
    interval, end = (
        _array(name, why, "bool", tests) for name, why in (("at_interval", at_interval), ("at_task_end", at_task_end))
    )
    return {
        "a_auc": a_auc(accuracies[interval]),
        "a_avg": a_avg(accuracies[end]),
        "a_last": a_last(accuracies[end]),
        "forgetting": forgetting(history[end]),
        "bwt": backward_transfer(history[end]),
    }


def home_experts(counts: ArrayLike) -> NDArray[np.int64]:
    """The home of each class: the expert that saw the most of its samples; -1 for a class nobody has seen.

    Args:
        counts: (T, C) training samples of each class seen by each expert so far; ties go to the earlier expert.
    """
    counts = _array("counts", counts, "int64", "T", "C")
    return np.where(counts.any(axis=0), counts.argmax(axis=0), -1)


def routing_accuracy(routes: ArrayLike, target: ArrayLike, home: ArrayLike) -> float:
    """The share of the test rows of exposed classes that are routed to the home of their class.

    Args:
        routes: (N,) the experts chosen.
        target: (N,) true classes.
        home: (C,) from home_experts().

    Returns:
        a fraction, NaN if no test row has an exposed target.
    """
    home = _array("home", home, "int64", "C")
    routes, target = _rows("routes", routes, target, len(home))
    rows = home[target] >= 0
    return float(np.mean(routes[rows] == home[target[rows]])) if rows.any() else float("nan")


def _rows(name: str, values: ArrayLike, target: ArrayLike, classes: int) -> tuple[NDArray[np.int64], ...]:
    """`values`, what was said of each row, and `target`, the row's class, whole numbers both."""
    target = _array("target", target, "int64", "N")
    outside = target[(target < 0) | (target >= classes)]
    if len(outside):
        raise ValueError(f"target must be from 0 to {classes - 1}, got {outside[0]}")
    return _array(name, values, "int64", len(target)), target


def _array(name: str, values: ArrayLike, dtype: str, *sizes: int | str) -> NDArray[Any]:
    """`values` as an array of this dtype, a key of ENTRIES; each of `sizes` is a size, or a letter for any size."""
    try:
        array: Any = np.asarray(values)
    except (TypeError, ValueError, RuntimeError) as error:  # rows of unequal length, a tensor elsewhere than on the CPU
        raise TypeError(f"{name} must be an array, got {type(values).__name__}: {error}") from error
    kinds, wanted = ENTRIES[dtype]
    shape(name, array, *sizes)
    if array.size and array.dtype.kind not in kinds:  # what has no entries has any kind
        raise TypeError(f"{name} must be {wanted}, got dtype {array.dtype}")
    return array.astype(dtype, copy=False)
