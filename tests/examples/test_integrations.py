"""The three files for other frameworks learn a stream of made classes; Avalanche by itself, the others by stand-ins."""

from __future__ import annotations

import runpy
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

FOLDER = Path(__file__).parents[2] / "examples" / "integrations"
CENTRES = 3 * torch.randn(4, 16, generator=torch.Generator().manual_seed(0))


def made(classes: Any, rows: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    y = torch.as_tensor(list(classes)).repeat_interleave(rows)
    return CENTRES[y] + torch.randn(len(y), 16, generator=torch.Generator().manual_seed(seed)), y


def module(monkeypatch: pytest.MonkeyPatch, name: str, **contents: Any) -> None:
    """Stands for a module of a framework that is not installed here."""
    for parent in (name.rpartition(".")[0], name):
        if parent:
            monkeypatch.setitem(sys.modules, parent, types.ModuleType(parent))
    vars(sys.modules[name]).update(contents)


def test_avalanche() -> None:
    pytest.importorskip("avalanche", reason="needs avalanche-lib")
    from avalanche.benchmarks import tensors_benchmark
    from avalanche.training.plugins import EvaluationPlugin

    strategy = runpy.run_path(str(FOLDER / "avalanche_rear.py"))["RearStrategy"]
    parts = [(0, 1), (2, 3)]
    benchmark = tensors_benchmark(
        train_tensors=[made(part, 50, 1) for part in parts],
        test_tensors=[made(part, 20, 2) for part in parts],
        task_labels=[0, 0],
        complete_test_set_only=False,
    )
    sizes = {"in_features": 16, "num_classes": 4, "expansion": 200, "train_mb_size": 8}
    learner = strategy(model=nn.Identity(), ridge=1.0, evaluator=EvaluationPlugin(), **sizes)
    for experience in benchmark.train_stream:
        learner.train(experience, num_workers=0)
    learner.eval(benchmark.test_stream, num_workers=0)
    x, y = made(range(4), 20, 2)
    assert (learner.rear.route(x) == y).double().mean() > 0.95
    assert learner.rear.counts.tolist() == [50] * 4


class Pilot:
    """What the file uses of PILOT's BaseLearner."""

    def __init__(self, args: dict[str, Any]) -> None:
        self.args, self._device = args, args["device"][0]
        self._cur_task, self._known_classes, self._total_classes = -1, 0, 0


class PilotData:
    def get_task_size(self, task: int) -> int:
        return 2

    def get_dataset(self, classes: np.ndarray, source: str, mode: str) -> TensorDataset:
        assert mode == "test"
        x, y = made(classes, 50, {"train": 1, "test": 2}[source])
        return TensorDataset(torch.arange(len(x)), x, y)


def test_pilot(monkeypatch: pytest.MonkeyPatch) -> None:
    backbone = nn.Identity()
    backbone.out_dim = 16
    module(monkeypatch, "models.base", BaseLearner=Pilot)
    module(monkeypatch, "utils.inc_net", get_backbone=lambda args, pretrained: backbone)
    learner_of = runpy.run_path(str(FOLDER / "pilot_rear.py"))["Learner"]
    learner_of.incremental_train.__wrapped__.__globals__["WORKERS"] = 0
    learner = learner_of({"device": ["cpu"], "seed": [1993], "expansion": 200, "ridge": 1.0, "batch_size": 16})
    for task in range(2):
        learner.incremental_train(PilotData())
        right = 0
        for _, x, y in learner.test_loader:
            logits = learner._network(x)["logits"]
            assert logits.shape == (len(x), 2 * task + 2)
            right += int((logits.argmax(1) == y).sum())
        assert right / len(learner.test_loader.dataset) > 0.95
        learner.after_task()


class Mammoth(nn.Module):
    """What the file uses of Mammoth's ContinualModel."""

    def __init__(self, backbone: nn.Module, loss: nn.Module, args: Any, transform: Any, dataset: Any = None) -> None:
        super().__init__()
        self.net, self.args, self.N_CLASSES = backbone, args, 4


class MammothBackbone(nn.Module):
    def forward(self, x: torch.Tensor, returnt: str = "out") -> torch.Tensor:
        assert returnt == "features"
        return x


def test_mammoth(monkeypatch: pytest.MonkeyPatch) -> None:
    from argparse import ArgumentParser

    module(monkeypatch, "models")
    module(monkeypatch, "models.utils.continual_model", ContinualModel=Mammoth)
    model_of = runpy.run_path(str(FOLDER / "mammoth_rear.py"))["FlykRear"]
    args = model_of.get_parser(ArgumentParser()).parse_args(["--expansion", "200", "--ridge", "1"])
    model = model_of(MammothBackbone(), None, args, None)
    assert (model(made([0], 3, 1)[0]) == 0).all()
    for epoch in range(2):
        for part in ((0, 1), (2, 3)):
            x, y = made(part, 50, 1)
            assert model.observe(x, y, x, epoch) == 0
    assert model.rear.counts.tolist() == [50] * 4
    x, y = made(range(4), 20, 2)
    assert (model(x).argmax(1) == y).double().mean() > 0.95
