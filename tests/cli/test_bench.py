"""flyk bench from command to table, JSON and chart, on cases small enough for a test."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from flyk import backends, ops
from flyk.bench import ema_, expand_gram_, gram_, project
from flyk.bench._ceilings import Ceilings
from flyk.bench._measure import RIVALS
from flyk.bench._scaling import Curve
from flyk.bench._tune import Crossover
from flyk.cli import app

ROOT = Path(__file__).parents[2]
runner = CliRunner()


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="aot_eager"))
    monkeypatch.setattr("flyk.bench._ceilings.ceilings", lambda: Ceilings({2**18: 5e10, 2**28: 1e10}, 1e11))
    monkeypatch.setattr(ema_, "QUICK", (ema_.case(3, 5),))
    monkeypatch.setattr(gram_, "QUICK", (gram_.case(128, 9, share=2, uncompiled="left out here"),))
    monkeypatch.setattr(project, "QUICK", (project.case(5, 12, 9, 3),))


def test_table_json_and_chart(tmp_path: Path) -> None:
    files = [str(tmp_path / "all.json"), str(tmp_path / "all.svg")]
    arguments = ["bench", "--quick", "--op", "gram_,project", "--op", "ema_", "--json", files[0], "--plot", files[1]]
    result = runner.invoke(app, arguments)
    assert result.exit_code == 0, result.output

    found = json.loads(Path(files[0]).read_text())
    assert found["quick"] is True
    assert found["machine"]["torch"] == torch.__version__
    assert found["machine"]["command"].split()[0] == "flyk"
    assert found["ceilings"]["flop_per_second"] == 1e11
    assert [case["op"] for case in found["cases"]] == ["ema_", "gram_", "project"]
    for case in found["cases"]:
        assert tuple(case["rivals"]) == RIVALS
        assert case["check"] == "green"
        assert set(case["floor"]) == {"bytes", "flop", "seconds"}
        for rival in case["rivals"].values():
            assert "absent" in rival or {"error", "median", "q1", "q3", "rounds"} == set(rival)
            assert "absent" in rival or rival["rounds"] >= 5

    lines = result.output.splitlines()
    ema = next(line for line in lines if line.startswith("ema_ in place"))
    median = found["cases"][0]["rivals"]["flyk"]["median"]
    assert ema.count("±") == 4
    assert f" {median * 1e3:.3f} ±" in ema or median >= 1e-3
    assert any("2 heads of 3 x 5" in line for line in lines)
    assert "[1] left out here" in lines
    assert "[2] timed on 1/2 of the rows, times 2" in lines
    assert any("copy 50 GB/s in cache, 10 from memory; matrix product 100 GFLOP/s" in line for line in lines)

    chart = Path(files[1]).read_text()
    assert "<svg" in chart
    assert {path.name for path in tmp_path.iterdir()} == {"all.json", "all.svg"}


def test_wrong_kernel_is_red_without_speed_and_exits_with_1(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    right = ema_.QUICK[0]

    def wrong(namespace, bank, online, decays):
        right.ours(namespace, bank, online, decays)
        return bank.mul_(1.01) if namespace is ops else bank

    monkeypatch.setattr(ema_, "QUICK", (dataclasses.replace(right, ours=wrong),))
    file = tmp_path / "red.json"
    chart = tmp_path / "red.png"
    result = runner.invoke(app, ["bench", "--quick", "--op", "ema_", "--json", str(file), "--plot", str(chart)])
    assert result.exit_code == 1
    row = next(line for line in result.output.splitlines() if line.startswith("ema_ in place"))
    assert row.split()[3:] == ["RED"] * 4 + ["[1]"]
    assert "[1] flyk is off by 1" in result.output
    assert "median" not in file.read_text()
    assert chart.read_bytes().startswith(b"\x89PNG")


def test_nothing_is_left_when_the_run_is_stopped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def stopped(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("flyk.bench._measure.measure", stopped)
    result = runner.invoke(app, ["bench", "--quick", "--op", "ema_", "--json", str(tmp_path / "x.json")])
    assert (result.exit_code, result.output) == (130, "flyk bench: interrupted\n")
    assert list(tmp_path.iterdir()) == []


def test_scaling_writes_json_and_a_figure_of_each_operator(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("flyk.bench._scaling.limits_by_threads", lambda: {1: Ceilings({2**18: 5e10}, 1e11)})
    monkeypatch.setattr(ema_, "SCALING", (Curve("classes", (2, 3), {"d": 5}),))
    files = [str(tmp_path / "all.json"), str(tmp_path / "all.png")]
    result = runner.invoke(
        app, ["bench", "--scaling", "--quick", "--op", "ema_", "--json", files[0], "--plot", files[1]]
    )
    assert result.exit_code == 0, result.output
    (curve,) = json.loads(Path(files[0]).read_text())["curves"]
    assert [point["value"] for point in curve["points"]] == [2, 3]
    assert "ema_ in place: d 5  classes 2" in result.output
    assert {path.name for path in tmp_path.iterdir()} == {"all.json", "all-ema_.png"}


def test_memory_tells_peaks_and_what_layers_keep(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    rivals = {name: {"peak": 300_000} for name in RIVALS} | {"compiled": {"absent": "no compiler"}}
    peaks = [{"op": "ema_", "what": "in place", "sizes": "s", "inputs": 2_000_000, "rivals": rivals}]
    monkeypatch.setattr("flyk.bench._memory.measured", lambda operators, quick: peaks)
    file = tmp_path / "memory.json"
    result = runner.invoke(app, ["bench", "--memory", "--json", str(file)])
    assert result.exit_code == 0, result.output
    found = json.loads(file.read_text())
    assert found["peaks"] == peaks
    assert [layer["d"] for layer in found["activations"]] == [768, 2048, 4096]
    row = next(line for line in result.output.splitlines() if line.startswith("ema_ in place: s"))
    assert row.split()[-5:] == ["2.0", "0.3", "0.3", "-", "0.3"]


@pytest.mark.skipif("cpu" in backends.missing, reason="the extension was not built")
def test_tune_writes_what_the_dispatch_reads(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    sweep = Crossover("scatter_density", (0.1, 0.5), lambda share: expand_gram_.case(1, 8, 40, k=round(40 * share)))
    monkeypatch.setattr(expand_gram_, "CROSSOVERS", (sweep,))
    file = tmp_path / "avx2.json"
    result = runner.invoke(app, ["bench", "--tune", "--json", str(file)])
    assert result.exit_code == 0, result.output
    found = json.loads(file.read_text())
    assert 0 <= found["expand_gram_"]["scatter_density"] <= 0.5
    assert "expand_gram_ scatter_density" in result.output
    assert f"written to {file}" in result.output.replace("\n", "")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--tune", "--memory"], "--tune must be given without --memory"),
        (["--memory", "--plot", "x.svg"], "--plot must be given without --memory"),
    ],
)
def test_what_does_not_go_together_is_refused(arguments: list[str], sentence: str) -> None:
    result = runner.invoke(app, ["bench", *arguments])
    assert result.exit_code == 2
    assert sentence in result.output


@pytest.mark.slow
def test_the_same_cases_run_under_pytest_benchmark(tmp_path: Path) -> None:
    file = tmp_path / "benchmark.json"
    limits = ["--benchmark-only", "--benchmark-max-time=0.01", "--benchmark-min-rounds=1", f"--benchmark-json={file}"]
    chosen = ["bench/test_operators.py", "-k", "quick and ema_ and not compiled"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *chosen, *limits],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if not name.startswith("PYTEST_XDIST")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(file.read_text())["benchmarks"]
    assert [each["param"].rsplit("-", 1)[1] for each in found] == ["published", "eager", "flyk"]
    for each in found:
        assert each["extra_info"]["error"] < 1e-5
        assert each["stats"]["median"] > 0
