"""project_topk by Triton: a block of rows at a time, whose activations stay cached until its winners are found."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from flyk.backends.triton._launch import configuration
from flyk.backends.triton.project import expand
from flyk.backends.triton.winner_take_all import pick
from flyk.ops import _check
from flyk.ops.project import reference as reference_project


def project_topk(
    x: Tensor,
    values: Tensor,
    indices: Tensor | None,
    k: int,
    bias: Tensor | None = None,
    selection: str = "magnitude",
    activation: str = "none",
) -> tuple[Tensor, Tensor]:
    shape, m = (*x.shape[:-1], k), values.shape[0]
    winners, winner_indices = x.new_empty(shape), x.new_empty(shape, dtype=torch.int64)
    if k == 0:
        return winners, winner_indices
    rows = _check.rows(x)
    # Activations enough to fill the second-level cache, which is all that is ever held of them.
    step = max(1, configuration("project_topk", m, x.device)["cached_bytes"] // (m * x.itemsize))
    cached = x.new_empty(min(step, len(rows)), m)
    parts = (t.split(step) for t in (rows, _check.rows(winners), _check.rows(winner_indices)))
    for block, *into in zip(*parts, strict=True):
        y = cached[: len(block)]
        if indices is None and x.dtype == torch.float64:
            y = reference_project(block, values, activation=activation)
        else:
            expand(block, values, indices, activation, "float32", y)
        pick(y, k, bias, selection, *into)
    return winners, winner_indices


def examples() -> Iterator[tuple[Any, ...]]:
    """A call in the shape of the fly's own expansion; its kernels are those of project and winner_take_all."""
    x, values = (torch.empty(*size, device="meta") for size in ((4096, 768), (10000, 64)))
    yield x, values, torch.empty(10000, 64, dtype=torch.int32, device="meta"), 500
