"""project_topk: a dense product and torch.topk, embedding_bag and torch.topk, flyk in one pass."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from flyk.bench._case import FLOAT, INT64, Case, Floor, Inputs, Result, decided, frozen, normal, placed
from flyk.bench._scaling import Curve
from flyk.ops.project import dense


def published(x: Tensor, R: Tensor, k: int) -> Result:
    y = x @ R.t()
    indices = torch.topk(torch.abs(y), k, dim=-1)[1]
    return torch.gather(y, -1, indices), indices


def eager(x: Tensor, columns: Tensor, values: Tensor, k: int) -> Result:
    y = F.embedding_bag(columns, x.t().contiguous(), mode="sum", per_sample_weights=values).t()
    indices = y.abs().topk(k).indices
    return y.gather(-1, indices), indices


def ours(ops, x: Tensor, values: Tensor, indices: Tensor, k: int) -> Result:
    return ops.project_topk(x, values, indices, k)


def floor(rows: int, d: int, m: int, nnz: int, k: int) -> Floor:
    """x and R read once, winners and indices written once; a multiplication and an addition for each entry of R."""
    return Floor(rows * (d * FLOAT + k * (FLOAT + INT64)) + m * nnz * 2 * FLOAT, 2 * rows * m * nnz)


def compared(result: Result, inputs: Inputs) -> tuple[Tensor, ...]:
    winners, indices = result
    return placed(winners, indices, inputs["values"].shape[0])


def case(rows: int, d: int, m: int, nnz: int, k: int) -> Case:
    def inputs(generator: torch.Generator) -> Inputs:
        values, indices = frozen(generator, m, d, nnz)
        assert indices is not None  # sparse rows
        R = dense(values, indices, d)
        x = normal(generator, rows, d)
        x = decided(x, (x.double() @ R.double().t()).abs(), k)
        return {"x": x, "values": values, "indices": indices, "columns": indices.long(), "k": k, "R": R}

    return Case(
        op="project_topk",
        what="sparse rows",
        sizes=f"{rows} rows, {d} to {m}, nnz {nnz}, k {k}",
        inputs=inputs,
        published=published,
        eager=eager,
        ours=ours,
        floor=floor(rows, d, m, nnz, k),
        compared=compared,
    )


CASES = (case(256, 768, 10000, 8, 500),)
QUICK = (case(64, 768, 2000, 8, 100),)
SCALING = (
    Curve("rows", (1, 16, 256, 1024), {"d": 768, "m": 10000, "nnz": 8, "k": 500}),
    Curve("m", (1000, 3000, 10000, 30000), {"rows": 256, "d": 768, "nnz": 8, "k": 500}),
    Curve("k", (8, 64, 500, 2000), {"rows": 256, "d": 768, "m": 10000, "nnz": 8}),
)
