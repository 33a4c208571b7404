"""What FlyPrompt costs beside its backbone, in a training step and in an evaluation, and what it cost as published.

    python bench/outside_backbone.py bench/results/continual/outside_backbone.json

ViT-S/14 at 112 px on images of noise, M 10000, 10 experts, 101 classes; in float32 and under bf16 autocast.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from flyk._files import write_whole
from flyk._machine import machine
from flyk.bench._measure import interleaved
from flyk.continual.batch import Batch, Part
from flyk.continual.methods import Setting
from flyk.continual.methods.flyprompt import FlyPrompt
from flyk.continual.promptable import PromptableViT
from flyk.continual.vit import vit_s
from flyk.nn import REAR

EXPANSION, EXPERTS, CLASSES, FEATURES, PIXELS = 10000, 10, 101, 384, 112
BATCH, TESTED, CHUNK, SEEN = 64, 1000, 128, 12000  # rows of a step, of an evaluation and at a time in it, of the router
NEW = 200  # rows that the router gets between two evaluations
ROUNDS = 5
SEEN_CLASSES = torch.ones(CLASSES, dtype=torch.bool)


def medians(calls: dict[str, Callable[[], Any]], before: Callable[[], Any] | None = None) -> dict[str, float]:
    """The median seconds of each call, in turns; `before` each there may be something that is not timed."""
    return {name: statistics.median(values) for name, values in interleaved([calls], ROUNDS, 0, before).items()}


def make(precision: str) -> tuple[FlyPrompt, Batch, Batch]:
    """A method whose experts have all learned something, a training batch, and all test rows."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(CHUNK, 3, PIXELS, PIXELS, generator=generator)
    features = torch.randn(1, SEEN, FEATURES, generator=generator)
    labels = torch.randint(CLASSES, (SEEN,), generator=generator)
    part = Part(labels, features, lambda rows: images[rows % CHUNK])
    backbone = PromptableViT(vit_s(), "ViT-S/14", PIXELS, "timed")
    method = FlyPrompt(
        Setting(FEATURES, CLASSES, EXPERTS, backbone=backbone, learning_rate=1e-3, precision=precision),
        expansion=EXPANSION,
    )
    for expert, rows in enumerate(torch.arange(SEEN).chunk(EXPERTS)):
        method.start_task(expert)
        method.router.update(features[0, rows], expert)
        method.heads.ema_step()
    return method, Batch(part, torch.arange(BATCH)), Batch(part, torch.arange(TESTED))


def training(method: FlyPrompt, batch: Batch) -> dict[str, float]:
    """Seconds of `observe`, and of the backbone's passes in it, forward and backward."""

    def backbone() -> None:
        with sdpa_kernel(SDPBackend.MATH):
            for _ in range(method.setting.online_iter):
                h = method.expert_features(batch, method.expert)
                h.backward(torch.ones_like(h))

    return medians({"whole": lambda: method.observe(batch), "backbone": backbone})


def as_published(router: REAR, method: FlyPrompt, h: Tensor, plain: Tensor) -> list[int]:
    """LU of the whole system, then a loop over rows: each under the heads of its expert, by the largest softmax."""
    lower = router.G.tril()
    whole = lower + lower.tril(-1).t() + router.ridge * torch.eye(EXPANSION)
    U = torch.linalg.solve(whole, router.Q)
    routes = (router._expand(plain) @ U).argmax(1)
    classes = []
    for row, expert in zip(h, routes.tolist(), strict=True):
        heads = [method.heads.online(row)]
        pairs = zip(method.heads.bank_weight[expert], method.heads.bank_bias[expert], strict=True)
        heads += [torch.nn.functional.linear(row, weight, bias) for weight, bias in pairs]
        classes.append(int(torch.stack(heads).softmax(1).amax(0).argmax()))
    return classes


@torch.no_grad()
def evaluation(method: FlyPrompt, batch: Batch) -> dict[str, float]:
    """Seconds of an evaluation's parts."""
    router: Any = method.router
    h = torch.randn(TESTED, FEATURES)

    def new_rows() -> None:
        router.update(torch.randn(NEW, FEATURES), EXPERTS - 1)
        router.flush()

    def ours(keep_factor: bool = False) -> Tensor:
        router.keep_factor = keep_factor
        routes = [router.route(batch.features[rows]) for rows in torch.arange(TESTED).split(CHUNK)]
        parts = zip(h.split(CHUNK), routes, strict=True)
        return torch.cat([method.scores(rows, ids, SEEN_CLASSES).argmax(1) for rows, ids in parts])

    def backbone() -> None:
        for rows in torch.arange(TESTED).split(CHUNK):
            method.prompted(Batch(batch.part, rows), 0)

    new_rows()
    same = (ours() == torch.tensor(as_published(router, method, h, batch.features))).float().mean().item()
    assert same > 0.999, f"only {same} of the predictions agree"
    calls = {
        "backbone": backbone,
        "outside": ours,
        "outside as published": lambda: as_published(router, method, h, batch.features),
    }
    seconds = medians(calls, new_rows)
    ours(keep_factor=True)  # from here on there is one
    return seconds | medians({"outside, factor kept": lambda: ours(keep_factor=True)}, new_rows)


def main(path: str) -> None:
    found: dict[str, Any] = {}
    for precision in ("float32", "bf16"):
        method, batch, tested = make(precision)
        found[precision] = {
            "training": training(method, batch),
            "evaluation": evaluation(method, tested),
        }
        method.close()
    sizes = {"expansion": EXPANSION, "experts": EXPERTS, "classes": CLASSES, "batch": BATCH, "tested": TESTED}
    about = machine() | {"command": f"python bench/outside_backbone.py {path}"}
    result = {"machine": about, "sizes": sizes, "seconds": found}
    with write_whole(Path(path)) as part:
        part.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main(sys.argv[1])
