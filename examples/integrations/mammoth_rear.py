"""REAR as a model of Mammoth: copy this file to models/flyk_rear.py, then

    python main.py --model flyk_rear --dataset seq-cifar100-224 --backbone vit --n_epochs 1 --lr 0

The backbone is frozen and each batch is learned when it first comes; further epochs change nothing. Use a dataset whose
training transform augments little: what is learned is what the transform gives.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import Any

import torch
from models.utils.continual_model import ContinualModel
from torch import Tensor, nn

from flyk.nn import REAR


class FlykRear(ContinualModel):
    """REAR over a frozen backbone's features: sums and a closed form, no buffer and no gradient."""

    NAME = "flyk_rear"
    COMPATIBILITY = ("class-il", "domain-il", "task-il", "general-continual")

    @staticmethod
    def get_parser(parser: ArgumentParser) -> ArgumentParser:
        parser.add_argument("--expansion", type=int, default=10000, help="random features")
        parser.add_argument("--ridge", type=float, default=1e4, help="ridge, in units of the Gram matrix's diagonal")
        return parser

    def __init__(
        self, backbone: nn.Module, loss: nn.Module, args: Namespace, transform: nn.Module, dataset: Any = None
    ) -> None:
        super().__init__(backbone, loss, args, transform, dataset=dataset)
        self.rear: REAR | None = None  # made when the first batch tells how wide the features are

    @torch.no_grad()
    def features(self, x: Tensor) -> Tensor:
        self.net.eval()
        return self.net(x, returnt="features").flatten(1)

    def observe(self, inputs: Tensor, labels: Tensor, not_aug_inputs: Tensor, epoch: int | None = None) -> float:
        if not epoch:  # None for a stream without epochs
            h = self.features(inputs)
            if self.rear is None:
                self.rear = REAR(h.shape[1], self.N_CLASSES, self.args.expansion, ridge=self.args.ridge).to(h.device)
            self.rear.update(h, labels.long())
        return 0.0

    def forward(self, x: Tensor) -> Tensor:
        h = self.features(x)
        return h.new_zeros(len(h), self.N_CLASSES) if self.rear is None else self.rear(h)
