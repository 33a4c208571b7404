"""Streaming linear discriminant analysis."""

from __future__ import annotations

import torch
from torch import Tensor

from flyk.continual.batch import Batch
from flyk.continual.methods.base import Method, Prediction, Setting


class SLDA(Method):
    """Linear discriminant analysis from sums (Hayes and Kanan, CVPR workshops 2020, arXiv 1909.01520).

    ``S = (Σ x xᵀ - Σ_c n_c μ_c μ_cᵀ) / N``, ``Λ = ((1 - shrinkage) S + shrinkage I)⁻¹`` and the class of the largest
    ``μ_cᵀ Λ x - μ_cᵀ Λ μ_c / 2``. The paper updates S by each sample's distance from the mean as it then was; these
    sums give the covariance around the means of all samples, in any order. In float64.

    Raises:
        ValueError: shrinkage is not above 0 and at most 1, or, in `predict`, too small for the features.
    """

    sums: Tensor
    counts: Tensor
    second: Tensor

    def __init__(self, setting: Setting, *, shrinkage: float = 1e-4):
        super().__init__(setting)
        if not 0 < shrinkage <= 1:
            raise ValueError(f"shrinkage must be above 0 and at most 1, got {shrinkage}")
        self.shrinkage = shrinkage
        d, classes = setting.num_features, setting.num_classes
        self.register_buffer("sums", torch.zeros(classes, d, dtype=torch.float64))
        self.register_buffer("counts", torch.zeros(classes, dtype=torch.float64))
        self.register_buffer("second", torch.zeros(d, d, dtype=torch.float64))

    def observe(self, batch: Batch) -> None:
        x = batch.features.double()
        self.sums.index_add_(0, batch.labels, x)
        self.counts += torch.bincount(batch.labels, minlength=len(self.counts))
        self.second.addmm_(x.T, x)

    def predict(self, batch: Batch, seen: Tensor, home: Tensor | None = None) -> Prediction:
        means = self.sums / self.counts.clamp(min=1)[:, None]
        within = (self.second - (means * self.counts[:, None]).T @ means) / self.counts.sum().clamp(min=1)
        within.mul_(1 - self.shrinkage).diagonal().add_(self.shrinkage)
        lower, failed = torch.linalg.cholesky_ex(within)
        if failed:
            raise ValueError(f"shrinkage must be larger for these features, got {self.shrinkage}")
        weight = torch.cholesky_solve(means.T, lower)
        scores = batch.features.double() @ weight - (means.T * weight).sum(0) / 2
        return Prediction(scores.masked_fill(~seen, -torch.inf).argmax(1))
