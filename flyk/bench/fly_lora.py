"""fly_lora: the published layer's arithmetic with a dense A and a mask, the same with fewest passes, flyk."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from flyk import reference
from flyk.bench._case import FLOAT, INT64, Case, Floor, Inputs, Result, decided, frozen, normal
from flyk.bench._scaling import Curve
from flyk.ops.fly_lora import IN_PLACE
from flyk.ops.project import dense

SELECTION = "biased_magnitude"  # that of the published code


def _published_update(x: Tensor, A: Tensor, B: Tensor, k: int, bias: Tensor, scale: float) -> Tensor:
    y = x @ A.t()
    winners = torch.topk(torch.abs(y + bias), k, dim=-1)[1]
    mask = torch.zeros_like(y).scatter_(-1, winners, 1.0)
    return ((y * mask) @ B.t()) * scale


def published(x: Tensor, base: Tensor, A: Tensor, B: Tensor, k: int, bias: Tensor, scale: float) -> Result:
    return base + _published_update(x, A, B, k, bias, scale)


def published_in_place(x: Tensor, base: Tensor, A: Tensor, B: Tensor, k: int, bias: Tensor, scale: float) -> Result:
    return base.add_(_published_update(x, A, B, k, bias, scale))


def _kept(x: Tensor, A: Tensor, k: int, bias: Tensor) -> Tensor:
    y = F.linear(x, A)
    winners = (y.detach() + bias).abs_().topk(k, sorted=False).indices
    return torch.zeros_like(y).scatter(-1, winners, y.gather(-1, winners))


def eager(x: Tensor, base: Tensor, A: Tensor, B: Tensor, k: int, bias: Tensor, scale: float) -> Result:
    return torch.addmm(base, _kept(x, A, k, bias), B.t(), alpha=scale)


def eager_in_place(x: Tensor, base: Tensor, A: Tensor, B: Tensor, k: int, bias: Tensor, scale: float) -> Result:
    return base.addmm_(_kept(x, A, k, bias), B.t(), alpha=scale)


def ours(
    ops, x: Tensor, base: Tensor, values: Tensor, indices: Tensor, B: Tensor, k: int, bias: Tensor, scale: float
) -> Result:
    return ops.fly_lora(x, base, values, indices, B, k, bias=bias, scale=scale, selection=SELECTION)


def ours_in_place(
    ops, x: Tensor, base: Tensor, values: Tensor, indices: Tensor, B: Tensor, k: int, bias: Tensor, scale: float
) -> Result:
    if ops is reference:
        return ours(ops, x, base, values, indices, B, k, bias, scale)
    IN_PLACE(x, base, values, indices, B, k, bias, scale, SELECTION)
    return base


def floor(rows: int, d: int, m: int, r: int, k: int, nnz: int, backward: bool) -> Floor:
    """Forward: x, base, A and B read and the output written. Backward, without x: the winners written and read, the
    output's gradient, A and B read, the gradients to x and B written. Per row 2 r nnz flop for y, 2 k m for the
    output; back, 2 k m for the winners' gradients, 2 k nnz for x's and 2 k m for B's.
    """
    matrices = r * nnz * 2 * FLOAT + m * r * FLOAT
    moved = rows * (d + 2 * m) * FLOAT + matrices
    flop = 2 * rows * (r * nnz + k * m)
    if backward:
        moved += rows * ((m + d) * FLOAT + 2 * k * (FLOAT + INT64)) + matrices + m * r * FLOAT
        flop += 2 * rows * (k * m + k * nnz + k * m)
    return Floor(moved, flop)


def case(rows: int, d: int, m: int, r: int = 32, k: int = 8, *, backward: bool = False, in_place: bool = False) -> Case:
    nnz = d * k // r

    def inputs(generator: torch.Generator) -> Inputs:
        values, indices = frozen(generator, r, d, nnz, std=1 / r)
        A = dense(values, indices, d)
        bias = 0.05 * normal(generator, r)
        x = normal(generator, rows, d)
        return {
            "x": decided(x, (x.double() @ A.double().t() + bias).abs(), k),
            "base": normal(generator, rows, m),
            "values": values,
            "indices": indices,
            "A": A,
            "B": normal(generator, m, r),
            "k": k,
            "bias": bias,
            "scale": 2.0,
            "grad": normal(generator, rows, m),
        }

    return Case(
        op="fly_lora",
        what="forward and backward" if backward else "in place, as in FlyLoRALinear" if in_place else "forward",
        sizes=f"{rows} rows, {d} to {m}, r {r}, k {k}",
        inputs=inputs,
        published=published_in_place if in_place else published,
        eager=eager_in_place if in_place else eager,
        ours=ours_in_place if in_place else ours,
        floor=floor(rows, d, m, r, k, nnz, backward),
        gradients=("x", "base", "B") if backward else (),
        state=("base",) if in_place else (),
    )


SHAPES = ((4096, 768, 768), (2048, 2048, 2048), (1024, 4096, 4096), (1024, 4096, 11008))
CASES = (
    *(case(*shape) for shape in SHAPES),
    *(case(*shape, in_place=True) for shape in SHAPES),
    *(case(*shape, backward=True) for shape in SHAPES),
)
QUICK = (case(1024, 768, 768), case(1024, 768, 768, in_place=True), case(1024, 768, 768, backward=True))
SCALING = (
    Curve("rows", (1, 16, 128, 1024, 8192), {"d": 768, "m": 768}),
    Curve("r", (8, 16, 32, 64, 128), {"rows": 1024, "d": 2048, "m": 2048}),
    Curve("k", (1, 2, 4, 8, 16, 32), {"rows": 1024, "d": 2048, "m": 2048}),
    Curve("rows", (16, 128, 1024, 8192), {"d": 768, "m": 768, "backward": True}),
)
