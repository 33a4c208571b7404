"""Balancing, arXiv 2510.08396, Eq. 9. The theorems are those of `flyk check --theory`."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flyk.nn import FlyLoRALinear


def imbalance(counts):
    """Standard deviation of the load over its mean; 0 for an even one."""
    return (counts.double().std(unbiased=False) / counts.double().mean()).item()


@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 2**32), selection=st.sampled_from(["magnitude", "signed"]), k=st.integers(1, 5))
@torch.no_grad()
def test_balancing_evens_out_a_skewed_stream(seed, selection, k):
    layer = FlyLoRALinear(32, 4, 8, k, bias_update_rate=8e-3, selection=selection, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    # Two directions carry most of the stream, and it is not centred, so a few ranks win nearly always.
    directions, centre = torch.randn(2, 32, generator=generator), torch.randn(32, generator=generator)
    loads = []
    for _ in range(150):
        noise = torch.randn(128, 32, generator=generator)
        layer(torch.randn(128, 2, generator=generator) @ directions + centre + 0.3 * noise)
        loads.append(layer.counts.clone())
        layer.update_routing_bias()
    before, after = imbalance(loads[0]), imbalance(sum(loads[-30:]))
    assert after < 0.1
    assert after < before / 2
