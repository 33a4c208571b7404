"""The exponential of csrc, seen through masked_cross_entropy's gradient: of two classes the other one's is p = e^x / N,
and nothing but e^x is rounded where e^x is below half a unit of 1.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from flyk import ops

ROWS = 2**14
# Where 1 + e^x is 1, above the subnormal results; the gradient is e^x / ROWS, a power of two.
RANGES = [(torch.float32, -77.0, -17.0, 2.0), (torch.float64, -690.0, -38.0, 2.0)]
# Elsewhere a sum and a quotient are rounded too.
RANGES += [(torch.float32, -17.0, 0.0, 3.5), (torch.float64, -38.0, 0.0, 3.5)]


@pytest.mark.parametrize(("dtype", "low", "high", "units"), RANGES)
def test_exponential_is_within_units_in_the_last_place(
    dtype: torch.dtype, low: float, high: float, units: float
) -> None:
    x = torch.empty(ROWS, dtype=dtype).uniform_(low, high, generator=torch.Generator().manual_seed(0))
    logits = torch.stack([torch.zeros_like(x), x], 1).requires_grad_()
    target = torch.zeros(ROWS, dtype=torch.int64)
    target[-1] = 1  # so that both classes are present
    ops.masked_cross_entropy(logits, target).backward()
    assert logits.grad is not None
    found = logits.grad[:-1, 1].numpy() * ROWS
    wide = np.exp(x[:-1].numpy().astype(np.longdouble))
    exact = wide / (1 + wide)
    spacing = np.spacing(exact.astype(found.dtype)).astype(np.longdouble)
    assert (np.abs(found - exact) / spacing).max() <= units


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_exponential_of_the_far_ends(dtype: torch.dtype) -> None:
    logits = torch.tensor([[0.0, -1e30, -torch.inf, -torch.nan], [0.0, -1.0, 0.0, 0.0]], dtype=dtype)
    for column, want in ((1, 0.0), (2, 0.0), (3, torch.nan)):
        pair = logits[:, [0, column]].clone().requires_grad_()
        ops.masked_cross_entropy(pair, torch.tensor([0, 1])).backward()
        assert pair.grad is not None
        torch.testing.assert_close(pair.grad[0, 1], torch.tensor(want, dtype=dtype), equal_nan=True, rtol=0, atol=0)
