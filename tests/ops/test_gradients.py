"""Gradients beyond their values, which flyk check holds: gradcheck, strides and dtypes of the incoming gradient."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from samples import DIFFERENTIABLE, differentiable, each, first, same
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from flyk import ops, reference
from flyk.check import Case, arguments_of
from flyk.check.run import served
from flyk.ops.fly_lora import BACKWARD, reference_backward

CASES = pytest.mark.parametrize("case", each(DIFFERENTIABLE))
DOUBLE_CASES = pytest.mark.parametrize("case", each(DIFFERENTIABLE, dtype=torch.float64))


def grads(out: Tensor, inputs: dict[str, Tensor], grad: Tensor | None = None) -> list[Tensor]:
    return list(torch.autograd.grad(out, list(inputs.values()), grad, retain_graph=True))


@DOUBLE_CASES
def test_gradcheck(case: Case) -> None:
    arguments, inputs = differentiable(case)

    def call(*tensors: Tensor) -> Tensor:
        return first(case, arguments | dict(zip(inputs, tensors, strict=True)))

    # Whether the numbers are right at every point flyk check says; here random directions are enough.
    assert torch.autograd.gradcheck(call, tuple(inputs.values()), fast_mode=True)


@DOUBLE_CASES
def test_any_strides_of_the_incoming_gradient(case: Case) -> None:
    """`.sum()` sends a gradient of stride 0 back, `torch.cat` and `.T` send views, as gradcheck never does."""
    arguments, inputs = differentiable(case)
    out = first(case, arguments)
    dense = torch.randn(out.shape, dtype=out.dtype, generator=torch.Generator().manual_seed(0))

    def close(got: list[Tensor], want: list[Tensor]) -> None:
        for g, w in zip(got, want, strict=True):
            torch.testing.assert_close(g, w, rtol=1e-12, atol=1e-12)

    close(grads(out.sum(), inputs), grads(out, inputs, torch.ones_like(out)))
    if out.dim() == 0:
        return
    beside = torch.cat([out, torch.zeros_like(out)], -1)
    close(grads(beside, inputs, torch.cat([dense, dense], -1)), grads(out, inputs, dense))
    if out.dim() > 1:
        turned = dense.mT.contiguous()
        close(grads(out.mT, inputs, turned), grads(out, inputs, dense))


@CASES
def test_gradients_have_the_dtype_shape_and_device_of_their_inputs(case: Case) -> None:
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
        if case.operator == "ridge_solve" and dtype.itemsize == 2:
            continue
        arguments, inputs = differentiable(replace(case, dtype=dtype))
        for g, t in zip(grads(first(case, arguments).sum(), inputs), inputs.values(), strict=True):
            assert (g.dtype, g.shape, g.device) == (t.dtype, t.shape, t.device)


@pytest.mark.parametrize("case", [p for p in each(DIFFERENTIABLE, dtype=torch.bfloat16) if p.id != "ridge_solve"])
def test_float32_gradient_of_bfloat16_parameters(case: Case) -> None:
    """As mixed-precision sharding sends it."""
    arguments, inputs = differentiable(case)
    out = first(case, arguments)
    grad = torch.randint(-2, 3, out.shape, generator=torch.Generator().manual_seed(0)).float()
    found = torch.autograd.grad(out, list(inputs.values()), grad, retain_graph=True)
    assert same(list(found), grads(out, inputs, grad.bfloat16()))
    assert all(g.dtype == torch.bfloat16 for g in found)


@CASES
def test_backward_twice_gives_the_same_and_changes_nothing(case: Case) -> None:
    arguments, inputs = differentiable(case)
    before = [t.detach().clone() for t in inputs.values()]
    out = first(case, arguments)
    kept = out.detach().clone()
    once, again = grads(out.sum(), inputs), grads(out.sum(), inputs)
    assert same(once, again)
    assert same([*inputs.values(), out], [*before, kept])
    assert all(t._version == 0 for t in arguments.values() if isinstance(t, Tensor))


@CASES
def test_only_what_needs_a_gradient_gets_one(case: Case) -> None:
    _, every = differentiable(case)
    for name in every:
        arguments = arguments_of(case)
        arguments[name].requires_grad_()
        first(case, arguments).sum().backward()
        assert [n for n in every if arguments[n].grad is not None] == [name]


@CASES
@pytest.mark.parametrize("reentrant", [False, True])
def test_under_activation_checkpointing(case: Case, reentrant: bool) -> None:
    arguments, inputs = differentiable(case)
    want = grads(first(case, arguments).sum(), inputs)

    def call(*tensors: Tensor) -> Tensor:
        return first(case, arguments | dict(zip(inputs, tensors, strict=True)))

    out: Any = checkpoint(call, *inputs.values(), use_reentrant=reentrant)
    out.sum().backward()
    assert same([t.grad for t in inputs.values() if t.grad is not None], want)


@CASES
def test_an_overwritten_saved_tensor_is_noticed(case: Case) -> None:
    """Autograd must refuse, rather than use the new numbers, when what the backward needs was changed in place."""
    if case.operator == "winner_take_all":
        pytest.skip("keeps nothing but its own indices")
    arguments, _ = differentiable(case)
    out = first(case, arguments)
    kept = {"project": "values", "project_topk": "values", "fly_lora": "B", "ridge_solve": "G"}
    with torch.no_grad():
        saved = arguments[kept.get(case.operator, next(iter(arguments)))]
        saved.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


@CASES
def test_indices_have_no_gradient(case: Case) -> None:
    if case.operator not in ("winner_take_all", "project_topk", "fly_lora"):
        pytest.skip("has no indices")
    arguments, _ = differentiable(case)
    *_, indices = served(case.operator)(**arguments)
    assert not indices.requires_grad


@pytest.mark.parametrize("shape", [(0, 6), (4, 6)], ids=["no rows", "some rows"])
@pytest.mark.parametrize("k", [0, 3])
def test_no_winner_no_gradient(shape: tuple[int, int], k: int) -> None:
    x = torch.randn(shape, requires_grad=True)
    B = torch.randn(5, 8, requires_grad=True)
    values = torch.randn(8, 6)
    out = ops.fly_lora(x, None, values, None, B, k)
    out.sum().backward()
    assert out.shape == (shape[0], 5)
    assert x.grad is not None
    assert B.grad is not None
    nothing = k == 0 or shape[0] == 0
    assert (B.grad == 0).all() == nothing
    assert nothing == bool((x.grad == 0).all())


def test_heads_that_tie_share_the_gradient() -> None:
    """As they do when an expert starts: its EMA heads are copies of the online head."""
    h, W = torch.randn(4, 3, dtype=torch.float64), torch.randn(5, 3, dtype=torch.float64)
    found = []
    for function in (ops.ensemble, reference.ensemble):
        leaf = W.clone().requires_grad_()
        bank = W.expand(2, 3, 5, 3).clone().requires_grad_()
        p = function(h, leaf, None, bank, None, torch.tensor([0, 1, 1, 0]))
        found.append(torch.autograd.grad(p[:, :2].sum(), (leaf, bank)))
    for got, want in zip(*found, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("precision", ["bf16", "bf16x3"])
def test_reduced_precision_leaves_the_gradient_exact(precision: str) -> None:
    x, values = torch.randn(7, 33), torch.randn(31, 33)
    found = []
    for asked in (precision, "float32"):
        leaf = x.clone().requires_grad_()
        ops.project(leaf, values, precision=asked).sum().backward()
        found.append(leaf.grad)
    assert torch.equal(*found)


def test_a_frozen_matrix_that_wants_a_gradient_is_refused() -> None:
    values = torch.randn(5, 4, requires_grad=True)
    with pytest.raises(ValueError, match="values must be frozen"):
        ops.project(torch.randn(3, 4), values)


@pytest.mark.parametrize("spoilt", [float("nan"), float("inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_spoilt_gradient_of_fly_lora_reaches_the_winners_of_its_row_alone(dtype: torch.dtype, spoilt: float) -> None:
    """grad_B is a sum over the rows that a rank won, so that one bad row does not hide which ranks are well."""
    rows, d, m, r, k, row, column = 40, 24, 10, 8, 3, 7, 4
    draw = torch.Generator().manual_seed(0)
    A, B = (torch.randn(*shape, dtype=dtype, generator=draw) for shape in ((r, d), (m, r)))
    winners, grad = (torch.randn(*shape, dtype=dtype, generator=draw) for shape in ((rows, k), (rows, m)))
    indices = torch.rand(rows, r, generator=draw).argsort(1)[:, :k]
    grad[row, column] = spoilt
    arguments = (grad, winners, indices, A, None, B, 2.0, d, True, True)
    ours, wanted = BACKWARD(*arguments), reference_backward(*arguments)
    spoilt_entries = torch.zeros(m, r, dtype=torch.bool)
    spoilt_entries[column, indices[row]] = True
    for grad_x, grad_B in (ours, wanted):
        assert torch.equal(~grad_B.isfinite(), spoilt_entries)
        assert torch.equal(~grad_x.isfinite().all(1), torch.arange(rows) == row)
    torch.testing.assert_close(ours[1], wanted[1], equal_nan=True)
