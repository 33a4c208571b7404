"""What arXiv 2510.08396 claims of FlyLoRA, as far as the layer can show it: Eq. 9, Thm 3.3, Cor. 3.5."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flyk.nn import FlyLoRALinear
from flyk.ops import project_topk


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


@pytest.mark.parametrize("k", [1, 4, 8, 32])
def test_ranks_are_active_together_as_random_subsets_would_be(k):
    """Thm 3.3: a rank is active with probability k/r and a pair with k(k-1)/(r(r-1)), for inputs without direction."""
    r = 32
    layer = FlyLoRALinear(1024, 4, r, k, nnz=1024, seed=3)
    x = torch.randn(3000, 1024, generator=torch.Generator().manual_seed(0))
    _, winners = project_topk(x, layer.projection.values, layer.projection.indices, k)
    active = torch.zeros(len(x), r, dtype=torch.float64).scatter_(1, winners, 1.0)
    together = active.T @ active / len(x)
    pairs = together[~torch.eye(r, dtype=torch.bool)]
    expected = k * (k - 1) / (r * (r - 1))
    # The means hold by counting; that each rank and the pairs come near them is what the random A has to bring.
    assert pairs.mean() == pytest.approx(expected, rel=1e-9)
    assert (together.diagonal() - k / r).abs().max() <= 0.35 * k / r
    assert (pairs - expected).abs().mean() <= 0.25 * expected


def cosine(a, b):
    return (torch.vdot(a.flatten(), b.flatten()) / (a.norm() * b.norm())).item()


def test_updates_of_independent_seeds_are_orthogonal_and_those_of_one_seed_are_not():
    """Cor. 3.5 with B's that nearly agree: cosine near 0 for independent A, near that of the B's for a shared A."""
    generator = torch.Generator().manual_seed(0)
    B = torch.randn(64, 32, generator=generator)
    similar = B + 0.3 * torch.randn(64, 32, generator=generator)
    assert cosine(B, similar) == pytest.approx(0.96, abs=0.01)

    def update(B, seed):
        layer = FlyLoRALinear(1024, 64, 32, 8, seed=seed)
        layer.B.data.copy_(B)
        return layer.dense_delta().detach()

    first, shared = update(B, seed=0), update(similar, seed=0)
    assert cosine(first, shared) == pytest.approx(0.96, abs=0.01)
    apart = [abs(cosine(first, update(similar, seed))) for seed in range(1, 9)]
    assert sum(apart) / len(apart) < 0.01
    # So the norms of merged updates add as if they were orthogonal.
    other = update(similar, seed=1)
    merged = (0.5 * first + 0.5 * other).square().sum()
    assert merged.item() == pytest.approx((0.25 * (first.square().sum() + other.square().sum())).item(), rel=0.02)
