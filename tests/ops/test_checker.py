"""flyk check must be able to fail: kernels that are wrong in one way each are reported."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import typer
from samples import DIFFERENTIABLE, IN_PLACE, OPERATORS, each, typical
from torch import Tensor
from typer.testing import CliRunner

from flyk.check import Case, Result, cases_of, check_case
from flyk.check.run import CHOICES, MODULES, outputs, served
from flyk.cli.check import check

app = typer.Typer()
app.command()(check)


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Callable[..., Any]], None]:
    """Puts another function in an operator's place."""

    def replace_served(operator: str, wrong: Callable[..., Any]) -> None:
        monkeypatch.setattr(MODULES[operator], served(operator).__name__, wrong)

    return replace_served


def nudged(operator: str, change: Callable[[Tensor], Tensor], output: int = 0) -> Callable[..., Any]:
    """The operator, one of whose outputs comes out changed."""
    right = served(operator)

    def wrong(**arguments: Any) -> Any:
        result = right(**arguments)
        found = outputs(lambda **_: result, operator, arguments)
        if result is None:
            found[output].copy_(change(found[output].clone()))
            return None
        found[output] = change(found[output])
        return tuple(found) if len(found) > 1 else found[0]

    return wrong


def one_entry_off(t: Tensor) -> Tensor:
    """The largest entry a thousandth too large, or the last integer one too large."""
    t = t.clone()
    if t.numel() == 0:
        return t
    if t.is_floating_point():
        entry = t.tril() if t.dim() == 2 and t.shape[0] == t.shape[1] else t
        t.view(-1)[entry.abs().argmax()] *= 1.001
    else:
        t.view(-1)[-1] += 1
    return t


@pytest.mark.parametrize("case", each())
def test_one_entry_a_thousandth_off_is_a_fault(case: Case, serve: Callable[..., None]) -> None:
    assert check_case(case).passed
    for output in range(2 if case.operator in ("winner_take_all", "project_topk", "gram_", "expand_gram_") else 1):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                MODULES[case.operator], served(case.operator).__name__, nudged(case.operator, one_entry_off, output)
            )
            assert not check_case(case).passed


@pytest.mark.parametrize("case", each([name for name in OPERATORS if name not in IN_PLACE]))
@pytest.mark.parametrize(
    "change",
    [lambda t: t.float() * torch.nan, lambda t: t[None], lambda t: t.double() if t.is_floating_point() else t.int()],
    ids=["unwritten", "shape", "dtype"],
)
def test_unwritten_or_misshapen_results_are_faults(case: Case, change: Callable[[Tensor], Tensor], serve) -> None:
    serve(case.operator, nudged(case.operator, change))
    assert not check_case(case).passed


@pytest.mark.parametrize("operator", DIFFERENTIABLE)
def test_a_gradient_a_thousandth_off_is_a_fault(operator: str, serve) -> None:
    cases = [c for c in cases_of(operator) if c.gradient and c.dtype == torch.float32 and min(c.sizes) > 1][:6]
    serve(operator, nudged(operator, lambda t: t + 1e-3 * (t - t.detach())))
    assert not all(check_case(case).passed for case in cases)


def picked(change: Callable[[Tensor], Tensor]) -> Callable[..., Any]:
    """winner_take_all with its places changed, and the winners that stand there."""
    right = served("winner_take_all")

    def wrong(y: Tensor, **rest: Any) -> tuple[Tensor, Tensor]:
        at = change(right(y, **rest)[1])
        return y.gather(-1, at), at

    return wrong


@pytest.mark.parametrize(
    "change",
    [lambda at: at.flip(-1), lambda at: torch.where(at == at[..., :1], at[..., -1:], at)],
    ids=["ascending", "twice the same"],
)
def test_winners_out_of_order_or_repeated_are_faults(change: Callable[[Tensor], Tensor], serve) -> None:
    (case,) = typical("winner_take_all")
    serve("winner_take_all", picked(change))
    assert not check_case(case).passed


