"""The CPU backend: csrc's kernels under torch's CPU key. Checks have run; here shapes become addresses.

Where no kernel of ours beats PyTorch the reference serves, and SERVED says so.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from flyk.backends import Unavailable
from flyk.ops import _check
from flyk.ops.expand_gram_ import BLOCK
from flyk.ops.expand_gram_ import reference as reference_expand_gram_
from flyk.ops.fly_lora import fake_backward as empty_gradients
from flyk.ops.project import reference as reference_project
from flyk.ops.ridge_solve import check_factor

try:
    _C: Any = importlib.import_module("flyk._C")
except ImportError as error:
    note = Path(__file__).parents[1] / "_build_failure.txt"
    reason = note.read_text().strip() if note.exists() else str(error)
    raise Unavailable(f"the CPU kernels are not there ({reason})") from None

DTYPES = {torch.float32: 0, torch.float64: 1, torch.bfloat16: 2, torch.float16: 3}
KINDS = {"gaussian": 0, "sparse_gaussian": 1, "sparse_sign": 2, "binary": 3}
# Above this share of winners the dense panels of the reference are faster than scattering.
SCATTER_DENSITY = 0.2

# What serves each operator on the CPU, in a sentence for `flyk info`.
SERVED = {
    "make_projection_": "csrc",
    "project": "csrc for sparse rows; dense rows are a GEMM, which PyTorch's library does best",
    "winner_take_all": "csrc",
    "project_topk": "csrc; for dense rows PyTorch's GEMM, then csrc's winner_take_all",
    "fly_lora": "csrc",
    "gram_": "reference: GEMM panels of the lower triangle, which PyTorch's library does best",
    "expand_gram_": f"csrc up to {SCATTER_DENSITY:.0%} winners in float32; else the reference's GEMM panels",
    "ridge_solve": "LAPACK's Cholesky, in place",
    "ema_": "reference: two passes over the bank; csrc has no kernel for it yet",
    "ensemble": "reference: one GEMM for each expert present; csrc has no kernel for it yet",
    "masked_cross_entropy": "reference: the columns of the classes present; csrc has no kernel for it yet",
}


def _openmp_runtimes() -> list[Path]:
    """The OpenMP runtimes in this process, torch's own first; those beside torch where the system lists none."""
    home = Path(torch.__file__).parent
    maps = Path("/proc/self/maps")
    mapped = maps.read_text().split() if maps.exists() else [str(path) for path in home.glob("lib/*")]
    found = {Path(name) for name in mapped if re.search(r"/lib[gi]?omp[^/]*$", name)}
    return sorted(found, key=lambda path: (home not in path.parents, path))


def _use_torch_threads() -> str | None:
    """Lend csrc the OpenMP pool that torch runs, so that the process has one, and give its name."""
    for path in _openmp_runtimes():
        try:
            entry = ctypes.CDLL(str(path)).GOMP_parallel
        except (OSError, AttributeError):
            continue
        _C.use_pool(ctypes.cast(entry, ctypes.c_void_p).value)
        # A forked child has the pool's locks but not its threads.
        os.register_at_fork(after_in_child=lambda: _C.use_pool(0))
        return path.name
    return None


def _call(kernel: Callable[..., None], *args: Any) -> None:
    """Call a kernel with tensors as addresses, None as 0, on torch's number of threads."""
    _C.set_threads(torch.get_num_threads())
    kernel(*(a.data_ptr() if isinstance(a, Tensor) else 0 if a is None else a for a in args))


