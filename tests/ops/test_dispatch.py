"""Every operator under torch's machinery: opcheck, torch.compile, autocast, meta tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from samples import DIFFERENTIABLE, IN_PLACE, OPERATORS, ROWS, differentiable, each, first, run, same
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from flyk.check import SUBJECTS, Case, arguments_of
from flyk.check.run import outputs, served, written


class Recorder(TorchDispatchMode):
    """Keeps the calls that reach flyk's operators, those from inside a backward included."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "flyk":
            self.calls.append((func, args, kwargs or {}))
        return func(*args, **(kwargs or {}))


def calls(case: Case) -> list[tuple[Any, tuple[Any, ...], dict[str, Any]]]:
    """The operators that a case runs, forward and backward, with their arguments."""
    with Recorder() as recorder:
        if case.operator not in DIFFERENTIABLE:
            run(case)
        else:
            arguments, _ = differentiable(case)
            first(case, arguments).sum().backward()
    return recorder.calls


@pytest.mark.parametrize("case", each())
def test_opcheck(case: Case) -> None:
    found = calls(case)
    assert found
    for operator, args, kwargs in found:
        args = tuple(a.detach().clone() if isinstance(a, Tensor) else a for a in args)
        torch.library.opcheck(operator, args, kwargs)


@pytest.mark.parametrize("case", each(DIFFERENTIABLE))
def test_opcheck_with_gradient(case: Case) -> None:
    (operator, args, kwargs), *_ = calls(case)
    torch.library.opcheck(operator, args, kwargs)


@pytest.mark.parametrize("case", each(layout="columns"))
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_shape_rule_of_strided_inputs(case: Case, dtype: torch.dtype) -> None:
    """The fake result has the strides and dtype of the real one."""
    if case.operator == "ridge_solve" and dtype == torch.bfloat16:
        pytest.skip("takes no half precision")
    for operator, args, kwargs in calls(replace(case, dtype=dtype)):
        args = tuple(a.detach() if isinstance(a, Tensor) else a for a in args)
        torch.library.opcheck(operator, args, kwargs, test_utils=("test_schema", "test_faketensor"))


def test_every_operator_of_the_namespace_is_covered() -> None:
    names = {name.removeprefix("flyk::") for name in torch._C._dispatch_get_all_op_names() if name.startswith("flyk::")}
    backward = {name for name in names if name.endswith("_backward")}
    within_layers = {"fly_lora_", "fly_lora_linear"}  # tests/nn/test_fly_lora_in_place.py
    assert names - backward - within_layers == set(OPERATORS)
    seen = {call[0]._schema.name.removeprefix("flyk::") for p in each(DIFFERENTIABLE) for call in calls(p.values[0])}
    assert backward <= seen


@contextmanager
def fresh_compiler(**settings: Any) -> Iterator[None]:
    torch._dynamo.reset()
    with torch._dynamo.config.patch(**settings):
        yield
    torch._dynamo.reset()


