"""project: y = act(x Rᵀ) for a frozen random matrix R, dense or with p entries in each row."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from flyk.ops import _check
from flyk.ops._operator import Operator


def project(
    x: Tensor, values: Tensor, indices: Tensor | None = None, *, activation: str = "none", precision: str = "float32"
) -> Tensor:
    """Frozen random projection: ``y = act(x Rᵀ)``.

    The expansion of REAR (arXiv 2602.01976, φ(x) = ReLU(hR)) and the down-projection Ax of FlyLoRA
    (arXiv 2510.08396, Eq. 11). With `indices` only the p entries of each row are read, so an input that no row
    names has no effect, NaN included.

    Args:
        x: (..., d) float32, float64, bfloat16 or float16, any strides.
        values: (M, d) dense rows, or (M, p) entries of sparse rows; x's dtype and device; not trained.
        indices: (M, p) int64 or int32 columns of the entries, from 0 to d - 1 and distinct within a row; or None.
        activation: "none" or "relu".
        precision: "float32" (products and sums as exact as the dtype allows), "bf16" (x and R rounded to bfloat16,
            sums in float32), "bf16x3" (float32 emulated by three bfloat16 products, in which an infinity may become
            NaN) or "tf32" (CUDA only). A tile unit (AMX) takes subnormal numbers for 0 in bfloat16 products.

    Returns:
        y: (..., M) in x's dtype; sums are taken in float32 for half types. Differentiable in x.

    Raises:
        ValueError, TypeError: a shape, dtype, device, column or name that does not fit.
    """
    return OPERATOR(x, values, indices, activation, precision)


def check(
    x: Tensor, values: Tensor, indices: Tensor | None = None, activation: str = "none", precision: str = "float32"
) -> None:
    _check.at_least_1d("x", x)
    _check.dtype("x", x)
    _check.frozen(values, indices, x.shape[-1])
    _check.alike(x=x, values=values)
    _check.same_device(x=x, indices=indices)
    _check.choice("activation", activation, _check.ACTIVATIONS)
    _check.precision(precision, x.device)


def check_values(x: Tensor, values: Tensor, indices: Tensor | None = None, *_: object) -> None:
    if indices is not None:
        _check.in_range("indices", indices, x.shape[-1])


def reference(
    x: Tensor, values: Tensor, indices: Tensor | None = None, activation: str = "none", precision: str = "float32"
) -> Tensor:
    acc = _check.accumulator(x.dtype)
    y = _product(x.to(acc), values.to(acc), indices, precision)
    return (y.relu_() if activation == "relu" else y).to(x.dtype)  # y is fresh


def _product(x: Tensor, values: Tensor, indices: Tensor | None, precision: str) -> Tensor:
    if precision == "bf16":
        return _product(rounded(x), rounded(values), indices, "float32")
    if precision == "bf16x3":
        (x_high, x_low), (v_high, v_low) = split(x), split(values)
        low = _product(x_high, v_low, indices, "float32") + _product(x_low, v_high, indices, "float32")
        return low + _product(x_high, v_high, indices, "float32")
    if indices is None:
        return F.linear(x, values)
    # A bag is a row of R: the sum over its entries of value times column, which reads no other column of x.
    columns = _check.rows(x).t()
    starts = torch.arange(values.shape[0], device=x.device, dtype=indices.dtype) * values.shape[1]
    y = F.embedding_bag(
        indices.reshape(-1), columns.contiguous(), starts, mode="sum", per_sample_weights=values.reshape(-1)
    )
    return y.t().contiguous().reshape(*x.shape[:-1], values.shape[0])


def rounded(x: Tensor) -> Tensor:
    """x rounded to bfloat16, in its own dtype."""
    return x.to(torch.bfloat16).to(x.dtype)


def split(x: Tensor) -> tuple[Tensor, Tensor]:
    """x as the sum of two bfloat16 numbers, in its own dtype: one that has no finite first part has no second."""
    high = rounded(x)
    return high, rounded(x - high).masked_fill(~high.isfinite(), 0)


def dense(values: Tensor, indices: Tensor | None, in_features: int) -> Tensor:
    """The frozen matrix as (M, in_features)."""
    if indices is None:
        return values
    return values.new_zeros(values.shape[0], in_features).scatter_(1, indices.long(), values)


def fake(x: Tensor, values: Tensor, indices: Tensor | None = None, *_: object) -> Tensor:
    return x.new_empty(*x.shape[:-1], values.shape[0])


def setup_context(ctx, inputs, output) -> None:
    x, values, indices, activation, _ = inputs
    ctx.save_for_backward(values, indices, output if activation == "relu" else None)
    ctx.in_features = x.shape[-1]


def backward(ctx, grad: Tensor):
    values, indices, y = ctx.saved_tensors
    if y is not None:
        grad = grad * (y > 0)
    return project_backward(grad, values, indices, ctx.in_features), None, None, None, None


def project_backward(grad: Tensor, values: Tensor, indices: Tensor | None, in_features: int) -> Tensor:
    """The gradient to x of `project` without activation: ``grad R``, (..., d) in grad's dtype."""
    if indices is None:
        return grad.to(values.dtype) @ values
    return BACKWARD(grad, values, indices, in_features)


def reference_backward(grad: Tensor, values: Tensor, indices: Tensor, in_features: int) -> Tensor:
    acc = _check.accumulator(values.dtype)
    return (grad.to(acc) @ dense(values.to(acc), indices, in_features)).to(values.dtype)


def fake_backward(grad: Tensor, values: Tensor, indices: Tensor, in_features: int) -> Tensor:
    return values.new_empty(*grad.shape[:-1], in_features)


BACKWARD = Operator(
    "project_backward(Tensor grad, Tensor values, Tensor indices, SymInt in_features) -> Tensor",
    reference=reference_backward,
    fake=fake_backward,
)
OPERATOR = Operator(
    "project(Tensor x, Tensor values, Tensor? indices=None, str activation='none', str precision='float32') -> Tensor",
    reference=reference,
    check=check,
    check_values=check_values,
    fake=fake,
    setup_context=setup_context,
    backward=backward,
    autocast=("x", "values"),
)
