"""The demo: real images as a Si-Blurry stream, flyk's learners against their rivals, everything measured."""

from __future__ import annotations

import shlex
import time
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
import torch

from flyk._machine import machine, peak_memory_mib, versions
from flyk.continual import play as player
from flyk.continual import scales
from flyk.continual.data import FeatureSet, features_from_file, features_from_images
from flyk.continual.learners import Learner, RearClassifier, RoutedTE2
from flyk.continual.metrics import accuracy
from flyk.continual.rivals import LinearSGD, NearestClassMean, batch_ridge, expand
from flyk.continual.streams import Draws, SiBlurryStream
from flyk.nn import REAR, TE2Head

REAR_NAME = "REAR classifier"
TE2_NAME = "TE2 heads routed by REAR"
NCM_NAME = "nearest class mean"
SGD_NAME = "linear head by SGD"
CEILING_NAME = "batch ridge (ceiling)"
QUICK_SAMPLES = 1500


@dataclass(frozen=True)
class Settings:
    """What a run is made of; see `flyk demo --help`."""

    data: str | None = None
    features: str | None = None
    tasks: int = 5
    n: float = 50
    m: float = 10
    random_cuts: bool = False
    expansion: int = 4096
    ridge: float | None = None
    resolution: int = 96
    batch_size: int = 64
    evals: int = 10
    seed: int = 0
    quick: bool = False
    device: str = "cpu"


def run(settings: Settings) -> dict[str, Any]:
    """Plays the stream once and returns everything measured, ready for JSON but for NaN.

    Raises:
        ModuleNotFoundError: a package is missing; the message says how to install it.
        ValueError: a setting is out of range, or the data is not as described.
    """
    _check_device(settings.device)
    begin = time.perf_counter()
    data = _load(settings)
    loaded = time.perf_counter()
    options = {name: getattr(settings, name) for name in ("n", "m", "random_cuts", "seed")}
    stream = SiBlurryStream(data.train_labels.numpy(), settings.tasks, **options)
    h = data.train[next(indices for _, indices in stream.batches(settings.batch_size))]
    ridge = scales.ridge(h, settings.expansion) if settings.ridge is None else settings.ridge
    rear = _rear(settings, data, data.num_classes, ridge)
    learners = {REAR_NAME: RearClassifier(rear), **_others(settings, data, ridge, h)}
    record = player.play(
        stream, data, learners, batch_size=settings.batch_size, evals=settings.evals, device=settings.device
    )
    played = time.perf_counter()
    ceiling = _ceiling(rear, data, ridge, settings.device)
    bounded = time.perf_counter()
    order = _order_freedom(rear, _rear(settings, data, data.num_classes, ridge), data, settings)
    end = time.perf_counter()
    seconds = {
        "features": loaded - begin,
        "learning": record.update_seconds,
        "testing": record.test_seconds,
        "stream in all": played - loaded,
        "ceiling": bounded - played,
        "order check": end - bounded,
        "in all": end - begin,
    }
    measured = {"ridge": ridge, **_measured(record, ceiling, stream), "order_freedom": order, "seconds": seconds}
    return {**_circumstances(settings, data, stream, record.counts), **measured, "peak_memory_mib": peak_memory_mib()}


def _circumstances(settings: Settings, data: FeatureSet, stream: SiBlurryStream, counts: np.ndarray) -> dict[str, Any]:
    """What was run, where and on what."""
    return {
        "command": command(settings),
        "settings": asdict(settings),
        "machine": machine() | _gpu(settings.device),
        "versions": versions(),
        "data": {
            "source": data.source,
            "classes": list(data.names),
            "features": data.train.shape[1],
            "train": len(data.train),
            "test": len(data.test),
            "features_from_cache": data.from_cache,
        },
        "stream": _describe(stream, data, counts),
    }


def _measured(record: player.Record, ceiling: float, stream: SiBlurryStream) -> dict[str, Any]:
    """The tests, and what follows from them for each learner."""
    return {
        "tests": {
            "samples": record.samples,
            "task": record.task,
            "at_interval": record.at_interval,
            "at_task_end": record.at_task_end,
            "exposed_classes": record.exposed,
            "accuracy": record.accuracy,
            "routing": record.routing,
        },
        "measures": {name: record.measures(name) for name in record.accuracy},
        "final": {name: accuracies[-1] for name, accuracies in record.accuracy.items()} | {CEILING_NAME: ceiling},
        "gap_to_ceiling": record.accuracy[REAR_NAME][-1] - ceiling,
        "routing": {"final": record.routing[-1], "chance": 1 / sum(len(task) > 0 for task in stream.tasks)},
    }


