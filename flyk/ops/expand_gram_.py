"""expand_gram_: a random expansion and the statistics of ridge regression over it, in place."""

from __future__ import annotations

import torch
from torch import Tensor

from flyk.ops import _check
from flyk.ops._operator import Operator
from flyk.ops.gram_ import check_statistics
from flyk.ops.gram_ import reference as reference_gram_
from flyk.ops.project import reference as reference_project
from flyk.ops.winner_take_all import reference as reference_winner_take_all
from flyk.ops.winner_take_all import scatter

BLOCK = 1024  # rows expanded at once: G is read and written once a block, and phi never held for more than that


def expand_gram_(
    G: Tensor,
    Q: Tensor,
    h: Tensor,
    values: Tensor,
    indices: Tensor | None,
    labels: Tensor,
    *,
    activation: str = "relu",
    k: int | None = None,
    precision: str = "float32",
) -> None:
    """In place: ``G += phiᵀ phi`` and ``Q[:, c] += Σ phi[n]`` over label c, for ``phi = act(h Rᵀ)``.

    One pass of REAR over a batch, arXiv 2602.01976, Eq. 2. With k, each row of phi is kept to the k entries of
    largest magnitude first. phi is held for 1024 rows at most. Only the lower triangle of G is meant. Records no
    gradient. Autocast does not lower it.

    Args:
        G: (M, M) float32 or float64, contiguous.
        Q: (M, T) in G's dtype, contiguous.
        h: (N, d) float32, float64, bfloat16 or float16, any strides.
        values, indices: the frozen matrix R, as in `project`; values in h's dtype.
        labels: (N,) int64 from 0 to T - 1.
        activation: "none" or "relu".
        k: winners kept in each row, from 0 to M; None for all.
        precision: of both products, as in `project` and `gram_`.

    Raises:
        ValueError, TypeError: a shape, dtype, device, label, column, k or name that does not fit; G and Q are then
            as before.
    """
    OPERATOR(G, Q, h, values, indices, labels, activation, k, precision)


def check(
    G: Tensor,
    Q: Tensor,
    h: Tensor,
    values: Tensor,
    indices: Tensor | None,
    labels: Tensor,
    activation: str = "relu",
    k: int | None = None,
    precision: str = "float32",
) -> None:
    _check.dtype("h", h)
    _check.shape("h", h, "N", "d")
    _check.frozen(values, indices, h.shape[1])
    _check.dtype("values", values, (h.dtype,))
    check_statistics(G, Q, values.shape[0], labels, h.shape[0])
    _check.same_device(h=h, values=values, indices=indices, G=G, Q=Q, labels=labels)
    _check.choice("activation", activation, _check.ACTIVATIONS)
    _check.precision(precision, G.device)
    if k is not None:
        _check.k(k, values.shape[0], "values' first dimension")


def check_values(
    G: Tensor, Q: Tensor, h: Tensor, values: Tensor, indices: Tensor | None, labels: Tensor, *_: object
) -> None:
    _check.in_range("labels", labels, Q.shape[1])
    if indices is not None:
        _check.in_range("indices", indices, h.shape[1])


def reference(
    G: Tensor,
    Q: Tensor,
    h: Tensor,
    values: Tensor,
    indices: Tensor | None,
    labels: Tensor,
    activation: str = "relu",
    k: int | None = None,
    precision: str = "float32",
) -> None:
    # phi is summed into G unrounded, whatever h's dtype.
    h, values = h.to(G.dtype), values.to(G.dtype)
    for rows, ids in zip(h.split(BLOCK), labels.split(BLOCK), strict=True):
        phi = reference_project(rows, values, indices, activation=activation, precision=precision)
        if k is not None:
            phi = scatter(*reference_winner_take_all(phi, k), phi.shape[1])
        reference_gram_(G, Q, phi, ids, precision=precision)


def fake(G: Tensor, Q: Tensor, h: Tensor, values: Tensor, indices: Tensor | None, labels: Tensor, *_: object) -> None:
    return None


OPERATOR = Operator(
    "expand_gram_(Tensor(a!) G, Tensor(b!) Q, Tensor h, Tensor values, Tensor? indices, Tensor labels, "
    "str activation='relu', int? k=None, str precision='float32') -> ()",
    reference=reference,
    check=check,
    check_values=check_values,
    fake=fake,
    autocast=("h", "values"),
    autocast_dtype=torch.float32,
)
