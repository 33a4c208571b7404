"""flyk info: what it tells, as text and as JSON, with the kernels and without."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import flyk
from flyk import backends, ops
from flyk.cli import app

built = pytest.mark.skipif("cpu" in backends.missing, reason="the CPU kernels are not built")


def told(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["info", *arguments])
    assert result.exit_code == 0, result.output
    return result.output


def test_json_and_text_tell_the_same() -> None:
    found = json.loads(told("--json"))
    assert found["flyk"] == flyk.__version__
    assert found["torch"] == torch.__version__
    assert found["threads"] == torch.get_num_threads()
    assert list(found["operators"]) == ops.__all__
    text = told()
    for name, devices in found["operators"].items():
        for device, sentence in devices.items():
            line = next(line for line in text.splitlines() if line.split()[:2] == [name, device])
            assert line.endswith(sentence)
    assert found["processor"] in text
    assert (found["openmp"] or "the caller's alone") in text


@built
def test_sentences_are_those_of_the_backend() -> None:
    from flyk.backends import cpu

    found = json.loads(told("--json"))
    assert {name: devices["cpu"] for name, devices in found["operators"].items()} == {
        n: cpu.SERVED[n] for n in ops.__all__
    }


@built
def test_each_instruction_set_named_can_be_forced() -> None:
    found = json.loads(told("--json"))
    sets = found["instruction_sets"]
    assert found["kernels"] in sets
    assert sets[-1] == "baseline"
    for name in sets:
        forced = subprocess.run(
            [sys.executable, "-c", "import _C; print(_C.isa())"],
            cwd=Path(flyk.__file__).parent,
            env=os.environ | {"FLYK_CPU": name},
            capture_output=True,
            text=True,
            check=True,
        )
        assert forced.stdout.strip() == name


def test_without_kernels_the_reason_stands_beside_every_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(backends.missing, "cpu", "no compiler was found")
    found = json.loads(told("--json"))
    assert found["kernels"] == "none (no compiler was found)"
    assert found["instruction_sets"] == []
    assert {devices["cpu"] for devices in found["operators"].values()} == {"reference: no compiler was found"}


def test_a_gpu_is_listed_and_said_to_be_unmeasured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Some GPU")
    monkeypatch.setitem(backends.missing, "triton", "triton is not installed")
    found = json.loads(told("--json"))
    assert found["gpu"] == "Some GPU"
    for devices in found["operators"].values():
        assert devices["cuda"].startswith("reference")
        assert "not yet measured on a GPU" in devices["cuda"]
    assert "Some GPU" in told()


def test_what_serves_a_gpu_is_named_and_said_to_be_unmeasured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Some GPU")
    monkeypatch.delitem(backends.missing, "triton", raising=False)
    for name, devices in json.loads(told("--json"))["operators"].items():
        kernel = name in importlib.import_module("flyk.backends.triton").KERNELS
        assert devices["cuda"].startswith("triton" if kernel else "reference"), name
        assert devices["cuda"].endswith("not yet measured on a GPU")


@built
def test_the_pool_is_torch_s_own() -> None:
    from flyk.backends import cpu

    name = json.loads(told("--json"))["openmp"]
    assert name == cpu.POOL
    assert name is None or (Path(torch.__file__).parent / "lib" / name).exists()