def test_ties_to_the_higher_index_are_a_fault(serve) -> None:
    right = served("winner_take_all")

    def wrong(y: Tensor, k: int, bias: Tensor | None, selection: str) -> tuple[Tensor, Tensor]:
        flipped = None if bias is None else bias.flip(-1)
        winners, at = right(y.flip(-1), k, bias=flipped, selection=selection)
        return winners, y.shape[-1] - 1 - at

    (case,) = typical("winner_take_all")
    serve("winner_take_all", wrong)
    assert check_case(case).passed  # no ties in these numbers
    assert not check_case(replace(case, data="integers")).passed


def test_sums_in_half_precision_are_a_fault(serve) -> None:
    right = served("project")

    def wrong(x: Tensor, values: Tensor, **rest: Any) -> Tensor:
        y = torch.zeros(*x.shape[:-1], len(values), dtype=x.dtype)
        for column in range(x.shape[-1]):
            y += x[..., column, None] * values[:, column]
        return y if rest["indices"] is None else right(x, values, **rest)

    case = replace(typical("project")[-1], dtype=torch.bfloat16)
    assert dict(case.options)["nnz"] is None
    serve("project", wrong)
    assert not check_case(case).passed


def test_an_error_is_a_fault_with_its_sentence(serve) -> None:
    def wrong(**_: Any) -> None:
        raise RuntimeError("the kernel gave up")

    serve("ema_", wrong)
    result = check_case(typical("ema_")[0])
    assert not result.passed
    assert "RuntimeError: the kernel gave up" in str(result)


def test_grid_is_large_and_the_same_each_time() -> None:
    names = [case.name for operator in OPERATORS for case in cases_of(operator)]
    assert len(names) >= 400
    assert names == [case.name for operator in OPERATORS for case in cases_of(operator)]
    for operator in OPERATORS:
        quick = cases_of(operator, quick=True)
        assert 0 < len(quick) < len(cases_of(operator))
        assert {c.dtype for c in quick} == {c.dtype for c in cases_of(operator)}


def test_share_of_a_result_that_need_not_be_exact_is_never_a_pass_by_nan() -> None:
    case = typical("project")[0]
    assert not Result(case, float("nan")).passed


def test_command_prints_a_table_and_what_it_found() -> None:
    ran = CliRunner().invoke(app, ["--op", "ema_,winner_take_all", "--op", "ridge_solve", "--quick"])
    assert ran.exit_code == 0
    header, *lines, last = ran.stdout.splitlines()
    assert header.split()[:2] == ["operator", "served"]
    assert [line.split()[0] for line in lines] == [
        *["winner_take_all", "winner_take_all", "ridge_solve", "ridge_solve", "ema_"]
    ]
    total = sum(len(cases_of(name, quick=True)) for name in ("ema_", "winner_take_all", "ridge_solve"))
    assert last == f"{total} cases, {total} passed, 0 failed"


def test_command_exits_with_1_on_a_fault(serve) -> None:
    serve("ema_", nudged("ema_", one_entry_off))
    ran = CliRunner().invoke(app, ["--op", "ema_"])
    assert ran.exit_code == 1
    assert "FAILED ema_ " in ran.stdout
    assert not ran.stdout.rstrip().endswith(" 0 failed")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [(["--op", "gram"], "--op"), (["--device", "abacus"], "--device"), (["--device", "cuda:99"], "--device")],
)
def test_command_refuses_bad_options_in_one_sentence(arguments: list[str], named: str) -> None:
    ran = CliRunner().invoke(app, arguments)
    assert ran.exit_code == 2
    assert ran.stdout == ""
    assert named in ran.stderr
    assert ran.stderr.count("\n") == 1


def test_choices_are_compared_bit_for_bit() -> None:
    assert {c.operator for name in CHOICES for c in cases_of(name)} == set(CHOICES)
