"""FlyLoRA, arXiv 2510.08396: adapters of different seeds are nearly orthogonal."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from flyk.check.theory._statement import Measured, Statement
from flyk.nn import FlyLoRALinear, RandomProjection
from flyk.ops.project import dense


def cross_gram() -> Iterator[Measured]:
    """Of two seeds, A_i A_jᵀ has the mean 0 and the norm p/(√n r): √(r/n) of A_i A_iᵀ, however sparse A is.

    That is the product over inputs, r x r. The one over ranks, A_iᵀ A_j, is as large as A_iᵀ A_i.
    """
    n, r, pairs = 4096, 32, 4
    for p in (102, 1024, 4096):
        first, second = (torch.stack([_matrix(n, r, p, seed) for seed in range(s, s + pairs)]) for s in (0, pairs))
        cross, own, other = first @ second.mT, first @ first.mT, second @ second.mT
        norm, own_norm, expected = _norms(cross), _norms(own), p / (math.sqrt(n) * r)
        entry = expected / r  # the standard deviation of an entry, of which there are pairs r²
        yield Measured(f"p = {p}: mean entry", 0, float(cross.mean()), 4 * entry / (r * math.sqrt(pairs)))
        yield Measured(f"p = {p}: norm", expected, float(norm.mean()), 0.08 * expected)
        ratio = float((norm / own_norm).mean())
        yield Measured(f"p = {p}: norm over that of one seed", math.sqrt(r / n), ratio, 0.08 * math.sqrt(r / n))
        over_ranks = ((own * other).sum((1, 2)).sqrt() / own_norm).mean()
        yield Measured(f"p = {p}: the same of AᵀA", 1, float(over_ranks), 0.08)


def _matrix(n: int, r: int, p: int, seed: int) -> Tensor:
    A = RandomProjection(n, r, kind="sparse_gaussian", nnz=p, std=1 / r, seed=seed)
    return dense(A.values, A.indices, n).double()


def _norms(matrices: Tensor) -> Tensor:
    return torch.linalg.matrix_norm(matrices)


def updates() -> Iterator[Measured]:
    """Updates B A of different seeds are orthogonal even where the B are not; those of one seed are as alike as the B.

    So the squared norms of merged updates add up: |Σ w_t B_t A_t|² = Σ w_t² |B_t A_t|².
    """
    generator = torch.Generator().manual_seed(0)
    B = torch.randn(64, 32, generator=generator)
    similar = B + 0.3 * torch.randn(64, 32, generator=generator)

    def update(B: Tensor, seed: int) -> Tensor:
        layer = FlyLoRALinear(1024, 64, 32, 8, seed=seed)
        layer.B.data.copy_(B)
        return layer.dense_delta().detach()

    alike = _cosine(B, similar)
    yield Measured("cosine of the B", 0.96, alike, 0.01)
    first = update(B, 0)
    yield Measured("cosine of updates of one seed", alike, _cosine(first, update(similar, 0)), 0.01)
    others = [update(similar, seed) for seed in range(1, 9)]
    apart = sum(abs(_cosine(first, other)) for other in others) / len(others)
    yield Measured("mean |cosine| of updates of two seeds", 0, apart, 0.01)
    merged = float((0.5 * first + 0.5 * others[0]).square().sum())
    apart = float(0.25 * (first.square().sum() + others[0].square().sum()))
    yield Measured("squared norm of two merged", apart, merged, 0.02 * apart)


def _cosine(a: Tensor, b: Tensor) -> float:
    return float(torch.cosine_similarity(a.flatten(), b.flatten(), dim=0))


STATEMENTS = (
    Statement("FlyLoRA, Thm 3.4", cross_gram),
    Statement("FlyLoRA, Cor. 3.5", updates),
)
