"""TE2, arXiv 2602.01976: what a bank of moving averages holds, and which of them is best under drift."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from flyk.check.theory._statement import Measured, Statement
from flyk.nn import TE2Head
from flyk.ops import ema_


def closed_form() -> Iterator[Measured]:
    """After t steps an average is α^t W_0 + (1 - α) Σ_s α^(t - s) W_s over s = 1 .. t."""
    decays, steps = (0.0, 0.9, 0.99, 1.0), 200
    online = torch.randn(steps + 1, 30, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    bank = online[0].repeat(len(decays), 1)
    for each in online[1:]:
        ema_(bank, each, decays)
    ages = torch.arange(steps - 1, -1, -1, dtype=torch.float64)
    for decay, average in zip(decays, bank, strict=True):
        exact = decay**steps * online[0] + (1 - decay) * (decay**ages) @ online[1:]
        yield Measured(f"α = {decay:g}: relative error", 0, float((average - exact).norm() / exact.norm()), 1e-13)


@torch.no_grad()
def drift() -> Iterator[Measured]:
    """For unit noise and drift δ a step the error is (1 - α)/(1 + α) + (δα/(1 - α))²: the drift chooses the best α."""
    decays, steps, samples = (0.0, 0.9, 0.99), 1000, 6000
    for step_size in (0.0, 0.002, 0.02, 0.1):
        head = TE2Head(1, samples, 1, decays)
        generator = torch.Generator().manual_seed(0)
        head.online.weight.zero_()
        head.start_expert(0)
        for step in range(1, steps + 1):
            head.online.weight.copy_(step_size * step + torch.randn(samples, 1, generator=generator))
            head.ema_step()
        errors = (head.bank_weight[0].double() - step_size * steps).square().mean((1, 2)).tolist()
        expected = [(1 - a) / (1 + a) + (step_size * a / (1 - a)) ** 2 for a in decays]
        for decay, foretold, error in zip(decays, expected, errors, strict=True):
            yield Measured(f"δ = {step_size:g}, α = {decay:g}: mean square error", foretold, error, 0.06 * foretold)
        foretold, best = (decays[values.index(min(values))] for values in (expected, errors))
        yield Measured(f"δ = {step_size:g}: best α", foretold, best)


STATEMENTS = (
    Statement("FlyPrompt, Eq. 7", closed_form),
    Statement("FlyPrompt, Thm 2", drift),
)
