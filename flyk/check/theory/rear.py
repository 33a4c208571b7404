"""REAR, arXiv 2602.01976: its statistics are sums, and its expansion has a known kernel and scale."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from flyk.check.theory._statement import Measured, Statement
from flyk.nn import REAR, RandomProjection
from flyk.ops import project


def streams() -> Iterator[Measured]:
    """A stream in any order and any split, or in two routers merged, gives the ridge regression of all rows at once."""
    rows, experts, options = 600, 5, {"ridge": 10.0, "dtype": torch.float64, "flush_rows": 64}
    generator = torch.Generator().manual_seed(0)
    h = torch.randn(rows, 16, dtype=torch.float64, generator=generator)
    labels = torch.randint(experts, (rows,), generator=generator)

    def learned(order: Tensor, size: int) -> REAR:
        router = REAR(16, experts, 200, **options)
        for part in order.split(size):
            router.update(h[part], labels[part])
        return router

    in_order, shuffled = torch.arange(rows), torch.randperm(rows, generator=generator)
    ways = {
        "all at once": learned(in_order, rows),
        "row by row": learned(in_order, 1),
        "shuffled, 37 at a time": learned(shuffled, 37),
        "two routers merged": learned(shuffled[:250], 50).merge_(learned(shuffled[250:], 50)),
    }
    R = ways["all at once"].projection
    phi = project(h, R.values, R.indices, activation="relu")
    G = phi.T @ phi + options["ridge"] * torch.eye(200, dtype=torch.float64)
    U = torch.linalg.solve(G, phi.T @ F.one_hot(labels, experts).double())
    for way, router in ways.items():
        yield Measured(f"{way}: relative error of U", 0, float((router.solve() - U).norm() / U.norm()), 1e-10)


def kernel() -> Iterator[Measured]:
    """φφᵀ/M tends to the arc-cosine kernel K = (sin θ + (π - θ) cos θ) / 2π of unit vectors, off by 1.2 √(log N / M).

    The errors have just the variance (J - K²) / M of a mean over M independent units, where J is the kernel of order 2,
    (3 sin θ cos θ + (π - θ)(1 + 2 cos² θ)) / 2π.
    """
    N, seeds = 40, 5
    h = F.normalize(torch.randn(N, 64, dtype=torch.float64, generator=torch.Generator().manual_seed(0)))
    cos = (h @ h.T).clamp(-1, 1)
    theta = cos.acos()
    K = (theta.sin() + (math.pi - theta) * cos) / (2 * math.pi)
    J = (3 * theta.sin() * cos + (math.pi - theta) * (1 + 2 * cos**2)) / (2 * math.pi)
    pairs = torch.ones(N, N).triu(1).bool()  # of different vectors: a vector's own entry errs more
    for M in (100, 1000, 10_000):
        made = [RandomProjection(64, M, kind="gaussian", seed=seed) for seed in range(seeds)]
        phi = [R(h.float(), activation="relu").double() for R in made]
        errors = torch.stack([each @ each.T / M - K for each in phi])
        largest, rate = errors[:, pairs].abs().amax(1), math.sqrt(math.log(N) / M)
        yield Measured(f"M = {M}: largest error, mean of {seeds}", 1.2 * rate, float(largest.mean()), 0.4 * rate)
        yield Measured(f"M = {M}: largest error of all", 1.5 * rate, float(largest.max()), relation="<=")
        variance = float((errors.square() * M / (J - K**2)).mean())
        yield Measured(f"M = {M}: variance over that of a mean", 1, variance, 0.15)


def scale_of_G() -> Iterator[Measured]:
    """The mean of G's diagonal after N rows is N E|h|²/2, against which λ must be read."""
    h = 1.7 * torch.randn(400, 64, generator=torch.Generator().manual_seed(1)) + 0.4
    router = REAR(64, 1, 1000)
    router.update(h, 0)
    router.flush()
    expected = float(h.square().sum(1).mean()) / 2
    yield Measured("mean diagonal / N", expected, float(router.G.diagonal().mean()) / len(h), 0.05 * expected)


def single_precision() -> Iterator[Measured]:
    """In float32 the solution is off by no more than the condition of G + λI times float32's precision.

    Features are as a layer norm leaves them, of ten experts; λ is REAR's default, 1e4.
    """
    rows, d, experts, M = 8000, 64, 10, 1000
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(experts, (rows + 1000,), generator=generator)
    centres, mix = torch.randn(experts, d, generator=generator), torch.randn(d, d, generator=generator) / 8
    h = F.layer_norm(centres[labels] + torch.randn(rows + 1000, d, generator=generator) @ mix, (d,))
    routers = [REAR(d, experts, M, dtype=dtype) for dtype in (torch.float32, torch.float64)]
    for router in routers:
        router.update(h[:rows], labels[:rows])
    single, double = (router.solve().double() for router in routers)
    values = torch.linalg.eigvalsh(routers[1].G) + routers[1].ridge
    limit = float(values[-1] / values[0]) * torch.finfo(torch.float32).eps
    yield Measured("relative error of U", limit, float((single - double).norm() / double.norm()), relation="<=")
    first, second = (router.route(h[rows:]) for router in routers)
    yield Measured("new rows of 1000 that are routed otherwise", 0, float((first != second).sum()))


STATEMENTS = (
    Statement("FlyPrompt, Lemma 3", streams),
    Statement("FlyPrompt, Lemma 1", kernel),
    Statement("FlyPrompt, Eq. 2 and 4", scale_of_G),
    Statement("FlyPrompt, Eq. 4 in float32", single_precision),
)
