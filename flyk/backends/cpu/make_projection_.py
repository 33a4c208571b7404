"""make_projection_ on the CPU."""

from __future__ import annotations

from torch import Tensor

from flyk.backends.cpu._library import _C, call

SERVED = "csrc"
KINDS = {"gaussian": 0, "sparse_gaussian": 1, "sparse_sign": 2, "binary": 3}


def make_projection_(
    values: Tensor, indices: Tensor | None, kind: str, in_features: int, std: float, seed: int, first: int = 0
) -> None:
    rows, nnz = values.shape
    call(_C.make_projection, KINDS[kind], in_features, nnz, std, seed, first, rows, values, indices)
