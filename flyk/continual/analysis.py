"""What a trained method looks like inside: who is routed where, how alike its experts are, whether its heads agree."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flyk.continual import metrics
from flyk.continual.batch import Batch
from flyk.continual.material import Material
from flyk.continual.methods import Method

CKA_ROWS = 256  # test samples that the experts' features are compared on
LEAST_ROWS = 4  # that HSIC has an unbiased estimate for


@torch.no_grad()
def analyse(method: Method, material: Material, counts: NDArray[np.int64], rows: int = 128) -> dict[str, Any]:
    """For a method that routes: `confusion`, `cka` and `mean_cosine` between its experts. For others nothing.

    `cka` is left out where there are fewer than the four test samples it needs, and where all experts see the same.

    Args:
        counts: (E, C) training samples of each class that each expert saw.
        rows: test samples at a time.
    """
    if method.expert is None:
        return {}
    part, home = material.test, metrics.home_experts(counts)
    seen = torch.from_numpy(counts.any(axis=0))
    known = torch.from_numpy(np.flatnonzero(seen.numpy()[part.labels.numpy()]))
    told = [method.predict(Batch(part, chunk), seen).routes for chunk in known.split(rows)]
    routes = [one for one in told if one is not None]
    if not routes:
        return {}
    target, routed = part.labels[known].numpy(), torch.cat(routes).numpy()
    out: dict[str, Any] = {"confusion": confusion(routed, home[target], len(counts)).tolist()}
    alike = known[torch.linspace(0, len(known) - 1, min(CKA_ROWS, len(known))).long()]
    if len(alike) >= LEAST_ROWS:
        features = [
            torch.cat([method.expert_features(Batch(part, chunk), e) for chunk in alike.split(rows)])
            for e in range(len(counts))
        ]
        if any(not torch.equal(one, features[0]) for one in features):
            out["cka"] = cka_matrix(features)
    out["mean_cosine"] = mean_cosine(expert_means(material, counts)).tolist()
    return out


def confusion(routes: NDArray, home: NDArray, num_experts: int) -> NDArray[np.float64]:
    """(E, E): of the samples whose home is expert i, the share that is routed to j; NaN where there are none."""
    table = np.zeros((num_experts, num_experts))
    np.add.at(table, (home, routes), 1)
    total = table.sum(axis=1, keepdims=True)
    return np.where(total > 0, table / np.where(total > 0, total, 1), np.nan)


def hsic(K: Tensor, L: Tensor) -> Tensor:
    """The unbiased estimate of HSIC of two (n, n) kernels, n > 3 (Song et al., JMLR 2012, Eq. 5)."""
    n = len(K)
    K, L = K - torch.diag(K.diag()), L - torch.diag(L.diag())
    whole = K.sum() * L.sum() / ((n - 1) * (n - 2))
    return ((K * L).sum() + whole - 2 / (n - 2) * (K.sum(0) @ L.sum(0))) / (n * (n - 3))


def minibatch_cka(X: Tensor, Y: Tensor, rows: int = 64) -> float:
    """Debiased linear CKA of the same samples' features X (N, p) and Y (N, q), HSIC averaged over parts of `rows`.

    ``HSIC(X, Y) / sqrt(HSIC(X, X) HSIC(Y, Y))`` (Kornblith et al., ICML 2019; averaged as by Nguyen et al., ICLR
    2021). 1 for X itself and any rotation or scale of it; near 0 for unrelated features. A last part of fewer than 4
    samples is left out.

    Raises:
        ValueError: X and Y differ in samples, or there are fewer than 4.
    """
    if len(X) != len(Y) or len(X) < LEAST_ROWS:
        raise ValueError(f"X and Y must be of the same samples, at least {LEAST_ROWS}, got {len(X)} and {len(Y)}")
    sums = torch.zeros(3, dtype=torch.float64)
    for x, y in zip(X.double().split(rows), Y.double().split(rows), strict=True):
        if len(x) >= LEAST_ROWS:
            K, L = x @ x.T, y @ y.T
            sums += torch.stack([hsic(K, L), hsic(K, K), hsic(L, L)])
    return float(sums[0] / (sums[1] * sums[2]).sqrt())


def cka_matrix(features: list[Tensor]) -> list[list[float]]:
    """`minibatch_cka` of each pair; it is symmetric."""
    lower = {(i, j): minibatch_cka(features[i], features[j]) for i in range(len(features)) for j in range(i + 1)}
    return [[lower[max(i, j), min(i, j)] for j in range(len(features))] for i in range(len(features))]


def expert_means(material: Material, counts: NDArray[np.int64]) -> Tensor:
    """(E, d) the mean unprompted feature of each expert's training samples, from class means and counts."""
    part = material.train
    means = torch.zeros(counts.shape[1], part.features.shape[2], dtype=torch.float64)
    total = torch.bincount(part.labels, minlength=len(means)).clamp(min=1)
    means.index_add_(0, part.labels, part.features[0].double())
    weight = torch.from_numpy(counts).double()
    return weight @ (means / total[:, None]) / weight.sum(1, keepdim=True).clamp(min=1)


def mean_cosine(means: Tensor) -> Tensor:
    """(E, E) cosines between the experts' means, taken from the mean of all of them."""
    centred = torch.nn.functional.normalize(means - means.mean(0), dim=1)
    return centred @ centred.T
