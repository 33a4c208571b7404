"""project on the CPU: sparse rows by csrc, dense rows by the matrix library."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from flyk.backends.cpu._library import _C, DTYPES, call, frozen
from flyk.ops import _check
from flyk.ops.project import reference

SERVED = "csrc for sparse rows; dense rows are a GEMM, which PyTorch's library does best"
# The half types that this processor multiplies without widening them first, summing in float32.
MULTIPLIED = {
    dtype
    for dtype, name in ((torch.bfloat16, "bf16"), (torch.float16, "fp16"))
    if torch.backends.mkldnn.is_available() and getattr(torch.ops.mkldnn, f"_is_mkldnn_{name}_supported")()
}


def project(
    x: Tensor, values: Tensor, indices: Tensor | None = None, activation: str = "none", precision: str = "float32"
) -> Tensor:
    if indices is None and precision == "float32" and x.dtype in MULTIPLIED:
        y = F.linear(x, values)
        return y.relu_() if activation == "relu" else y
    if indices is None or precision != "float32":
        return reference(x, values, indices, activation, precision)
    y = x.new_empty(*x.shape[:-1], values.shape[0])
    rows = _check.rows(x)
    matrix = frozen(values, indices, x.shape[-1])
    relu = _check.ACTIVATIONS.index(activation)
    call(_C.project, rows.contiguous(), DTYPES[x.dtype], rows.shape[0], *matrix, relu, y)
    return y
