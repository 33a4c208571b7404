"""A long stream through REAR: memory stays flat, G symmetric and positive definite, and errors within their bound."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from flyk.nn import REAR
from flyk.ops.expand_gram_ import BLOCK

ROWS, BATCH, D, M, T = 2_000_000, 8192, 6, 64, 5


def resident() -> int:
    """Bytes of memory that this process holds."""
    statm = Path("/proc/self/statm")
    return int(statm.read_text().split()[1]) * 4096 if statm.exists() else 0


@pytest.mark.slow
def test_two_million_rows():
    generator = torch.Generator().manual_seed(0)
    rear = REAR(D, T, M, ridge=1e3)
    G, Q, counts = torch.zeros(M, M).double(), torch.zeros(M, T).double(), torch.zeros(T, dtype=torch.int64)
    held = []
    for begin in range(0, ROWS, BATCH):
        h = torch.randn(min(BATCH, ROWS - begin), D, generator=generator)
        h[::1000] *= 1e3  # rows far longer than the others
        labels = torch.randint(T, (len(h),), generator=generator)
        rear.update(h, labels)
        phi = rear._expand(h).double()
        G += phi.t() @ phi
        Q.index_add_(1, labels, phi.t())
        counts += torch.bincount(labels, minlength=T)
        held.append(resident())
    rear.flush()
    assert max(held[len(held) // 4 :]) - held[len(held) // 4] < 2**23  # a quarter in, everything there is has come
    assert torch.equal(rear.counts, counts)
    # Entries are sums of numbers of one sign (relu): off by at most the length of the longest chain of additions, a
    # block's rows and then the blocks, and of φ's own d products twice, in units of the last place.
    unit = (BLOCK + -(-ROWS // BLOCK) + 2 * D + 4) * 2.0**-24
    lower = rear.G.double().tril()
    assert ((lower - G.tril()).abs() <= unit * G.tril()).all()
    assert ((rear.Q.double() - Q).abs() <= unit * Q).all()
    whole = rear.G.tril() + rear.G.tril(-1).t()
    assert torch.equal(whole, whole.t())
    assert torch.linalg.eigvalsh(whole.double() + rear.ridge * torch.eye(M)).min() > 0
    torch.linalg.cholesky(whole + rear.ridge * torch.eye(M))
    exact = torch.linalg.solve(G + rear.ridge * torch.eye(M), Q)
    assert (rear.solve().double() - exact).norm() <= 1e-2 * exact.norm()
