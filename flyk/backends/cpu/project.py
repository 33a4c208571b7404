"""project on the CPU: sparse rows by csrc; dense rows by the matrix library, or by the tile unit at lower precision."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from flyk.backends._arguments import DTYPES, frozen
from flyk.backends.cpu._library import _C, ISA, call, product, terms
from flyk.ops import _check
from flyk.ops.project import reference

TILES = "csrc at lower precision (AMX)" if ISA == "amx" else "emulated at lower precision (no AMX)"
SERVED = f"csrc for sparse rows; dense rows are a GEMM, which PyTorch's library does best; {TILES}"
# The half types that this processor multiplies without widening them first, summing in float32.
MULTIPLIED = {
    dtype
    for dtype, name in ((torch.bfloat16, "bf16"), (torch.float16, "fp16"))
    if torch.backends.mkldnn.is_available() and getattr(torch.ops.mkldnn, f"_is_mkldnn_{name}_supported")()
}


def project(
    x: Tensor, values: Tensor, indices: Tensor | None = None, activation: str = "none", precision: str = "float32"
) -> Tensor:
    if indices is not None and precision == "float32":
        return _sparse(x, values, indices, activation)
    if indices is None and x.dtype in MULTIPLIED and (precision == "float32" or x.dtype == torch.bfloat16):
        y = F.linear(x, values)  # rounded to the half type once, at the end
        return y.relu_() if activation == "relu" else y
    if indices is not None or not terms(x.dtype, precision):
        return reference(x, values, indices, activation, precision)
    return wide(x, values, None, activation, precision).to(x.dtype)


def wide(x: Tensor, values: Tensor, indices: Tensor | None, activation: str, precision: str) -> Tensor:
    """The same in float32 whatever x's dtype, which float64 is not."""
    count = terms(x.dtype, precision)
    if indices is not None or not count:
        return project(x.float(), values.float(), indices, activation, precision)
    y = x.new_empty(*x.shape[:-1], values.shape[0], dtype=torch.float32)
    product(_check.rows(x), values, y, count)
    return y.relu_() if activation == "relu" else y


def _sparse(x: Tensor, values: Tensor, indices: Tensor, activation: str) -> Tensor:
    y = x.new_empty(*x.shape[:-1], values.shape[0])
    rows = _check.rows(x)
    matrix = frozen(values, indices, x.shape[-1])
    relu = _check.ACTIVATIONS.index(activation)
    call(_C.project, rows.contiguous(), DTYPES[x.dtype], rows.shape[0], *matrix, relu, y)
    return y
