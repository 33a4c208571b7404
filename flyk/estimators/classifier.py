"""FlyClassifier: REAR as a classifier that learns from a stream, new classes included."""

from __future__ import annotations

from numbers import Integral
from typing import Any

import numpy as np
import torch
from sklearn.base import ClassifierMixin, _fit_context
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d
from torch import Tensor

from flyk.estimators._calibration import KeptRows, inverse_temperature, left_out_scores
from flyk.estimators._input import as_numpy, checked_rows, checked_weights, like
from flyk.estimators._ridge import StreamingRidge


class FlyClassifier(ClassifierMixin, StreamingRidge):
    """Ridge regression to one-hot classes on ``φ = act(X Rᵀ)``, R frozen: REAR, arXiv 2602.01976, Eq. 2 to 4.

    ``U = (G + λ I)⁻¹ Q`` of ``G = Σ w φᵀφ`` and ``Q[:, c] = Σ w φ`` over the rows of class c, both about their means
    where there is an intercept: sums, so that any order and any split of the rows give the same classifier up to
    rounding, and classes may come late. All is computed in float64. G takes 8 n_components² bytes whatever the number
    of rows. The equations are solved at the first prediction after a change.

    Probabilities are a softmax of the scores times one number, which is fitted to scores that rows would have had if
    they had not been learned. For that the classifier keeps `calibration_rows` of its rows, drawn by a hash of what is
    in them: who has it has these rows of the data.

    Args:
        n_components, kind, density, activation, k, random_state: see `FlyProjection`.
        relative_ridge: λ as a share of the mean of G's diagonal, above 0.
        fit_intercept: whether each class has a constant, which is not penalised. Without, and with "relu", a row
            and its double get the same class.
        on_new_class: what `partial_fit` and `merge` do about a class that was not there before: "error" or "grow".
        calibration_rows: distinct rows kept for `predict_proba`.

    Attributes:
        classes_: (C,), sorted.
        class_weight_seen_: (C,) float64, sum of the weights of each class's rows.
        n_samples_seen_: rows so far.

    Raises:
        ValueError, TypeError: a parameter or an input that does not fit; nothing has been learned then.
    """

    _parameter_constraints = StreamingRidge._parameter_constraints | {
        "on_new_class": [StrOptions({"error", "grow"})],
        "calibration_rows": [Interval(Integral, 1, None, closed="left")],
    }

    def __init__(
        self,
        n_components: int = 1000,
        *,
        relative_ridge: float = 1e-2,
        fit_intercept: bool = True,
        on_new_class: str = "error",
        kind: str = "gaussian",
        density: float | str = "auto",
        activation: str = "relu",
        k: int | None = None,
        calibration_rows: int = 256,
        random_state: Any = 0,
    ) -> None:
        self.n_components = n_components
        self.relative_ridge = relative_ridge
        self.fit_intercept = fit_intercept
        self.on_new_class = on_new_class
        self.kind = kind
        self.density = density
        self.activation = activation
        self.k = k
        self.calibration_rows = calibration_rows
        self.random_state = random_state

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> FlyClassifier:
        """Learn rows X (N, n_features) of classes y (N,), and nothing of what came before."""
        return self._add(X, y, None, sample_weight, first=True)

    @_fit_context(prefer_skip_nested_validation=True)
    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> FlyClassifier:
        """Learn more rows.

        Args:
            X, y: (N, n_features) and (N,).
            classes: all classes that will come, as far as known. Without them those of the first y are the classes;
                one that comes later is an error or makes room for itself, by `on_new_class`.
            sample_weight: (N,), at least 0.
        """
        return self._add(X, y, classes, sample_weight, first=not hasattr(self, "classes_"))

    def _add(self, X: Any, y: Any, classes: Any, sample_weight: Any, *, first: bool) -> FlyClassifier:
        X, y = checked_rows(self, X, as_numpy(y), reset=first)
        y = column_or_1d(y, warn=True)
        check_classification_targets(y)
        weights = checked_weights(sample_weight, X, first=first)
        came = np.unique(y)
        if classes is not None:
            classes = np.unique(as_numpy(classes))
            if strangers := sorted(set(came) - set(classes)):
                raise ValueError(f"y must hold the classes given, {classes}, got {str(strangers[0])!r}")
            came = classes
        if first:
            self.classes_ = came
            self._begin(X, len(came))
            self._kept_rows = KeptRows(self.calibration_rows, self.n_features_in_, len(came))
        else:
            self._check_shape()
            self._make_room(came, "y")
        codes = torch.from_numpy(np.searchsorted(self.classes_, y))
        targets = torch.nn.functional.one_hot(codes, len(self.classes_)).to(torch.float64)
        self._learn(X, targets, weights)
        return self

    def _make_room(self, came: np.ndarray, name: str) -> None:
        """Classes that were not there before get their columns, or an error."""
        if (came.dtype.kind in "iufb") != (self.classes_.dtype.kind in "iufb"):  # else numpy would make texts of all
            raise TypeError(f"{name} must hold classes of the kind of those before, {self.classes_}, got {came}")
        union = np.union1d(self.classes_, came)
        if len(union) == len(self.classes_):
            return
        if self.on_new_class == "error":
            new = np.setdiff1d(came, self.classes_)[0]
            raise ValueError(
                f"{name} must hold no class but those before, {self.classes_}, got {str(new)!r}: give all `classes` "
                "to the first partial_fit, or on_new_class='grow'"
            )
        places = np.searchsorted(union, self.classes_)
        self._statistics.spread_(torch.from_numpy(places), len(union))
        self._kept_rows.spread_(places, len(union))
        self.classes_ = union

    def _learn_block(self, rows: Tensor, targets: Tensor, weights: Tensor) -> None:
        super()._learn_block(rows, targets, weights)
        self._kept_rows.add(rows, targets * weights[:, None])

    def _masked_scores(self, X: Any, method: str) -> tuple[Any, Tensor]:
        """Scores (N, C); classes without a row have -inf."""
        X, scores = self._scores(X, method)
        return X, scores.masked_fill(self._statistics.target == 0, -torch.inf)

    def decision_function(self, X: Any) -> Any:
        """Scores (N, C), near 1 for a sure class and near 0 for the others; of two classes the difference, (N,).

        A class without a row so far has -inf.
        """
        X, scores = self._masked_scores(X, "decision_function")
        return like(X, scores[:, 1] - scores[:, 0] if len(self.classes_) == 2 else scores)

    def predict(self, X: Any) -> Any:
        """The class with the largest score, (N,); ties go to the one that is sorted before."""
        X, scores = self._masked_scores(X, "predict")
        best = scores.argmax(1)
        if isinstance(X, Tensor) and self.classes_.dtype.kind in "iufb":
            return torch.from_numpy(self.classes_).to(X.device)[best]
        return self.classes_[best.numpy(force=True)]

    def predict_proba(self, X: Any) -> Any:
        """Probabilities (N, C), which rank the classes of a row as its scores do."""
        X, scores = self._masked_scores(X, "predict_proba")
        return like(X, torch.softmax(self._calibrated() * scores, 1))

    def _calibrated(self) -> float:
        """The scores' factor in the softmax; kept with the sums, as the solution is."""
        statistics, rows, how = self._statistics, self._kept_rows, (self.relative_ridge, self.fit_intercept)
        if ("sharpness", how) not in statistics.kept:
            phi = self._expansion(torch.from_numpy(rows.rows).to(statistics.G))
            scores = left_out_scores(statistics, phi, torch.from_numpy(rows.weights).to(statistics.G), *how)
            seen = rows.weights.any(0)
            sharpness = inverse_temperature(scores.numpy(force=True)[:, seen], rows.weights[:, seen])
            statistics.kept["sharpness", how] = sharpness
        return statistics.kept["sharpness", how]

    def merge(self, other: FlyClassifier) -> FlyClassifier:
        """Add what another has learned, which then is as if this one had learned its rows too; other stays.

        Raises:
            ValueError, TypeError: other has another expansion or, with on_new_class="error", a class more; or it is
                no fitted `FlyClassifier`.
        """
        self._check_merge(other)
        self._make_room(other.classes_, "other")
        places = np.searchsorted(self.classes_, other.classes_)
        self._statistics.merge_(other._statistics, torch.from_numpy(places))
        self._kept_rows.merge_(other._kept_rows, places)
        self.n_samples_seen_ += other.n_samples_seen_
        return self

    @property
    def class_weight_seen_(self) -> Any:
        return self._as_fitted(self._statistics.target)
