"""Offsets past 2^31, and what long streams of large numbers do to a Gram matrix."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from flyk import ops
from flyk.check import serving

ROW = 2**30  # columns: row 2 begins at offset 2^31, which no 32-bit number holds
ROWS = 3


@pytest.fixture
def vast() -> Tensor:
    """(3, 2^30) bfloat16 zeros, of which only what is written takes memory."""
    try:
        zeros = np.zeros((ROWS, ROW), dtype=np.int16)
    except MemoryError:
        pytest.skip("needs 6 GiB of address space")
    return torch.from_numpy(zeros).view(torch.bfloat16)


def test_views_with_strides_past_int32(vast: Tensor) -> None:
    with torch.no_grad():
        vast[:, :5] = torch.tensor([[1, 5, 2, 4, 3], [0, 0, 7, 0, 0], [-9, 8, 6, 0, 1]], dtype=torch.bfloat16)
    y = vast.as_strided((ROWS, 5), (ROW, 1))
    assert ops.winner_take_all(y, 2)[1].tolist() == [[1, 3], [2, 0], [0, 1]]
    assert ops.project(y, torch.eye(5, dtype=torch.bfloat16)).tolist() == y.tolist()
    G, Q = torch.zeros(5, 5), torch.zeros(5, 2)
    ops.gram_(G, Q, y, torch.tensor([0, 1, 1]))
    assert G.diagonal().tolist() == [82.0, 89.0, 89.0, 16.0, 10.0]
    bank = vast.as_strided((ROWS, 1), (ROW, 1))
    ops.ema_(bank, torch.ones(1, dtype=torch.bfloat16), [1.0, 0.0, 0.5])
    assert bank.flatten().tolist() == [1.0, 1.0, -4.0]


@pytest.mark.slow
@pytest.mark.skipif(serving("winner_take_all", "cpu") == "reference", reason="PyTorch's sort would take 40 GiB")
def test_rows_past_int32_in_the_kernel_itself(vast: Tensor) -> None:
    """y is contiguous here, so the kernel computes the offsets: its last row begins at 2^31."""
    y = vast.view(-1)[: 2**31 + 2**20].view(-1, 2**20)
    with torch.no_grad():
        y[-1, [3, 2**20 - 1]] = torch.tensor([1, -2], dtype=torch.bfloat16)
    winners, indices = ops.winner_take_all(y[1:], 2)
    assert winners[-1].tolist() == [-2.0, 1.0]
    assert indices[-1].tolist() == [2**20 - 1, 3]
    assert indices[:-1].eq(torch.tensor([0, 1])).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_long_stream_of_large_features_stays_a_gram_matrix(dtype: torch.dtype) -> None:
    """10^5 rows of magnitude 10^3: close to float64, and solvable with a ridge that is nothing beside its diagonal."""
    rows, piece, m = 100_000, 1000, 64
    draw = torch.Generator().manual_seed(0)
    G, Q, exact = torch.zeros(m, m), torch.zeros(m, 2), torch.zeros(m, m, dtype=torch.float64)
    for _ in range(rows // piece):
        phi = (1e3 * torch.rand(piece, m, generator=draw)).to(dtype)
        ops.gram_(G, Q, phi, torch.arange(piece) % 2)
        exact += phi.double().T @ phi.double()
    # Sums of `piece` terms, then one addition a piece; all terms are positive, so they are their absolute values.
    bound = (piece + rows // piece) * torch.finfo(torch.float32).eps * exact
    assert ((G.double() - exact).abs() <= bound).tril().logical_or(torch.ones(m, m).triu(1).bool()).all()
    U = ops.ridge_solve(G, Q, 1e4)
    assert U.isfinite().all()
