"""Every operator on the backend that serves it: values, unwritten outputs, strides, dtypes, inputs left alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from samples import IN_PLACE, OPERATORS, differentiable, each, first, run, same
from torch import Tensor

from flyk import ops
from flyk.check import Case, arguments_of, cases_of, check_case
from flyk.check.cases import DTYPES, LAYOUTS
from flyk.check.run import outputs, served, written


def failures(cases: list[Case]) -> list[str]:
    return [str(result) for result in map(check_case, cases) if not result.passed]


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("operator", OPERATORS)
def test_values_and_gradients_against_float64(operator: str, dtype: torch.dtype) -> None:
    assert failures([case for case in cases_of(operator) if case.dtype == dtype]) == []


@pytest.mark.parametrize("case", each())
def test_any_strides(case: Case) -> None:
    layouts = ("contiguous", "columns", "transposed") if case.operator == "ridge_solve" else LAYOUTS
    variants = [replace(case, layout=layout, data=data) for layout in layouts for data in ("normal", "integers")]
    assert failures([v for v in variants if (v.operator, v.data) != ("ridge_solve", "integers")]) == []


@pytest.mark.parametrize("case", each())
def test_inputs_are_left_alone(case: Case) -> None:
    arguments = arguments_of(case)
    before = arguments_of(case)
    inputs = {n: t for n, t in arguments.items() if isinstance(t, Tensor) and n not in written(case.operator)}
    outputs(served(case.operator), case.operator, arguments)
    assert all(t._version == 0 for t in inputs.values())
    assert same(list(inputs.values()), [before[name] for name in inputs])


@pytest.mark.parametrize("case", each(IN_PLACE))
def test_in_place_operators_return_nothing_and_bump_versions(case: Case) -> None:
    arguments = arguments_of(case)
    assert served(case.operator)(**arguments) is None
    assert all(arguments[n]._version > 0 for n in written(case.operator) if arguments[n] is not None)


@pytest.mark.parametrize("case", each())
def test_twenty_runs_are_bitwise_equal(case: Case) -> None:
    expected = run(case)
    assert all(same(run(case), expected) for _ in range(20))


def through_gemm(case: Case) -> bool:
    """Whether PyTorch's matrix product serves: on some processors its bits depend on the number of threads."""
    dense = dict(case.options).get("nnz", 0) is None and case.operator != "fly_lora"
    return dense or case.operator in ("gram_", "expand_gram_", "ridge_solve")


@pytest.mark.parametrize("case", each())
def test_threads_change_no_bit(case: Case, threads) -> None:
    if through_gemm(case):
        case = replace(case, data="integers")  # whose sums are exact in any order
    found = []
    for n in (1, 2, 3):
        threads(n)
        found.append(run(case))
    assert same(found[0], found[1])
    assert same(found[0], found[2])


@pytest.mark.parametrize("case", each(["winner_take_all", "project_topk", "fly_lora"], data="integers"))
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_leading_shape_is_free(case: Case, dtype: torch.dtype) -> None:
    rows = replace(case, dtype=dtype)
    arguments = arguments_of(rows)
    whole = outputs(served(rows.operator), rows.operator, arguments)
    lead = {"winner_take_all": ("y",), "project_topk": ("x",), "fly_lora": ("x", "base")}[rows.operator]
    n = arguments[lead[0]].shape[:-1].numel()
    one = {k: v.reshape(n, v.shape[-1])[n - 1] if k in lead and v is not None else v for k, v in arguments.items()}
    last = outputs(served(rows.operator), rows.operator, one)
    assert same(last, [t.reshape(n, t.shape[-1])[n - 1] for t in whole])


def test_nan_ranks_above_all_and_no_index_leaves_its_row() -> None:
    nan, inf = float("nan"), float("inf")
    y = torch.tensor([[nan] * 4, [1.0, nan, 3.0, -nan], [inf, -inf, nan, 0.0], [-inf] * 4])
    winners, indices = ops.winner_take_all(y, 4, selection="signed")
    assert indices.tolist() == [[0, 1, 2, 3], [1, 3, 2, 0], [2, 0, 3, 1], [0, 1, 2, 3]]
    assert same([winners], [y.gather(1, indices)])


def test_minus_zero_ties_with_zero() -> None:
    y = torch.tensor([[-0.0, 0.0, -0.0, 0.0]])
    assert ops.winner_take_all(y, 3, selection="signed")[1].tolist() == [[0, 1, 2]]


def test_half_precision_scores_keep_a_small_bias() -> None:
    # In bfloat16 1 + 2^-10 is 1 again, so a bias of that size would be lost if scores were not float32.
    y = torch.ones(1, 8, dtype=torch.bfloat16)
    bias = torch.zeros(8).index_fill_(0, torch.tensor([5]), 2.0**-10)
    assert ops.winner_take_all(y, 2, bias=bias)[1].tolist() == [[5, 0]]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rows", [1, 150])
def test_sparse_rows_read_no_other_column(rows: int, dtype: torch.dtype) -> None:
    """Whatever stands in a column that no row of the matrix names, for few rows and for many."""
    clean = torch.arange(rows * 96).remainder(3).reshape(rows, 96).to(dtype)
    spoiled = clean.clone()
    spoiled[:, 1::2] = torch.tensor([float("nan"), float("inf"), -float("inf")] * 16, dtype=dtype)
    indices = 2 * torch.rand(32, 48, generator=torch.Generator().manual_seed(0)).argsort(1)[:, :7]
    values, B = torch.ones(32, 7, dtype=dtype), torch.ones(130, 32, dtype=dtype)
    for call in (
        lambda x: [ops.project(x, values, indices)],
        lambda x: ops.project_topk(x, values, indices, 8),
        lambda x: [ops.fly_lora(x, None, values, indices, B, 8)],
    ):
        assert same(list(call(spoiled)), list(call(clean)))


@pytest.mark.parametrize("case", each(["fly_lora"]))
def test_output_is_fresh_and_base_untouched(case: Case) -> None:
    arguments, _ = differentiable(replace(case, options=(*dict(case.options, base=True).items(),)))
    out = first(case, arguments)
    assert out.data_ptr() != arguments["base"].data_ptr()
