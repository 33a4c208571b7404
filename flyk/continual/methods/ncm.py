"""Nearest class mean."""

from __future__ import annotations

from torch import Tensor

from flyk.continual.batch import Batch
from flyk.continual.methods.base import Method, Prediction, Setting
from flyk.continual.rivals import NearestClassMean


class NCM(Method):
    """The class whose mean of unprompted features is nearest (Euclidean). One pass, no training, any order."""

    def __init__(self, setting: Setting):
        super().__init__(setting)
        self.means = NearestClassMean(setting.num_classes, setting.num_features)

    def observe(self, batch: Batch) -> None:
        self.means.observe(batch.features, batch.labels, 0)

    def predict(self, batch: Batch, seen: Tensor, home: Tensor | None = None) -> Prediction:
        return Prediction(self.means.predict(batch.features, seen))
