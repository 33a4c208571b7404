"""The statements of `flyk check --theory`: all hold, each can fail, and the command prints and keeps them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from flyk.check.theory import STATEMENTS, Measured, Statement, fly_lora, orthogonality, rear, te2
from flyk.cli import app, check
from flyk.nn import REAR, FlyLoRALinear, RandomProjection, TE2Head
from flyk.ops import ema_

runner = CliRunner()


@pytest.mark.parametrize("statement", STATEMENTS, ids=lambda statement: statement.name)
def test_holds(statement: Statement) -> None:
    numbers = list(statement.measure())
    assert numbers
    assert [str(one) for one in numbers if not one.passed] == []
    assert statement.text.endswith(".")


def wide(*args: Any, std: float = 1.0, **options: Any) -> RandomProjection:
    return RandomProjection(*args, std=1.1 * std, **options)


def one_seed(*args: Any, seed: int, **options: Any) -> RandomProjection:
    return RandomProjection(*args, seed=0, **options)


def first_ranks(y: torch.Tensor, k: int) -> tuple[None, torch.Tensor]:
    return None, torch.arange(k).expand(len(y), k)


class Forgetful(REAR):
    def update(self, h: torch.Tensor, expert: Any) -> None:
        super().update(h[:-1], expert[:-1])


class Linear(REAR):
    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options, activation="none")


def late(bank: torch.Tensor, online: torch.Tensor, decays: Any) -> None:
    ema_(bank, online, [decay**2 for decay in decays])


def one_adapter(*args: Any, seed: int, **options: Any) -> FlyLoRALinear:
    return FlyLoRALinear(*args, seed=0, **options)


class Coarse(REAR):
    def solve(self) -> torch.Tensor:
        U = super().solve()
        return U.bfloat16().float() if U.dtype == torch.float32 else U


class Hasty(TE2Head):
    def ema_step(self) -> None:
        super().ema_step()
        super().ema_step()


# A fault in each, and the statement that must not survive it.
FAULTS = {
    "lengths": (fly_lora, "RandomProjection", wide),
    "distortion": (fly_lora, "RandomProjection", wide),
    "gradient_covariance": (fly_lora, "winner_take_all", lambda y, k: first_ranks(y, k // 2)),
    "activity": (fly_lora, "project_topk", lambda x, values, indices, k: first_ranks(x, k)),
    "cross_gram": (orthogonality, "RandomProjection", one_seed),
    "streams": (rear, "REAR", Forgetful),
    "kernel": (rear, "RandomProjection", wide),
    "scale_of_G": (rear, "REAR", Linear),
    "single_precision": (rear, "REAR", Coarse),
    "updates": (orthogonality, "FlyLoRALinear", one_adapter),
    "closed_form": (te2, "ema_", late),
    "drift": (te2, "TE2Head", Hasty),
}


def test_each_statement_has_its_fault() -> None:
    assert {statement.measure.__name__ for statement in STATEMENTS} == set(FAULTS)


@pytest.mark.parametrize("name", FAULTS)
def test_does_not_hold_of_something_else(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, attribute, fault = FAULTS[name]
    monkeypatch.setattr(module, attribute, fault)
    assert not all(one.passed for one in getattr(module, name)())


@pytest.mark.parametrize(
    ("expected", "measured", "tolerance", "relation", "passed"),
    [
        (1.0, 1.1, 0.2, "=", True), (1.0, 0.7, 0.2, "=", False), (1.0, float("nan"), 9.0, "=", False),
        (1.0, 0.5, 0.0, "<=", True), (1.0, 1.1, 0.0, "<=", False), (1.0, 1.1, 0.2, "<=", True),
        (1.0, 1.5, 0.0, ">=", True), (1.0, 0.9, 0.0, ">=", False), (1.0, float("nan"), 0.0, ">=", False),
    ],
)  # fmt: skip
def test_numbers_pass_within_their_tolerance(expected, measured, tolerance, relation, passed) -> None:
    assert Measured("x", expected, measured, tolerance, relation).passed is passed


def shaky():
    """Two and two is four.

    And more.
    """
    yield Measured("sum", 4, 4)
    yield Measured("sum on a bad day", 4, 5, 0.5)


def test_command_says_and_keeps_what_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "STATEMENTS", (Statement("Book, Thm 1", shaky),))
    ran = runner.invoke(app, ["check", "--theory", "--json", str(tmp_path / "a.json")])
    assert ran.exit_code == 1
    lines = [" ".join(line.split()) for line in ran.output.splitlines()]
    assert "Book, Thm 1: Two and two is four." in lines
    assert "sum = 4 4 0 passed" in lines
    assert "sum on a bad day = 4 5 0.5 FAILED" in lines
    assert "2 numbers, 1 passed, 1 failed" in lines
    numbers = json.loads((tmp_path / "a.json").read_text())["numbers"]
    assert [one["passed"] for one in numbers] == [True, False]
    assert numbers[1] == {
        "source": "Book, Thm 1", "statement": "Two and two is four.", "what": "sum on a bad day", "relation": "=",
        "expected": 4, "measured": 5, "tolerance": 0.5, "passed": False,
    }  # fmt: skip


def test_operators_are_kept_as_json_too(tmp_path: Path) -> None:
    ran = runner.invoke(app, ["check", "--quick", "--op", "ema_", "--json", str(tmp_path / "a.json")])
    assert ran.exit_code == 0
    cases = json.loads((tmp_path / "a.json").read_text())["cases"]
    assert cases
    assert all(one["passed"] and one["fault"] is None and one["case"].startswith("ema_") for one in cases)


@pytest.mark.parametrize("extra", [["--quick"], ["--op", "ema_"], ["--device", "cuda"]])
def test_theory_is_asked_for_alone(extra: list[str]) -> None:
    ran = runner.invoke(app, ["check", "--theory", *extra])
    assert ran.exit_code == 2
    assert "--theory must be given without --op, --quick and --device" in ran.output


def test_a_file_that_cannot_be_written_is_refused_first(tmp_path: Path) -> None:
    ran = runner.invoke(app, ["check", "--theory", "--json", str(tmp_path / "a.txt")])
    assert ran.exit_code == 2
    assert "--json must end in .json" in ran.output
