"""project: the dense product with a matrix that is mostly zeros, torch's CSR product, flyk."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from flyk.bench._case import FLOAT, Case, Floor, Inputs, Result, frozen, normal
from flyk.ops.project import dense


def published(x: Tensor, R: Tensor, activation: str) -> Result:
    y = x @ R.t()
    return torch.relu(y) if activation == "relu" else y


def eager_dense(x: Tensor, R: Tensor, activation: str) -> Result:
    y = torch.nn.functional.linear(x, R)
    return y.relu_() if activation == "relu" else y


def eager_sparse(x: Tensor, csr: Tensor, activation: str) -> Result:
    y = (csr @ x.t()).t()  # the order in which torch is fastest; the transpose is left to the reader of y
    return y.relu_() if activation == "relu" else y


def ours(ops, x: Tensor, values: Tensor, indices: Tensor | None, activation: str) -> Result:
    return ops.project(x, values, indices, activation=activation)


def floor(rows: int, d: int, m: int, nnz: int | None) -> Floor:
    """x and R read once, y written once; a multiplication and an addition for each entry of R and row."""
    matrix = m * d * FLOAT if nnz is None else m * nnz * 2 * FLOAT
    return Floor(rows * (d + m) * FLOAT + matrix, 2 * rows * m * (d if nnz is None else nnz))


def csr(values: Tensor, indices: Tensor, in_features: int) -> Tensor:
    """The frozen matrix as torch's compressed sparse rows."""
    m, nnz = values.shape
    starts = torch.arange(0, m * nnz + 1, nnz)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says once that CSR is in beta state
        return torch.sparse_csr_tensor(
            starts, indices.reshape(-1).long(), values.reshape(-1), (m, in_features), check_invariants=False
        )


def case(rows: int, d: int, m: int, nnz: int | None = None, activation: str = "none") -> Case:
    def inputs(generator: torch.Generator) -> Inputs:
        values, indices = frozen(generator, m, d, nnz)
        given = {"x": normal(generator, rows, d), "values": values, "indices": indices, "activation": activation}
        given["R"] = dense(values, indices, d)
        if indices is not None:
            given["csr"] = csr(values, indices, d)
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
