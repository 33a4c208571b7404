"""gram_: the statistics of ridge regression, added to in place."""

from __future__ import annotations

import torch
from torch import Tensor

from flyk.ops import _check
from flyk.ops._operator import Operator
from flyk.ops.project import rounded, split

# Rows of G are updated by one product: at most so many, and no more than an eighth of them in whole vectors. Large
# enough for GEMM, small enough to skip most of the upper half.
PANEL = 1024


def gram_(G: Tensor, Q: Tensor, phi: Tensor, labels: Tensor, *, precision: str = "float32") -> None:
    """In place: ``G += phiᵀ phi`` and ``Q[:, c] += Σ phi[n] over the rows n with label c``.

    REAR's statistics, arXiv 2602.01976, Eq. 2, for one-hot labels. Only the lower triangle of G, diagonal included,
    is meant; what stands above it is unspecified. Records no gradient.

    Args:
        G: (M, M) float32 or float64, contiguous.
        Q: (M, T) in G's dtype, contiguous.
        phi: (N, M) float32, float64, bfloat16 or float16, any strides.
        labels: (N,) int64 from 0 to T - 1.
        precision: "float32" (as exact as G's dtype allows), "bf16" (phi rounded to bfloat16, sums in G's dtype),
            "bf16x3" (products of two bfloat16 parts, low by low or not; an infinity may become NaN) or "tf32" (CUDA
            only). Q is always summed exactly. The largest error of "bf16x3" is about 4 times that of float32 over 1024
            rows or more, and 15 times over 64. A tile unit (AMX) takes subnormal numbers for 0 in bfloat16 products.

    Raises:
        ValueError, TypeError: a shape, dtype, device, label or name that does not fit; G and Q are then as before.
    """
    OPERATOR(G, Q, phi, labels, precision)


def check(G: Tensor, Q: Tensor, phi: Tensor, labels: Tensor, precision: str = "float32") -> None:
    _check.dtype("phi", phi)
    _check.shape("phi", phi, "N", "M")
    check_statistics(G, Q, phi.shape[1], labels, phi.shape[0])
    _check.same_device(G=G, Q=Q, phi=phi, labels=labels)
    _check.precision(precision, G.device)


def check_statistics(G: Tensor, Q: Tensor, m: int, labels: Tensor, rows: int) -> None:
    """What is summed, and the labels it is summed by; but for their devices."""
    _check.dtype("G", G, _check.ACCUMULATORS)
    _check.shape("G", G, m, m)
    _check.dtype("Q", Q, (G.dtype,))
    _check.shape("Q", Q, m, "T")
    _check.contiguous("G", G)
    _check.contiguous("Q", Q)
    _check.dtype("labels", labels, (torch.int64,))
    _check.shape("labels", labels, rows)


def check_values(G: Tensor, Q: Tensor, phi: Tensor, labels: Tensor, *_: object) -> None:
    _check.in_range("labels", labels, Q.shape[1])


def reference(G: Tensor, Q: Tensor, phi: Tensor, labels: Tensor, precision: str = "float32") -> None:
    phi = phi.to(G.dtype)
    add_labels(Q, phi, labels)
    if precision == "bf16x3":
        high, low = split(phi)
        _add_lower(G, high, low)
        _add_lower(G, low, high)
    else:
        high = rounded(phi) if precision == "bf16" else phi
    _add_lower(G, high, high)


def add_labels(Q: Tensor, phi: Tensor, labels: Tensor) -> None:
    one_hot = labels[:, None] == torch.arange(Q.shape[1], device=Q.device)
    Q.addmm_(phi.to(Q.dtype).t(), one_hot.to(Q.dtype))


def _add_lower(G: Tensor, left: Tensor, right: Tensor) -> None:
    m = G.shape[0]
    panel = min(PANEL, max(256, 64 * (m // 512 + 1)))
    for begin in range(0, m, panel):
        end = min(begin + panel, m)
        G[begin:end, :end].addmm_(left[:, begin:end].t(), right[:, :end])


def fake(G: Tensor, Q: Tensor, phi: Tensor, labels: Tensor, precision: str = "float32") -> None:
    return None


OPERATOR = Operator(
    "gram_(Tensor(a!) G, Tensor(b!) Q, Tensor phi, Tensor labels, str precision='float32') -> ()",
    reference=reference,
    check=check,
    check_values=check_values,
    fake=fake,
)
