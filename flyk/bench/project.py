"""project: the dense product with a matrix that is mostly zeros, sums of weighted columns by embedding_bag, flyk."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from flyk.bench._case import FLOAT, Case, Floor, Inputs, Result, frozen, normal
from flyk.bench._scaling import Curve
from flyk.ops.project import dense


def published(x: Tensor, R: Tensor, activation: str) -> Result:
    y = x @ R.t()
    return torch.relu(y) if activation == "relu" else y


def eager_dense(x: Tensor, R: Tensor, activation: str) -> Result:
    y = F.linear(x, R)
    return y.relu_() if activation == "relu" else y


def eager_sparse(x: Tensor, columns: Tensor, values: Tensor, activation: str) -> Result:
    # A row of R is a bag of columns of x. A product with torch's CSR took twice as long.
    y = F.embedding_bag(columns, x.t().contiguous(), mode="sum", per_sample_weights=values).t()
    return y.relu_() if activation == "relu" else y


def ours(ops, x: Tensor, values: Tensor, indices: Tensor | None, activation: str) -> Result:
    return ops.project(x, values, indices, activation=activation)


def floor(rows: int, d: int, m: int, nnz: int | None) -> Floor:
    """x and R read once, y written once; a multiplication and an addition for each entry of R and row."""
    matrix = m * d * FLOAT if nnz is None else m * nnz * 2 * FLOAT
    return Floor(rows * (d + m) * FLOAT + matrix, 2 * rows * m * (d if nnz is None else nnz))


def case(rows: int, d: int, m: int, nnz: int | None = None, activation: str = "none") -> Case:
    def inputs(generator: torch.Generator) -> Inputs:
        values, indices = frozen(generator, m, d, nnz)
        given = {"x": normal(generator, rows, d), "values": values, "indices": indices, "activation": activation}
        given["R"] = dense(values, indices, d)
        if indices is not None:
            given["columns"] = indices.long()
        return given

    return Case(
        op="project",
        what="dense rows" if nnz is None else "sparse rows",
        sizes=f"{rows} rows, {d} to {m}" + (f", nnz {nnz}" if nnz else "") + (", relu" * (activation == "relu")),
        inputs=inputs,
        published=published,
        eager=eager_dense if nnz is None else eager_sparse,
        ours=ours,
        floor=floor(rows, d, m, nnz),
    )


CASES = (
    case(256, 768, 10000, 8),
    case(256, 768, 10000, None, "relu"),
)
QUICK = (case(64, 768, 2000, 8),)
SCALING = (
    Curve("rows", (1, 16, 256, 1024), {"d": 768, "m": 10000, "nnz": 8}),
    Curve("m", (300, 1000, 3000, 10000, 30000), {"rows": 256, "d": 768, "nnz": 8}),
    Curve("nnz", (2, 8, 32, 128), {"rows": 256, "d": 768, "m": 10000}),
)