def split(arguments: dict[str, Any]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    tensors = {name: value for name, value in arguments.items() if isinstance(value, Tensor)}
    return tensors, {name: value for name, value in arguments.items() if name not in tensors}


def compiled(case: Case, **options: Any) -> Callable[[dict[str, Any]], list[Tensor]]:
    """The operator compiled as one graph, its tensors passed in and everything else constant."""
    _, constants = split(arguments_of(case))
    function = served(case.operator)

    @torch.compile(fullgraph=True, **options)
    def call(tensors: dict[str, Tensor]) -> Any:
        return function(**tensors, **constants)

    def unwrapped(arguments: dict[str, Any]) -> list[Tensor]:
        return outputs(lambda **everything: call(split(everything)[0]), case.operator, arguments)

    return unwrapped


@pytest.mark.parametrize("case", each())
def test_compiles_whole_and_once_for_all_batch_sizes(case: Case) -> None:
    batches = []
    for rows in (23, 37, 71):  # sizes that no other dimension has, lest the compiler take them for one
        sizes = list(case.sizes)
        sizes[ROWS[case.operator]] = rows
        batches.append(replace(case, sizes=tuple(sizes)))
    with fresh_compiler(error_on_recompile=True):
        call = compiled(case, backend="aot_eager", dynamic=True)
        for batch in batches:
            assert same(call(arguments_of(batch)), run(batch))


@pytest.mark.parametrize("case", each(DIFFERENTIABLE))
def test_compiled_gradients_are_the_eager_ones(case: Case) -> None:
    arguments, inputs = differentiable(case)
    want = torch.autograd.grad(first(case, arguments).sum(), list(inputs.values()))
    with fresh_compiler():
        out = compiled(case, backend="aot_eager", dynamic=True)(arguments)[0]
        assert same(list(torch.autograd.grad(out.sum(), list(inputs.values()))), list(want))


@pytest.mark.slow
@pytest.mark.parametrize("operator", OPERATORS)
def test_inductor(operator: str) -> None:
    case = each([operator])[0].values[0]
    with fresh_compiler():
        for got, want in zip(compiled(case)(arguments_of(case)), run(case), strict=True):
            torch.testing.assert_close(got, want, equal_nan=True)


@pytest.mark.parametrize("case", each(IN_PLACE))
def test_compiled_loop_of_updates_equals_eager(case: Case) -> None:
    function, targets = served(case.operator), written(case.operator)

    def three(tensors: dict[str, Tensor], constants: dict[str, Any]) -> list[Tensor]:
        for _ in range(3):
            function(**tensors, **constants)
        return [tensors[name] * 1 for name in targets if name in tensors]

    eager, graph = split(arguments_of(case)), split(arguments_of(case))
    with fresh_compiler():
        found = torch.compile(three, fullgraph=True, backend="aot_eager")(*graph)
    assert same(found, three(*eager))
    assert same(list(graph[0].values()), list(eager[0].values()))


# What autocast turns a result into, given the dtype that it was entered with.
AUTOCAST = {"project": "lowered", "project_topk": "lowered", "fly_lora": "lowered", "ensemble": "lowered"} | {
    "ridge_solve": "float32",
    "masked_cross_entropy": "float32",
}


@pytest.mark.parametrize("lowered", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("half_first", [False, True], ids=["float32 input", "half input"])
@pytest.mark.parametrize("case", each([*AUTOCAST, "expand_gram_"]))
def test_autocast_takes_mixed_dtypes_as_linear_does(case: Case, half_first: bool, lowered: torch.dtype) -> None:
    arguments = arguments_of(case)
    inputs = [n for n, t in arguments.items() if isinstance(t, Tensor) and t.is_floating_point()]
    inputs = [n for n in inputs if n != "bias" and n not in written(case.operator)]
    for name in inputs:
        if (name == inputs[0]) == half_first:
            arguments[name] = arguments[name].to(lowered)
    leaves = {n: arguments[n].requires_grad_() for n in inputs if n in SUBJECTS[case.operator].differentiable}
    to = lowered if AUTOCAST.get(case.operator) == "lowered" else torch.float32
    cast = {name: arguments[name].detach().to(to) for name in inputs}
    fresh = {name: arguments[name].clone() for name in written(case.operator)}
    with torch.autocast("cpu", lowered):
        got = outputs(served(case.operator), case.operator, arguments)
    assert same(got, outputs(served(case.operator), case.operator, arguments | cast | fresh))
    if case.operator in AUTOCAST:
        assert got[0].dtype == to
        got[0].sum().backward()  # outside the context
        assert all(t.grad is not None and t.grad.dtype == t.dtype for t in leaves.values())


@pytest.mark.parametrize("case", each(["project"], dtype=torch.float64))
def test_autocast_leaves_float64_alone(case: Case) -> None:
    with torch.autocast("cpu", torch.bfloat16):
        assert same(run(case), run(case))
        assert run(case)[0].dtype == torch.float64


@pytest.mark.parametrize("case", each(["winner_take_all"]))
def test_autocast_leaves_choices_alone(case: Case) -> None:
    with torch.autocast("cpu", torch.bfloat16):
        assert run(case)[0].dtype == torch.float32


@pytest.mark.parametrize("case", each())
def test_meta_tensors_get_shapes_alone(case: Case) -> None:
    real = run(case)
    arguments = {n: v.to("meta") if isinstance(v, Tensor) else v for n, v in arguments_of(case).items()}
    for got, want in zip(outputs(served(case.operator), case.operator, arguments), real, strict=True):
        assert (got.shape, got.dtype, got.stride()) == (want.shape, want.dtype, want.stride())


@pytest.mark.parametrize("case", each())
def test_a_direct_call_is_the_dispatchers(case: Case) -> None:
    """Outside all modes an operator calls its kernel itself, and torch's dispatcher inside them: the bits are equal."""
    with torch.profiler.profile() as profile:
        dispatched = run(case)
    assert f"flyk::{case.operator}" in {event.name for event in profile.events() or ()}
    assert same(run(case), dispatched)


@pytest.mark.parametrize("case", each(["project", "masked_cross_entropy", "fly_lora"]))
def test_a_pending_negation_is_done(case: Case) -> None:
    name = next(n for n, t in arguments_of(case).items() if isinstance(t, Tensor))
    pending, done = arguments_of(case), arguments_of(case)
    pending[name], done[name] = torch.ops.aten._neg_view(pending[name]), -done[name]
    assert same(*(outputs(served(case.operator), case.operator, arguments) for arguments in (pending, done)))
