"""Measures of online continual learning, as FlyPrompt (arXiv 2602.01976) and its Si-Blurry benchmark define them.

A history is an array (E, C): the accuracy of each of C classes at E moments, NaN where the class was not exposed yet
(no training sample of it had been seen) or has no test sample. Accuracies are fractions from 0 to 1.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def accuracy(prediction: NDArray, target: NDArray, exposed: NDArray[np.bool_]) -> float:
    """Accuracy on exposed classes: the share of the test rows with an exposed target that are predicted right.

    Args:
        prediction: (N,) predicted classes.
        target: (N,) true classes, whole numbers below C.
        exposed: (C,) bool, the classes seen in training so far.

    Returns:
        a fraction, NaN if no test row has an exposed target.
    """
    rows = exposed[target]
    return float(np.mean(prediction[rows] == target[rows])) if rows.any() else float("nan")


def class_accuracies(prediction: NDArray, target: NDArray, exposed: NDArray[np.bool_]) -> NDArray[np.float64]:
    """One row of a history: (C,) the accuracy of each class, NaN where it is not exposed or has no test row."""
    total = np.bincount(target, minlength=len(exposed)).astype(np.float64)
    right = np.bincount(target[prediction == target], minlength=len(exposed))
    total[~exposed | (total == 0)] = np.nan
    return right / total


def a_auc(accuracies: Sequence[float]) -> float:
    """A_auc = mean of the accuracies at equal intervals of the stream, the area under the accuracy curve."""
    return float(np.mean(accuracies)) if len(accuracies) else float("nan")


def a_avg(task_ends: Sequence[float]) -> float:
    """A_avg = mean of the accuracies at the ends of the tasks."""
    return float(np.mean(task_ends)) if len(task_ends) else float("nan")


def a_last(task_ends: Sequence[float]) -> float:
    """A_last = accuracy at the end of the last task."""
    return float(task_ends[-1]) if len(task_ends) else float("nan")


def forgetting(history: NDArray[np.float64]) -> float:
    """F_last = mean over classes of (max over earlier moments of a_{e,c}) - a_{last,c}; lower is better.

    The mean is over the classes with a positive accuracy at an earlier moment; NaN if there is none.

    Args:
        history: (E, C), one row for each task end.
    """
    if len(history) < 2:
        return float("nan")
    best = np.nan_to_num(history[:-1], nan=0.0).max(axis=0)
    known = best > 0
    return float(np.mean(best[known] - history[-1, known])) if known.any() else float("nan")


def backward_transfer(history: NDArray[np.float64]) -> float:
    """BWT = mean over classes of a_{last,c} - a_{first,c}, with `first` the first moment of a non-zero accuracy.

    The mean is over the classes whose first moment is an earlier one than the last; NaN if there is none.

    Args:
        history: (E, C), one row for each task end.
    """
    if len(history) < 2:
        return float("nan")
    positive = np.nan_to_num(history, nan=0.0) > 0
    first = positive.argmax(axis=0)
    known = np.flatnonzero(positive[:-1].any(axis=0))
    change = history[-1, known] - history[first[known], known]
    return float(np.mean(change)) if len(known) else float("nan")


def measures(
    accuracies: Sequence[float],
    history: NDArray[np.float64],
    at_interval: Sequence[bool],
    at_task_end: Sequence[bool],
) -> dict[str, float]:
    """A_auc over the tests at intervals; A_avg, A_last, forgetting and BWT over those at task ends.

    Args:
        accuracies: of each test.
        history: (E, C), one row for each test.
        at_interval, at_task_end: why each test was made.
    """
    ends = np.flatnonzero(at_task_end).tolist()
    task_ends = [accuracies[i] for i in ends]
    return {
        "a_auc": a_auc([a for a, at in zip(accuracies, at_interval, strict=True) if at]),
        "a_avg": a_avg(task_ends),
        "a_last": a_last(task_ends),
        "forgetting": forgetting(history[ends]),
        "bwt": backward_transfer(history[ends]),
    }


def home_experts(counts: NDArray[np.integer]) -> NDArray[np.int64]:
    """The home of each class: the expert that saw the most of its samples; -1 for a class nobody has seen.

    Args:
        counts: (T, C) training samples of each class seen by each expert so far; ties go to the earlier expert.
    """
    return np.where(counts.any(axis=0), counts.argmax(axis=0), -1)


def routing_accuracy(routes: NDArray, target: NDArray, home: NDArray[np.integer]) -> float:
    """The share of the test rows of exposed classes that are routed to the home of their class.

    Args:
        routes: (N,) the experts chosen.
        target: (N,) true classes.
        home: (C,) from home_experts().

    Returns:
        a fraction, NaN if no test row has an exposed target.
    """
    rows = home[target] >= 0
    return float(np.mean(routes[rows] == home[target[rows]])) if rows.any() else float("nan")
