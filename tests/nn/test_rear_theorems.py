"""What arXiv 2602.01976 claims of REAR's expansion, as far as it can be checked: Lemma 1 and the scale of G."""

import math

import pytest
import torch

from flyk.nn import REAR, RandomProjection


@pytest.mark.parametrize("M", [100, 1000, 10000])
def test_the_kernel_tends_to_the_arc_cosine_kernel(M):
    """ΦΦᵀ/M for 40 unit vectors against K = (sin θ + (π - θ) cos θ) / 2π, the arc-cosine kernel of order 1.

    Each pair errs by no more than 1.5 sqrt(log N / M), and the errors have just the variance (J - K²) / M of a mean
    over M independent units, where J = (3 sin θ cos θ + (π - θ)(1 + 2 cos² θ)) / 2π is the kernel of order 2.
    """
    h = torch.randn(40, 64, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    h = h / h.norm(dim=1, keepdim=True)
    cos = (h @ h.T).clamp(-1, 1)
    theta = cos.acos()
    K = (theta.sin() + (math.pi - theta) * cos) / (2 * math.pi)
    J = (3 * theta.sin() * cos + (math.pi - theta) * (1 + 2 * cos**2)) / (2 * math.pi)
    pairs = torch.ones(40, 40).triu(1).bool()
    scores = []
    for seed in range(5):
        phi = RandomProjection(64, M, kind="gaussian", seed=seed)(h.float(), activation="relu").double()
        error = phi @ phi.T / M - K
        assert error[pairs].abs().max() < 1.5 * math.sqrt(math.log(40) / M)
        scores.append(error.square() * M / (J - K**2))
    assert torch.stack(scores).mean().item() == pytest.approx(1.0, rel=0.15)


def test_the_diagonal_of_G_grows_by_half_the_energy_of_a_row():
    """mean diag(G) / N = E|h|²/2: the scale against which λ is to be read."""
    h = 1.7 * torch.randn(400, 64, generator=torch.Generator().manual_seed(1)) + 0.4
    module = REAR(64, 1, 1000)
    module.update(h, 0)
    module.flush()
    expected = h.square().sum(1).mean() / 2
    assert (module.G.diagonal().mean() / len(h)).item() == pytest.approx(expected.item(), rel=0.05)


def test_routing_is_better_than_chance_and_better_than_without_expansion():
    """Two experts that no linear router can tell apart: the rows of one lie on a shell inside the other's."""
    generator = torch.Generator().manual_seed(0)

    def draw(n):
        labels = torch.randint(2, (n,), generator=generator)
        h = torch.randn(n, 8, generator=generator)
        return h / h.norm(dim=1, keepdim=True) * (1.0 + labels[:, None]), labels

    (h, labels), (x, truth) = draw(2000), draw(1000)
    accuracy = {}
    for activation in ("none", "relu"):
        module = REAR(9, 2, 300, ridge=1.0, activation=activation, seed=4)
        module.update(torch.nn.functional.pad(h, (0, 1), value=1.0), labels)
        routed = module.route(torch.nn.functional.pad(x, (0, 1), value=1.0))
        accuracy[activation] = (routed == truth).double().mean().item()
    assert accuracy["none"] < 0.6
    assert accuracy["relu"] > 0.95
