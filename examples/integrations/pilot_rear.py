"""REAR as a method of LAMDA-PILOT: copy this file to models/flyk_rear.py.

Add to utils/factory.py

    elif name == "flyk_rear":
        from models.flyk_rear import Learner

and copy exps/simplecil.json to exps/flyk_rear.json with "model_name": "flyk_rear"; "expansion" and "ridge" there are
optional. Where RanPAC holds all features of a task in memory, sums G on the CPU and solves for seventeen ridges a task,
this takes one batch at a time, on the device, and solves once.
"""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import torch
from models.base import BaseLearner
from torch import Tensor, nn
from torch.utils.data import DataLoader
from utils.inc_net import get_backbone

from flyk.nn import REAR

WORKERS = 8


class Network(nn.Module):
    """A frozen backbone and REAR: what PILOT evaluates."""

    def __init__(self, args: dict[str, Any]) -> None:
        super().__init__()
        self.backbone = get_backbone(args, True).eval().requires_grad_(False)
        size = args.get("expansion", 10000)
        self.rear = REAR(self.backbone.out_dim, 0, size, ridge=args.get("ridge", 1e4), seed=args["seed"])

    @property
    def feature_dim(self) -> int:
        return self.backbone.out_dim

    def features(self, x: Tensor) -> Tensor:
        out = self.backbone(x)
        return out["features"] if isinstance(out, dict) else out

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        features = self.features(x)
        return {"logits": self.rear(features), "features": features}


class Learner(BaseLearner):
    def __init__(self, args: dict[str, Any]) -> None:
        super().__init__(args)
        seed = args["seed"]
        self._network = Network(args | {"seed": seed[0] if isinstance(seed, list) else seed})

    def after_task(self) -> None:
        self._known_classes = self._total_classes

    @torch.no_grad()
    def incremental_train(self, data_manager: Any) -> None:
        self._cur_task += 1
        self._total_classes = self._known_classes + data_manager.get_task_size(self._cur_task)
        logging.info("Learning on %d-%d", self._known_classes, self._total_classes)
        new, seen = np.arange(self._known_classes, self._total_classes), np.arange(self._total_classes)
        train = data_manager.get_dataset(new, source="train", mode="test")  # one pass, without augmentation
        test = data_manager.get_dataset(seen, source="test", mode="test")
        self.test_loader = DataLoader(test, self.args["batch_size"], num_workers=WORKERS)

        network = self._network.to(self._device).eval()
        for _ in new:
            network.rear.add_expert()
        for _, x, y in DataLoader(train, self.args["batch_size"], num_workers=WORKERS):
            network.rear.update(network.features(x.to(self._device)), y.to(self._device))
