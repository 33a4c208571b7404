"""The temperature of a softmax over ridge scores, by leaving out rows that were kept for it."""

from __future__ import annotations

import hashlib
import math

import numpy as np
from scipy.optimize import brentq
from torch import Tensor

from flyk.estimators._statistics import Statistics
from flyk.ops.ridge_solve import substitute

SHARPEST = 1e4  # largest inverse temperature


class KeptRows:
    """A random sample of the distinct rows of a stream, the same for any order and any split of it.

    A row's place in line is a hash of its bytes, and the first `size` stay (bottom-k sampling). Beside each stand the
    weights of its classes, so that a repeated row counts as often as it came.
    """

    def __init__(self, size: int, features: int, classes: int) -> None:
        self.size = size
        self.places = np.empty(0, np.uint64)
        self.rows = np.empty((0, features))
        self.weights = np.empty((0, classes))

    def add(self, rows: Tensor, weights: Tensor) -> None:
        """Rows (N, d) and the weight of each of their classes (N, C), in float64."""
        came = weights.sum(1) > 0
        block = rows[came].numpy(force=True) + 0.0  # which makes -0 a 0
        digests = b"".join(hashlib.blake2b(row.tobytes(), digest_size=8).digest() for row in block)
        self._add(np.frombuffer(digests, np.uint64), block, weights[came].numpy(force=True))

    def merge_(self, other: KeptRows, places: np.ndarray) -> None:
        """Add the rows of another, whose classes are these at `places`."""
        self._add(other.places, other.rows, _spread(other.weights, places, self.weights.shape[1]))

    def spread_(self, places: np.ndarray, classes: int) -> None:
        """Make room for `classes` columns, of which those there were go to `places`."""
        self.weights = _spread(self.weights, places, classes)

    def _add(self, places: np.ndarray, rows: np.ndarray, weights: np.ndarray) -> None:
        places, rows = np.concatenate([self.places, places]), np.concatenate([self.rows, rows])
        self.places, first, which = np.unique(places, return_index=True, return_inverse=True)
        summed = np.zeros((len(first), weights.shape[1]))
        np.add.at(summed, which, np.concatenate([self.weights, weights]))
        self.places, self.rows, self.weights = self.places[: self.size], rows[first[: self.size]], summed[: self.size]


def _spread(weights: np.ndarray, places: np.ndarray, classes: int) -> np.ndarray:
    wider = np.zeros((len(weights), classes))
    wider[:, places] = weights
    return wider


def left_out_scores(
    statistics: Statistics, phi: Tensor, weights: Tensor, relative_ridge: float, intercept: bool
) -> Tensor:
    """Scores (n, C) that rows phi (n, M) with class weights (n, C) would have, had each been left out of the sums.

    ``ȳ - (ȳ - ŷ) / (1 - w h)`` for a row of mean target ȳ, score ŷ, weight w and leverage h, which is exact for ridge
    regression with λ held (Allen's PRESS).
    """
    U, c = statistics.solve(relative_ridge, intercept)
    w, n = weights.sum(1, keepdim=True), statistics.weight
    about = phi - statistics.phi / n if intercept else phi
    h = (about.t() * substitute(statistics.factor(relative_ridge, intercept), about.t())).sum(0)[:, None]
    if intercept:
        h = h + 1 / n
    target = weights / w
    return target - (target - phi @ U - c) / (1 - w * h).clamp_min(1e-6)


def inverse_temperature(scores: np.ndarray, weights: np.ndarray) -> float:
    """The b for which softmax(b scores) gives the classes (n, C) their weights (n, C) the largest likelihood.

    Each row's classes are smoothed by one row in n + 2, shared among all (Platt's rule), so that b is finite for
    scores that are never wrong. The likelihood is concave in b, and its slope is solved for.
    """
    of_rows, smoothing = weights.sum(1, keepdims=True), 1 / (weights.sum() + 2)
    targets = (1 - smoothing) * weights + smoothing * of_rows / weights.shape[1]
    scores = scores - scores.max(1, keepdims=True)

    def slope(log_b: float) -> float:
        p = np.exp(math.exp(log_b) * scores)
        p /= p.sum(1, keepdims=True)
        return float(((targets - of_rows * p) * scores).sum())

    low, high = -math.log(SHARPEST), math.log(SHARPEST)
    if slope(low) <= 0:
        return 1 / SHARPEST
    return SHARPEST if slope(high) >= 0 else math.exp(float(brentq(slope, low, high, xtol=1e-13)))  # type: ignore[arg-type]
