"""Play a stream once to several learners and test them as it goes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from tqdm import tqdm

from flyk.continual import metrics
from flyk.continual.data import FeatureSet
from flyk.continual.learners import Learner, RoutedTE2
from flyk.continual.streams import Stream

TEST_ROWS = 2048


@dataclass
class Record:
    """What was measured while a stream was played; every list has an entry for each test.

    Attributes:
        samples: training samples seen.
        task: the task being played.
        at_interval, at_task_end: why the test was made.
        exposed: number of classes seen.
        accuracy: for each learner, accuracy on the exposed classes.
        classes: for each learner, (C,) accuracy of each class.
        routing: share of the test samples routed to the home of their class, where a learner routes.
        counts: (T, C) training samples of each class in each task.
        update_seconds, test_seconds: for each learner, in all.
    """

    counts: NDArray[np.int64]
    samples: list[int] = field(default_factory=list)
    task: list[int] = field(default_factory=list)
    at_interval: list[bool] = field(default_factory=list)
    at_task_end: list[bool] = field(default_factory=list)
    exposed: list[int] = field(default_factory=list)
    accuracy: dict[str, list[float]] = field(default_factory=dict)
    classes: dict[str, list[NDArray[np.float64]]] = field(default_factory=dict)
    routing: list[float] = field(default_factory=list)
    update_seconds: dict[str, float] = field(default_factory=dict)
    test_seconds: dict[str, float] = field(default_factory=dict)

    def measures(self, learner: str) -> dict[str, float]:
        """A_auc over the intervals; A_avg, A_last, forgetting and BWT over the task ends (see metrics)."""
        history = np.stack(self.classes[learner])
        return metrics.measures(self.accuracy[learner], history, self.at_interval, self.at_task_end)


def play(
    stream: Stream,
    data: FeatureSet,
    learners: Mapping[str, Learner],
    *,
    batch_size: int = 64,
    evals: int = 10,
    device: str = "cpu",
) -> Record:
    """Shows every batch of the stream once to every learner.

    They are tested on the test samples of the classes seen so far, `evals` times at equal intervals of samples (the
    last at the end) and at the end of each task that has samples.

    Args:
        stream: made of data.train_labels.
        data: the features.
        learners: by name.
        batch_size: training samples a batch.
        evals: number of tests at intervals, at least 1.
        device: where features are sent.

    Raises:
        ValueError: evals or batch_size is below 1.
    """
    if evals < 1:
        raise ValueError(f"evals must be at least 1, got {evals}")
    batches = list(stream.batches(batch_size))
    record = Record(counts=np.zeros((len(stream.tasks), data.num_classes), dtype=np.int64))
    for name in learners:
        record.accuracy[name], record.classes[name] = [], []
        record.update_seconds[name] = record.test_seconds[name] = 0.0
    seen, tested = 0, 0
    for step, (task, indices) in enumerate(tqdm(batches, "stream", disable=None, leave=False)):
        h, labels = data.train[indices].to(device), data.train_labels[indices].to(device)
        for name, learner in learners.items():
            start = _now(device)
            learner.observe(h, labels, task)
            record.update_seconds[name] += _now(device) - start
        record.counts[task] += np.bincount(data.train_labels[indices].numpy(), minlength=data.num_classes)
        seen += len(indices)
        interval = seen * evals // len(stream)
        task_end = step + 1 == len(batches) or batches[step + 1][0] != task
        if interval > tested or task_end:
            record.samples.append(seen)
            record.task.append(task)
            record.at_interval.append(interval > tested)
            record.at_task_end.append(task_end)
            _test(record, data, learners, device)
            tested = interval
    return record


def _test(record: Record, data: FeatureSet, learners: Mapping[str, Learner], device: str) -> None:
    target, exposed = data.test_labels.numpy(), record.counts.sum(axis=0) > 0
    record.exposed.append(int(exposed.sum()))
    seen = torch.from_numpy(exposed).to(device)
    for name, learner in learners.items():
        start = _now(device)
        if isinstance(learner, RoutedTE2):
            prediction, routes = in_parts(
                lambda h, x=learner: torch.stack(x.predict_and_route(h, seen), 1), data.test, device
            ).T
            record.routing.append(metrics.routing_accuracy(routes, target, metrics.home_experts(record.counts)))
        else:
            prediction = in_parts(lambda h, x=learner: x.predict(h, seen), data.test, device)
        record.test_seconds[name] += _now(device) - start
        record.accuracy[name].append(metrics.accuracy(prediction, target, exposed))
        record.classes[name].append(metrics.class_accuracies(prediction, target, exposed))


def in_parts(predict: Callable[[torch.Tensor], torch.Tensor], h: torch.Tensor, device: str) -> NDArray[np.int64]:
    """predict() of the rows of h a few at a time, so that no expansion of a whole test set is held."""
    with torch.inference_mode():
        return torch.cat([predict(part.to(device)).cpu() for part in h.split(TEST_ROWS)]).numpy()


def _now(device: str) -> float:
    """Seconds, once the device has done what it was asked."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
