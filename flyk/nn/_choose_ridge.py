"""A ridge by generalised cross-validation, from the statistics alone."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import torch
from torch import Tensor

from flyk.nn import _check


def choose(G: Tensor, Q: Tensor, counts: Tensor, ridges: Sequence[float] | None) -> float:
    """The candidate of least score; see `REAR.choose_ridge`."""
    rows = int(counts.sum())
    if not rows:
        raise ValueError("choose_ridge needs at least one row to have been given to update, got none")
    if ridges is None:
        ridges = (
            G.diagonal().double().mean() * torch.logspace(-8, 4, 25, dtype=torch.float64, device=G.device)
        ).tolist()
    candidates = sorted(_check.number("ridges", ridge, 0) for ridge in _check.items("ridges", ridges))
    if not candidates or candidates[0] == 0:
        raise ValueError(f"ridges must be one or more numbers above 0, got {candidates}")
    scores, freedom = gcv(G, Q, rows, torch.tensor(candidates, dtype=torch.float64, device=G.device))
    best = int(scores.argmin())
    if len(candidates) > 1 and best in (0, len(candidates) - 1):
        warnings.warn(
            f"the best ridge, {candidates[best]:.3g}, is at the edge of the candidates: a better one may lie beyond; "
            f"{float(freedom[best]):.0f} of {rows} rows' freedom is used",
            stacklevel=4,
        )
    return candidates[best]


def gcv(G: Tensor, Q: Tensor, rows: int, ridges: Tensor) -> tuple[Tensor, Tensor]:
    """The score of each ridge (L,) for one-hot targets, and its effective degrees of freedom tr Φ(G + λI)⁻¹Φᵀ.

    With G = V diag(g) Vᵀ and q = Vᵀ Q: the residual is ``N - Σ q² (g + 2λ) / (g + λ)²``, the freedom ``Σ g / (g + λ)``.
    """
    values, vectors = torch.linalg.eigh(G.double())
    values, energy = values.clamp_min(0), (vectors.t() @ Q.double()).square().sum(1)
    shifted = values + ridges[:, None]
    residual = rows - (energy * (values + 2 * ridges[:, None]) / shifted.square()).sum(1)
    freedom = (values / shifted).sum(1)
    # With as many degrees of freedom as rows both vanish, and the score means nothing.
    left = rows - freedom
    scores = torch.where(left > 1e-3 * rows, rows * residual.clamp_min(0) / left.square(), torch.inf)
    return scores, freedom