def command(settings: Settings) -> str:
    """The command line of these settings, options at their defaults left out."""
    words = ["flyk", "demo"]
    for option in fields(settings):
        value = getattr(settings, option.name)
        if value != option.default:
            words += ["--" + option.name.replace("_", "-")] + ([] if value is True else [str(value)])
    return shlex.join(words)


def _gpu(device: str) -> dict[str, str]:
    return {"gpu": torch.cuda.get_device_name(device)} if torch.device(device).type == "cuda" else {}


def _check_device(device: str) -> None:
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"device must be one that torch can use here, got {device!r}") from error


def _load(settings: Settings) -> FeatureSet:
    if settings.data is not None and settings.features is not None:
        raise ValueError(f"data and features exclude each other, got {settings.data!r} and {settings.features!r}")
    limit = QUICK_SAMPLES if settings.quick else None
    if settings.features is not None:
        return features_from_file(settings.features, limit=limit, seed=settings.seed)
    return features_from_images(
        settings.data, resolution=settings.resolution, limit=limit, seed=settings.seed, device=settings.device
    )


def _others(settings: Settings, data: FeatureSet, ridge: float, h: torch.Tensor) -> dict[str, Learner]:
    """The learners beside the REAR classifier; `h`, the stream's first batch, tells them the features' scale."""
    features, classes, device = data.train.shape[1], data.num_classes, settings.device
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        heads = TE2Head(features, classes, settings.tasks).to(device)
    return {
        TE2_NAME: RoutedTE2(_rear(settings, data, settings.tasks, ridge), heads, scales.adam_rate(h)),
        NCM_NAME: NearestClassMean(classes, features, device),
        SGD_NAME: LinearSGD(classes, features, scales.sgd_rate(h), device),
    }


def _rear(settings: Settings, data: FeatureSet, num_experts: int, ridge: float) -> REAR:
    rear = REAR(data.train.shape[1], num_experts, settings.expansion, ridge=ridge, seed=settings.seed)
    return rear.to(settings.device)


def _ceiling(rear: REAR, data: FeatureSet, ridge: float, device: str) -> float:
    """Test accuracy of ridge on all training data at once, in float64, with REAR's expansion and ridge."""
    projection = rear.projection.values
    solution = batch_ridge(data.train.to(device), data.train_labels.to(device), data.num_classes, projection, ridge)
    prediction = player.in_parts(lambda h: (expand(h, projection) @ solution).argmax(dim=1), data.test, device)
    return accuracy(prediction, data.test_labels.numpy(), np.ones(data.num_classes, dtype=bool))


def _order_freedom(rear: REAR, other: REAR, data: FeatureSet, settings: Settings) -> dict[str, float]:
    """Shows the training samples to another REAR in random order and in other batches, and compares the two.

    A difference is the largest one over the largest entry; only float32 rounding can cause it.
    """
    order = torch.from_numpy(Draws(settings.seed + 1).permutation(len(data.train)))
    for rows in order.split(settings.batch_size + 1):
        other.update(data.train[rows].to(settings.device), data.train_labels[rows].to(settings.device))
    solutions = rear.solve(), other.solve()
    routes = [player.in_parts(one.route, data.test, settings.device) for one in (rear, other)]
    return {
        "gram_difference": _difference(rear.G.tril(), other.G.tril()),
        "solution_difference": _difference(*solutions),
        "same_predictions": float(np.mean(routes[0] == routes[1])),
    }


def _difference(one: torch.Tensor, other: torch.Tensor) -> float:
    return ((one - other).abs().max() / one.abs().max()).item()


def _describe(stream: SiBlurryStream, data: FeatureSet, counts: np.ndarray) -> list[dict[str, Any]]:
    """For each task: its home classes, and its samples of disjoint classes, of blurry ones at home, and mixed in."""
    tasks = []
    for classes, count in zip(stream.task_classes, counts, strict=True):
        disjoint = np.isin(classes, stream.disjoint_classes)
        own, home = int(count[classes[disjoint]].sum()), int(count[classes[~disjoint]].sum())
        tasks.append(
            {
                "disjoint_classes": [data.names[c] for c in classes[disjoint]],
                "blurry_classes": [data.names[c] for c in classes[~disjoint]],
                "disjoint": own,
                "blurry_at_home": home,
                "mixed_in": int(count.sum()) - own - home,
            }
        )
    return tasks
