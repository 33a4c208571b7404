"""FlyLoRA, arXiv 2510.08396: lengths under the sparse projection, and ranks that are active together."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from flyk.check.theory._statement import Measured, Statement
from flyk.nn import FlyLoRALinear, RandomProjection
from flyk.ops import project_topk, winner_take_all
from flyk.ops.winner_take_all import scatter

SPREAD = 4  # standard errors that a mean may be off by


def ratios(x: Tensor, count: int, r: int, p: int, seed: int) -> Tensor:
    """(..., count) |Ax|² / (r σ²) for x (..., n) and so many independent A (r, n) of p entries N(0, 1/r²) a row.

    σ² = p / (n r²) is the variance of an entry. The matrices are blocks of the rows of one projection.
    """
    n = x.shape[-1]
    A = RandomProjection(n, count * r, kind="sparse_gaussian", nnz=p, std=1 / r, seed=seed)
    return A(x.float()).double().unflatten(-1, (count, r)).square().sum(-1) * (n * r / p)


def lengths() -> Iterator[Measured]:
    """|Ax|² / (r σ²) has the mean |x|² and, for unit x, the variance 2/r if x is flat and (3n/p - 1)/r if it is e₁.

    Sparser rows therefore keep lengths less well, where the paper's proof has the ratio inverted, 3p/n.
    """
    count, r, n = 4000, 32, 128
    for p in (8, 32, 128):
        found = ratios(torch.stack([torch.full((n,), n**-0.5), torch.eye(n)[0]]), count, r, p, seed=8)
        for x, ratio, variance in zip(("flat", "e₁"), found, (2 / r, (3 * n / p - 1) / r), strict=True):
            squares, what = (ratio - 1).square(), f"p/n = {p / n:g}, {x} x"
            yield Measured(f"{what}: mean", 1, float(ratio.mean()), SPREAD * math.sqrt(variance / count))
            error = SPREAD * float(squares.std()) / math.sqrt(count)
            yield Measured(f"{what}: variance", variance, float(squares.mean()), error)


def distortion() -> Iterator[Measured]:
    """Lengths are kept to 20 % at least as often as the bound says once its 3p/n is put right, to 3n/p."""
    count, r, n, eps = 100, 512, 256, 0.2
    five = torch.zeros(n)
    five[:5] = 5**-0.5
    x = torch.stack([torch.full((n,), n**-0.5), torch.eye(n)[0], five])

    def bound(moment: float) -> float:
        slack = (eps**2 - eps**3) * r
        return 1 - math.exp(-slack / 4) - math.exp(-slack / (2 * (moment + 1)))

    for p in (13, 64, n):
        kept = ((ratios(x, count, r, p, seed=3) - 1).abs() <= eps).double().mean(-1).tolist()
        for name, share in zip(("flat", "e₁", "5-sparse"), kept, strict=True):
            yield Measured(f"p/n = {p / n:.2g}, {name} x: share kept", bound(3 * n / p), share, relation=">=")
        if p < n:
            what = f"p/n = {p / n:.2g}, e₁: below the bound as printed"
            yield Measured(what, bound(3 * p / n), kept[1], relation="<=")


def activity() -> Iterator[Measured]:
    """Inputs without direction use each rank with probability k/r and each pair with k(k-1)/(r(r-1)), not (k/r)².

    The means hold by counting; that each rank and each pair come near them is what the random A has to bring.
    """
    r, tokens = 32, 3000
    for k in (1, 4, 8, 32):
        layer = FlyLoRALinear(1024, 4, r, k, nnz=1024, seed=3)
        x = torch.randn(tokens, 1024, generator=torch.Generator().manual_seed(0))
        A = layer.projection
        winners = project_topk(x, A.values, A.indices, k)[1]
        active = torch.zeros(tokens, r, dtype=torch.float64).scatter_(1, winners, 1.0)
        together = active.T @ active / tokens
        pairs = together[~torch.eye(r, dtype=torch.bool)]
        pair = k * (k - 1) / (r * (r - 1))
        yield Measured(f"k = {k}: mean share of a pair", pair, float(pairs.mean()), 1e-9)
        yield Measured(f"k = {k}: a pair's mean distance from it", 0, float((pairs - pair).abs().mean()), 0.25 * pair)
        furthest = float((together.diagonal() - k / r).abs().max())
        yield Measured(f"k = {k}: a rank's furthest distance from k/r", 0, furthest, 0.35 * k / r)


def gradient_covariance() -> Iterator[Measured]:
    """k of r ranks, drawn at random, leave k(k-1)/(r(r-1)) of the covariance of two gradients and k/r of a variance.

    So their correlation falls to (k-1)/(r-1) only. Gradients are drawn with mean 0 and correlation 1/2.
    """
    r, rows = 32, 100_000
    generator = torch.Generator().manual_seed(0)

    def draw(columns: int) -> Tensor:
        return torch.randn(rows, columns, dtype=torch.float64, generator=generator)

    gradient = math.sqrt(0.5) * (draw(1) + draw(r))
    every = _moments(gradient)
    for k in (1, 8, r):
        chosen = winner_take_all(torch.rand(rows, r, generator=generator), k)[1]
        some = _moments(scatter(gradient.gather(1, chosen), chosen, r))
        parts = {"covariance": k * (k - 1) / (r * (r - 1)), "variance": k / r}
        found = {}
        for (name, share), kept, whole in zip(parts.items(), some, every, strict=True):
            found[name] = float(kept.mean() / whole.mean())
            error = float((kept - share * whole).std() / whole.mean()) / math.sqrt(rows)
            yield Measured(f"k = {k}: {name} left", share, found[name], SPREAD * error + 1e-12)
        correlation = found["covariance"] / found["variance"]
        yield Measured(f"k = {k}: correlation left", (k - 1) / (r - 1), correlation, 0.02 * (k > 1) + 1e-12)


def _moments(gradient: Tensor) -> tuple[Tensor, Tensor]:
    """Of each row the mean product of two different entries, and the mean square of one."""
    r, squares = gradient.shape[1], gradient.square().sum(1)
    return (gradient.sum(1).square() - squares) / (r * (r - 1)), squares / r


STATEMENTS = (
    Statement("FlyLoRA, Thm 3.1", lengths),
    Statement("FlyLoRA, Thm 3.1, corrected", distortion),
    Statement("FlyLoRA, Assumption 3.2", activity),
    Statement("FlyLoRA, Thm 3.3", gradient_covariance),
)
