"""The sums of which ridge regression with an intercept is made, in float64."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from flyk.ops import gram_
from flyk.ops.ridge_solve import factor, substitute

SUMS = ("G", "Q", "phi", "target", "weight")
OF_TARGETS = ("Q", "target")


class Statistics:
    """Sums over rows with features φ, targets y and weights w: any order and any split of the rows give the same.

    ``G = Σ w φᵀφ`` (M, M), of which the lower triangle is meant, ``Q = Σ w φᵀy`` (M, T), ``phi = Σ w φ`` (M,),
    ``target = Σ w y`` (T,) and ``weight = Σ w``. They are REAR's (arXiv 2602.01976, Eq. 2) where every weight is 1
    and y is one-hot; the last three center them.

    The solution is made when it is asked for and kept until the next row. An estimator's attributes do not change when
    it predicts, as scikit-learn wants; what is kept stands here.
    """

    G: Tensor
    Q: Tensor
    phi: Tensor
    target: Tensor
    weight: Tensor

    def __init__(self, features: int, targets: int, device: torch.device) -> None:
        shapes = ((features, features), (features, targets), (features,), (targets,), ())
        for name, shape in zip(SUMS, shapes, strict=True):
            setattr(self, name, torch.zeros(shape, dtype=torch.float64, device=device))
        self.kept: dict[Any, Any] = {}  # by the ridge and the intercept that it was made with

    def add(self, phi: Tensor, y: Tensor, weights: Tensor) -> None:
        """Rows phi (N, M), y (N, T) and weights (N,), in float64."""
        # gram_ sums its Q by labels without weights, so one column takes what is not wanted.
        unwanted = self.Q.new_empty(self.Q.shape[0], 1).zero_()
        labels = torch.zeros(phi.shape[0], dtype=torch.int64, device=phi.device)
        gram_(self.G, unwanted, phi * weights.sqrt()[:, None], labels)
        weighted = y * weights[:, None]
        self.Q.addmm_(phi.t(), weighted)
        self.phi += weights @ phi
        self.target += weighted.sum(0)
        self.weight += weights.sum()
        self.kept.clear()

    def merge_(self, other: Statistics, places: Tensor) -> None:
        """Add the sums of another, whose targets are these at `places` (T,)."""
        for name in SUMS:
            mine, theirs = getattr(self, name), getattr(other, name).to(self.G)
            if name in OF_TARGETS:
                mine.index_add_(-1, places.to(mine.device), theirs)
            else:
                mine += theirs
        self.kept.clear()

    def spread_(self, places: Tensor, targets: int) -> None:
        """Make room for `targets` columns, of which those there were go to `places` (T,)."""
        for name in OF_TARGETS:
            old = getattr(self, name)
            new = old.new_zeros(*old.shape[:-1], targets)
            setattr(self, name, new.index_copy_(-1, places.to(old.device), old))
        self.kept.clear()

    def factor(self, relative_ridge: float, intercept: bool) -> Tensor:
        """Cholesky's factor of ``G + λ I``, of G about its mean where there is an intercept.

        λ is `relative_ridge` times the mean of G's diagonal, taken before it is centred.
        """
        ridge = relative_ridge * float(self.G.diagonal().mean()) or relative_ridge  # G is 0 where each φ is
        G = self.G - torch.outer(self.phi, self.phi / self.weight) if intercept else self.G
        return factor(G, ridge)

    def solve(self, relative_ridge: float, intercept: bool) -> tuple[Tensor, Tensor]:
        """U (M, T) and the intercept (T,) of all rows so far.

        Raises:
            ValueError: the ridge is too small for this G.
        """
        at = relative_ridge, intercept
        if at not in self.kept:
            Q = self.Q - torch.outer(self.phi, self.target / self.weight) if intercept else self.Q
            U = substitute(self.factor(relative_ridge, intercept), Q)
            c = (self.target - self.phi @ U) / self.weight if intercept else torch.zeros_like(self.target)
            self.kept[at] = U, c
        return self.kept[at]
