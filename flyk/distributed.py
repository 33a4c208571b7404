"""Sums over the ranks of torch.distributed, and linear systems whose rows lie on them.

Every function is a collective: each rank of `group` calls it, in the same order. Without torch.distributed there is
one rank.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from flyk._triangle import rows, unpack_

PANEL = 1024  # rows of a triangle sent at once


def ranks(group: Any = None) -> int:
    """How many there are."""
    return dist.get_world_size(group) if dist.is_available() and dist.is_initialized() else 1


def rank(group: Any = None) -> int:
    """This one's number."""
    return dist.get_rank(group) if ranks(group) > 1 else 0


def agree(meaning: dict[str, Any], own: Any, group: Any = None) -> list[Any]:
    """Each rank's `own`, once it is known that all have the same `meaning`.

    Raises:
        ValueError: they have not; on every rank, so that none waits for another.
    """
    if ranks(group) == 1:
        return [own]
    found: list[Any] = [None] * ranks(group)
    dist.all_gather_object(found, (meaning, own), group=group)
    for number, (theirs, _) in enumerate(found):
        for name, value in found[0][0].items():
            if theirs[name] != value:
                raise ValueError(
                    f"{name} must be one on all ranks, got {value!r} on 0 and {theirs[name]!r} on {number}"
                )
    return [theirs for _, theirs in found]


def sum_(t: Tensor, group: Any = None) -> Tensor:
    """In place: the sum over ranks, the same bits on each."""
    if ranks(group) > 1 and t.numel():
        dist.all_reduce(t, group=group)
    return t


def sum_lower_(G: Tensor, group: Any = None) -> None:
    """In place: the sum of the lower triangle of G (M, M), sent in panels; above the diagonal G stays as it is."""
    if ranks(group) == 1:
        return
    for begin in range(0, G.shape[0], PANEL):
        panel = rows(G, begin, begin + PANEL)
        unpack_(panel, sum_(torch.cat(panel), group))


def gather_rows(t: Tensor, group: Any = None) -> Tensor:
    """(sum of N, ...): the rows t (N, ...) of all ranks in the order of their numbers; N may differ."""
    if ranks(group) == 1:
        return t
    sizes = t.new_zeros(ranks(group), dtype=torch.int64)
    sizes[rank(group)] = t.shape[0]
    counts = sum_(sizes, group).tolist()
    padded = t.new_zeros(max(counts), *t.shape[1:])
    padded[: t.shape[0]] = t
    parts = [torch.empty_like(padded) for _ in counts]
    dist.all_gather(parts, padded, group=group)
    return torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)])


def conjugate_gradients(
    multiply: Callable[[Tensor], Tensor],
    precondition: Callable[[Tensor], Tensor],
    Q: Tensor,
    *,
    tolerance: float,
    limit: int,
    group: Any = None,
) -> tuple[Tensor, int, float]:
    """``A U = Q`` for T right-hand sides at once, the rows of A, U and Q being dealt out to the ranks.

    Hestenes and Stiefel's method on each column; a pass over A and the sums over ranks serve all of them.

    Args:
        multiply: this rank's rows of A x, of this rank's rows of x (m, T).
        precondition: about A⁻¹ x, of this rank's rows alone, symmetric and positive definite.
        Q: (m, T), this rank's rows.
        tolerance: of each column's residual, in the norm that the preconditioner gives, beside Q's in the same: about
            the relative error of U in the norm of A.
        limit: iterations at most.

    Returns:
        U (m, T), this rank's rows; the iterations taken; the largest relative residual left.
    """

    def dots(x: Tensor, y: Tensor) -> Tensor:
        return sum_((x * y).sum(0), group)

    U, residual, direction = torch.zeros_like(Q), Q.clone(), torch.zeros_like(Q)
    first = before = None
    taken = 0
    while True:
        z = precondition(residual)
        energy = dots(residual, z)
        if first is None or before is None:
            first = before = energy
        share = torch.where(first == 0, 0, (energy / first).sqrt())
        open_ = ~(share <= tolerance)  # NaN stays open
        if taken == limit or not open_.any():
            return U, taken, float(share.max()) if len(share) else 0.0
        direction = z + torch.where(open_, energy / before, 0) * direction
        product = multiply(direction)
        step = torch.where(open_, energy / dots(direction, product), 0)
        U, residual, before, taken = U + step * direction, residual - step * product, energy, taken + 1