def _scores_bias(bias: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    return None if bias is None else bias.to(_check.accumulator(dtype)).contiguous()


def _frozen(values: Tensor, indices: Tensor | None, in_features: int) -> tuple[Any, ...]:
    """The arguments by which csrc takes a frozen matrix: values, indices, rows, inputs, entries a row."""
    columns = None if indices is None else indices.to(torch.int32).contiguous()
    if columns is not None and columns.numel() == 0:
        columns = columns.new_zeros(1)  # an empty tensor has no address, and without one a matrix is dense
    return values.contiguous(), columns, values.shape[0], in_features, values.shape[1]


def _selection(name: str) -> int:
    return _check.SELECTIONS.index(name)


def make_projection_(
    values: Tensor, indices: Tensor | None, kind: str, in_features: int, std: float, seed: int, first: int = 0
) -> None:
    rows, nnz = values.shape
    _call(_C.make_projection, KINDS[kind], in_features, nnz, std, seed, first, rows, values, indices)


def project(
    x: Tensor, values: Tensor, indices: Tensor | None = None, activation: str = "none", precision: str = "float32"
) -> Tensor:
    if indices is None or precision != "float32":
        return reference_project(x, values, indices, activation, precision)
    y = x.new_empty(*x.shape[:-1], values.shape[0])
    rows = _check.rows(x)
    frozen = _frozen(values, indices, x.shape[-1])
    relu = _check.ACTIVATIONS.index(activation)
    _call(_C.project, rows.contiguous(), DTYPES[x.dtype], rows.shape[0], *frozen, relu, y)
    return y


def _empty_winners(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    shape = (*x.shape[:-1], k)
    return x.new_empty(shape), x.new_empty(shape, dtype=torch.int64)


def winner_take_all(
    y: Tensor, k: int, bias: Tensor | None = None, selection: str = "magnitude"
) -> tuple[Tensor, Tensor]:
    winners, indices = _empty_winners(y, k)
    _pick(y, bias, selection, winners, indices)
    return winners, indices


def _pick(y: Tensor, bias: Tensor | None, selection: str, winners: Tensor, indices: Tensor) -> None:
    rows, k = _check.rows(y).contiguous(), winners.shape[-1]
    bias = _scores_bias(bias, y.dtype)
    _call(_C.winner_take_all, rows, DTYPES[y.dtype], *rows.shape, k, bias, _selection(selection), winners, indices)


def project_topk(
    x: Tensor,
    values: Tensor,
    indices: Tensor | None,
    k: int,
    bias: Tensor | None = None,
    selection: str = "magnitude",
    activation: str = "none",
) -> tuple[Tensor, Tensor]:
    winners, winner_indices = _empty_winners(x, k)
    rows = _check.rows(x).contiguous()
    if indices is None:
        # A dense product is a GEMM, done for a block of rows at a time.
        parts = (t.split(BLOCK) for t in (rows, _check.rows(winners), _check.rows(winner_indices)))
        for block, *into in zip(*parts, strict=True):
            _pick(reference_project(block, values, activation=activation), bias, selection, *into)
        return winners, winner_indices
    frozen = _frozen(values, indices, x.shape[-1])
    relu, select = _check.ACTIVATIONS.index(activation), _selection(selection)
    bias = _scores_bias(bias, x.dtype)
    _call(_C.project_topk, rows, DTYPES[x.dtype], len(rows), *frozen, relu, k, bias, select, winners, winner_indices)
    return winners, winner_indices


def fly_lora(
    x: Tensor,
    base: Tensor | None,
    values: Tensor,
    indices: Tensor | None,
    B: Tensor,
    k: int,
    bias: Tensor | None = None,
    scale: float = 1.0,
    selection: str = "magnitude",
) -> tuple[Tensor, Tensor, Tensor]:
    rows = _check.rows(x).contiguous()
    m = B.shape[0]
    out = x.new_empty(*x.shape[:-1], m)
    winners, winner_indices = _empty_winners(x, k)
    base = None if base is None else base.contiguous()
    bias = _scores_bias(bias, x.dtype)
    matrices = (*_frozen(values, indices, x.shape[-1]), base, B.contiguous())
    sizes = (DTYPES[x.dtype], len(rows), m, k)
    _call(_C.fly_lora, rows, *sizes, *matrices, bias, scale, _selection(selection), out, winners, winner_indices)
    return out, winners, winner_indices


def fly_lora_backward(
    grad: Tensor,
    winners: Tensor,
    winner_indices: Tensor,
    values: Tensor,
    indices: Tensor | None,
    B: Tensor,
    scale: float,
    in_features: int,
    need_x: bool,
    need_B: bool,
) -> tuple[Tensor, Tensor]:
    outputs = empty_gradients(grad, winners, winner_indices, values, indices, B, scale, in_features, need_x, need_B)
    wanted = (g if need else None for g, need in zip(outputs, (need_x, need_B), strict=True))
    rows = _check.rows(grad).contiguous()
    sizes = (DTYPES[B.dtype], *rows.shape, winners.shape[-1])
    found = (winners.contiguous(), winner_indices.contiguous())
    frozen = _frozen(values, indices, in_features)
    _call(_C.fly_lora_backward, rows, *sizes, *found, *frozen, B.contiguous(), scale, *wanted)
    return outputs


def expand_gram_(
    G: Tensor,
    Q: Tensor,
    h: Tensor,
    values: Tensor,
    indices: Tensor | None,
    labels: Tensor,
    activation: str = "relu",
    k: int | None = None,
    precision: str = "float32",
) -> None:
    m, classes = Q.shape
    exact = G.dtype == torch.float32 and precision == "float32"
    if k is None or not exact or k > SCATTER_DENSITY * m:
        reference_expand_gram_(G, Q, h, values, indices, labels, activation, k, precision)
        return
    h, values = h.float(), values.float()
    for rows, ids in zip(h.split(BLOCK), labels.split(BLOCK), strict=True):
        winners, at = project_topk(rows, values, indices, k, activation=activation)
        _call(_C.winner_gram, winners, at, ids.contiguous(), len(rows), k, m, classes, G, Q)


def ridge_solve(G: Tensor, Q: Tensor, ridge: float) -> Tensor:
    # The transpose of a row-major copy is what LAPACK wants, so it is factored in place: one copy of G where the
    # reference makes three.
    factor = G.clone(memory_format=torch.contiguous_format).mT
    factor.diagonal().add_(ridge)
    fault = torch.empty((), dtype=torch.int32)
    torch.linalg.cholesky_ex(factor, upper=True, out=(factor, fault))
    check_factor(fault, ridge)
    half = torch.linalg.solve_triangular(factor.mT, Q, upper=False)
    return torch.linalg.solve_triangular(factor, half, upper=True).contiguous()


def _register() -> None:
    for kernel in (make_projection_, project, winner_take_all, project_topk, fly_lora, expand_gram_, ridge_solve):
        importlib.import_module(f"flyk.ops.{kernel.__name__}").OPERATOR.register(kernel, "CPU")
    importlib.import_module("flyk.ops.fly_lora").BACKWARD.register(fly_lora_backward, "CPU")


def _choose_instruction_set() -> None:
    """Refuse a FLYK_CPU that this processor has not now, rather than at the first kernel."""
    try:
        _C.isa()
    except RuntimeError as error:
        raise ValueError(str(error)) from None


_choose_instruction_set()
INSTRUCTION_SETS: list[str] = _C.instruction_sets()
POOL = _use_torch_threads()
_register()
