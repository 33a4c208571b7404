"""`make gpu`, but for the GPU: its stages, what it does when one fails, and how the sweep looks for better choices."""

from __future__ import annotations

import functools
import importlib.util
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from flyk import tuning

ROOT = Path(__file__).parents[2]


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"bench_{name}", ROOT / "bench" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = script("gpu")
    (tmp_path / "bench" / "results").mkdir(parents=True)
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(module, "OUT", tmp_path / "out")
    return module


def test_all_stages_fit_into_eight_minutes(gpu: ModuleType) -> None:
    assert sum(stage.seconds for stage in gpu.STAGES) <= 480
    names = [stage.name for stage in gpu.STAGES]
    assert names == ["build cpu", "build cuda", "check triton", "check cuda", "sweep", "bench triton", "bench cuda"]
    for stage in gpu.STAGES:
        assert stage.command[0] == sys.executable
        if "--limit" in stage.command:
            assert int(stage.command[stage.command.index("--limit") + 1]) < stage.seconds


def stage(gpu: ModuleType, code: str, seconds: int = 20):
    return gpu.Stage("one", seconds, (sys.executable, "-c", code), {"SAID": "yes"})


@pytest.mark.parametrize(
    ("code", "seconds", "ended"),
    [
        ("import os; assert os.environ['SAID'] == 'yes'", 20, "passed"),
        ("raise SystemExit(3)", 20, "failed with 3"),
        ("import time; time.sleep(60)", 1, "stopped: its time was over"),
    ],
)
def test_how_a_stage_ends(gpu: ModuleType, code: str, seconds: int, ended: str) -> None:
    assert gpu.run(stage(gpu, code, seconds))["ended"] == ended


def test_what_was_measured_is_kept_though_a_stage_fails(gpu: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = {"processor": "NVIDIA H200 (SXM)", "date": "2026-12-01T10:00:00+00:00"}
    for name in ("triton", "cuda"):
        result = {"machine": machine | {"kernels": name}, "quick": False, "cases": [name]}
        write = f"import pathlib; pathlib.Path({str(gpu.OUT / name)!r} + '.json').write_text({json.dumps(result)!r})"
        monkeypatch.setattr(gpu, "STAGES", (*(gpu.STAGES if name == "cuda" else ()), stage(gpu, write)))
    monkeypatch.setattr(gpu, "STAGES", (*gpu.STAGES, stage(gpu, "raise SystemExit(1)")))
    assert gpu.main() == 1
    (file,) = (gpu.ROOT / "bench" / "results").iterdir()
    assert file.name == "nvidia-h200-sxm-2026-12-01.json"
    found = json.loads(file.read_text())
    assert found["cases"] == ["triton"]
    assert found["backends"]["cuda"]["cases"] == ["cuda"]
    assert [each["ended"] for each in found["stages"]] == ["passed", "passed", "failed with 1"]


def test_without_results_nothing_is_written(gpu: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "STAGES", (stage(gpu, "pass"),))
    assert gpu.main() == 0
    assert list((gpu.ROOT / "bench" / "results").iterdir()) == []


def test_sweep_walks_to_the_best_configuration_and_stops_when_time_is_over() -> None:
    sweep = script("sweep")
    rows = [{"up_to": 64, "BLOCK": 128, "num_warps": 1}, {"BLOCK": 256, "num_warps": 16, "num_stages": 2}]

    def seconds() -> float:
        return sum(abs(row["num_warps"] - 4) + abs(row.get("num_stages", 3) - 3) + 1.0 for row in rows)

    kept = [dict(row) for row in rows]
    sweep.improve(rows, seconds, lambda: True)
    assert rows == kept
    sweep.improve(rows, seconds, lambda: False)
    assert rows == [kept[0] | {"num_warps": 4}, kept[1] | {"num_warps": 4, "num_stages": 3}]
    assert list(sweep.neighbours({"BLOCK": 64, "num_warps": 1})) == [{"BLOCK": 64, "num_warps": 2}]


def test_a_change_that_gains_too_little_is_not_made() -> None:
    sweep, rows = script("sweep"), [{"num_warps": 4}]
    sweep.improve(rows, lambda: 1.0 - 0.001 * rows[0]["num_warps"], lambda: False)
    assert rows == [{"num_warps": 4}]


@pytest.mark.parametrize(
    ("faster", "share"), [(lambda d: d < 0.12, 0.1), (lambda d: False, 0.0), (lambda d: True, 0.4)]
)
def test_crossover(faster: Callable[[float], bool], share: float) -> None:
    assert script("sweep").crossover(faster) == share


def test_kernels_are_noted_and_looked_up_anew_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    table = {"kernel": 1}
    monkeypatch.setattr(tuning, "configuration", functools.cache(lambda a, kernel, size: table[kernel]), raising=False)
    with script("sweep").noted() as kernels:
        assert tuning.configuration("sm_90", "kernel", 5) == 1
        table["kernel"] = 2
        assert tuning.configuration("sm_90", "kernel", 5) == 2
    assert kernels == {"kernel"}
    assert tuning.configuration("sm_90", "kernel", 5) == 2
