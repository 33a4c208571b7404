"""One run of one method on one stream: tested as it goes, saved as it goes, resumed exactly where it was cut."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from tqdm import tqdm

from flyk._files import write_whole
from flyk._machine import forget_peak_memory, machine, peak_memory_mib, versions
from flyk._page import finite
from flyk.continual import metrics
from flyk.continual.analysis import analyse
from flyk.continual.batch import Batch
from flyk.continual.config import Config
from flyk.continual.material import Material, load_material, need_domains
from flyk.continual.methods import Method, Setting, make_method
from flyk.continual.streams import (
    ClassIncrementalStream,
    DomainIncrementalStream,
    JointStream,
    SiBlurryStream,
    Stream,
)

TEST_ROWS = 128
RESULT = ("config", "data", "measures", "tests", "analysis", "numbers", "seconds")  # what a report needs of it


@dataclass
class Record:
    """What a run has measured so far; a checkpoint keeps it as JSON.

    Attributes:
        tests: of each test: `samples` seen, `task`, why it was made (`at_interval`, `at_task_end`), number of classes
            `exposed`, `accuracy` on them, `classes`, the accuracy of each (None where it is not exposed), `routing`
            where the method routes, under `also` further accuracies, and where it has several heads `heads`, the
            accuracy of each alone, and `agreement`, how often each later one says what the first says.
        counts: (E, C) training samples of each class that each expert saw; of each task where there are no experts.
        seconds: of training and of testing.
    """

    tests: list[dict[str, Any]] = field(default_factory=list)
    counts: list[list[int]] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=lambda: {"training": 0.0, "testing": 0.0})

    def count(self, expert: int, labels: Tensor, num_classes: int) -> None:
        """Adds a batch to the counts."""
        while len(self.counts) <= expert:
            self.counts.append([0] * num_classes)
        new = torch.bincount(labels, minlength=num_classes).tolist()
        self.counts[expert] = [a + b for a, b in zip(self.counts[expert], new, strict=True)]

    def measures(self) -> dict[str, Any]:
        """A_auc and its kin; routing and oracle accuracy at the end; under `also` those of each further reading."""
        history = np.array([test["classes"] for test in self.tests], dtype=np.float64)
        why = ([test[key] for test in self.tests] for key in ("at_interval", "at_task_end"))
        out = metrics.measures([test["accuracy"] for test in self.tests], history, *why)
        last, also = self.tests[-1], {}
        for name in last["also"]:
            auc = [test["also"].get(name) for test in self.tests if test["at_interval"]]
            also[name] = {"a_auc": None if None in auc else metrics.a_auc(auc), "a_last": last["also"][name]}
        if "oracle router" in also:
            out["oracle router"] = also["oracle router"]["a_last"]
        return out | {name: last[name] for name in ("routing",) if name in last} | {"also": also}


def run(
    config: Config,
    folder: Path,
    material: Material | None = None,
    *,
    progress: bool = False,
    make: Callable[[Setting], Method] | None = None,
) -> dict[str, Any]:
    """Plays the stream once and returns everything measured, ready for JSON.

    `folder` gets config.json at the start, log.jsonl (a line for each test) and checkpoint.pt as it goes, and at the
    end result.json in place of the checkpoint. A run that was cut goes on from its checkpoint and ends with the same
    numbers, times aside; a run that has its result is not made again. The folder knows the config and, until the
    result, the samples; it does not know `make`, so a method of your own wants a folder of its own.

    Args:
        material: what load_material gives for this config, if it is at hand.
        progress: show a bar.
        make: makes the method, in place of the one that the config names.

    Raises:
        ModuleNotFoundError: a package is missing; the message says how to install it.
        ValueError: a setting or the data does not fit, or the folder holds a run of other settings or samples, or a
            file that is damaged.
    """
    folder = Path(folder)
    _check_folder(folder, config)
    if (folder / "result.json").exists():
        return _read(folder / "result.json", RESULT)
    started, begin = time.time(), time.perf_counter()
    with contextlib.suppress(OSError):  # a system may keep /proc from being written
        forget_peak_memory()
    material = material or load_material(config, progress)
    loaded = time.perf_counter()
    stream = make_stream(config, material)
    setting = make_setting(config, material, stream)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        method = make(setting) if make else make_method(config.method, setting, config.options)
        try:
            _write(folder / "config.json", json.dumps(asdict(config), indent=1) + "\n")
            record = _play(config, stream, material, method, folder, progress)
            analysis = analyse(method, material, np.array(record.counts), TEST_ROWS)
        finally:
            method.close()
    result = _result(config, material, stream, method, record) | {
        "analysis": analysis,
        "seconds": record.seconds | {"features": loaded - begin},
        "peak_memory_mib": peak_memory_mib(),
    }
    result = finite(result)
    _write(folder / "result.json", json.dumps(result, allow_nan=False) + "\n")
    (folder / "checkpoint.pt").unlink(missing_ok=True)
    for half in folder.glob(".checkpoint-*.pt"):  # left by a process that was killed
        if half.stat().st_mtime < started:
            half.unlink()
    return result


def _result(config: Config, material: Material, stream: Stream, method: Method, record: Record) -> dict[str, Any]:
    """What was run and what came of it."""
    return {
        "config": asdict(config),
        "machine": machine(),
        "versions": versions(),
        "data": {
            "source": material.source,
            "classes": list(material.names),
            "features": material.train.features.shape[2],
            "train": len(material.train.labels),
            "test": len(material.test.labels),
            "checksum": material.checksum,
            "task_samples": [len(task) for task in stream.tasks],
        },
        "measures": record.measures(),
        "tests": record.tests,
        "counts": record.counts,
        "numbers": method.numbers(),
    }


def make_stream(config: Config, material: Material) -> Stream:
    """The stream that a config names, of these samples."""
    labels = material.train.labels.numpy()
    if config.stream == "joint":
        return JointStream(len(labels), passes=config.passes, seed=config.seed)
    if config.stream == "domain":
        return DomainIncrementalStream(need_domains(config, material.domains), seed=config.seed)
    options: dict[str, Any] = {"random_cuts": config.random_cuts, "seed": config.seed}
    if config.stream == "class":
        return ClassIncrementalStream(labels, config.tasks, **options)
    return SiBlurryStream(labels, config.tasks, n=config.n, m=config.m, **options)


def make_setting(config: Config, material: Material, stream: Stream) -> Setting:
    """What the method is told."""
    return Setting(
        num_features=material.train.features.shape[2],
        num_classes=len(material.names),
        num_tasks=len(stream.tasks),
        backbone=material.backbone,
        learning_rate=config.learning_rate,
        prompt_rate=config.prompt_rate,
        online_iter=config.online_iter,
        mask=config.mask,
        precision=config.precision,
        checkpointing=config.checkpointing,
        seed=config.seed,
    )


def _play(config: Config, stream: Stream, material: Material, method: Method, folder: Path, progress: bool) -> Record:
    """Shows the batches that are left, tests when it is time, and saves after each test."""
    draws = torch.Generator().manual_seed(config.seed)
    record, first = _resume(folder, material.checksum, method, draws)
    batches = list(_steps(stream, config))
    for step in tqdm(
        range(first, len(batches)), config.method, len(batches), initial=first, disable=None if progress else True
    ):
        task, rows, samples, begins, ends, interval = batches[step]
        start = time.perf_counter()
        if begins:
            method.start_task(task)
        batch = Batch(material.train, torch.from_numpy(rows), config.augment, draws)
        method.observe(batch)
        record.count(task if method.expert is None else method.expert, batch.labels, len(material.names))
        record.seconds["training"] += time.perf_counter() - start
        if interval or ends:
            start = time.perf_counter()
            why = {"samples": samples, "task": task, "at_interval": interval, "at_task_end": ends}
            last = step + 1 == len(batches)
            record.tests.append(why | evaluate(method, material, np.array(record.counts), last))
            record.seconds["testing"] += time.perf_counter() - start
            _save(folder, step + 1, record, material.checksum, method, draws)
    return record


def _steps(stream: Stream, config: Config) -> Iterator[tuple[int, Any, int, bool, bool, bool]]:
    """(task, rows, samples seen after it, first of its task, last of it, whether a test at an interval is due)."""
    batches = list(stream.batches(config.batch_size))
    seen = 0
    for step, (task, rows) in enumerate(batches):
        before, seen = seen, seen + len(rows)
        begins = step == 0 or batches[step - 1][0] != task
        ends = step + 1 == len(batches) or batches[step + 1][0] != task
        yield task, rows, seen, begins, ends, seen // config.eval_every > before // config.eval_every


def evaluate(method: Method, material: Material, counts: NDArray[np.int64], oracle: bool) -> dict[str, Any]:
    """Accuracies on the test samples of the classes seen so far.

    Args:
        counts: (E, C), see Record.
        oracle: also the accuracy under a perfect router, where the method routes.
    """
    exposed: NDArray[np.bool_] = counts.sum(axis=0) > 0
    part, home = material.test, metrics.home_experts(counts)
    rows = torch.from_numpy(np.flatnonzero(exposed[part.labels.numpy()]))
    predictions, seen = [], torch.from_numpy(exposed)
    for chunk in rows.split(TEST_ROWS) if len(rows) else ():
        right = torch.from_numpy(home)[part.labels[chunk]] if oracle else None
        predictions.append(method.predict(Batch(part, chunk), seen, right))
    target = part.labels[rows].numpy()
    classes = _joined([one.classes for one in predictions])
    out: dict[str, Any] = {
        "exposed": int(exposed.sum()),
        "accuracy": metrics.accuracy(classes, target, exposed),
        "classes": finite(metrics.class_accuracies(classes, target, exposed).tolist()),
        "also": {
            name: metrics.accuracy(_joined([one.also[name] for one in predictions]), target, exposed)
            for name in (predictions[0].also if predictions else ())
        },
    }
    if predictions and predictions[0].heads is not None:
        heads = torch.cat([one.heads for one in predictions if one.heads is not None], 1)
        out["heads"] = [metrics.accuracy(head.numpy(), target, exposed) for head in heads]
        out["agreement"] = (heads[1:] == heads[0]).float().mean(1).tolist()
    routes = [one.routes for one in predictions if one.routes is not None]
    if routes:
        out["routing"] = metrics.routing_accuracy(_joined(routes), target, home)
    return out


def _joined(parts: list[Tensor]) -> np.ndarray:
    return torch.cat(parts).numpy() if parts else np.zeros(0, dtype=np.int64)


def _check_folder(folder: Path, config: Config) -> None:
    """Raises ValueError where what the folder keeps is of other settings.

    A run that failed before its first test has kept nothing, so that its settings may be mended.
    """
    path, mine = folder / "config.json", json.loads(json.dumps(asdict(config)))
    if not path.exists() or not any((folder / name).exists() for name in ("checkpoint.pt", "result.json")):
        return
    there = _read(path)
    for key in mine:
        if mine[key] != there.get(key):
            differs = f"in {folder} {key} is {there.get(key)!r} and here {mine[key]!r}"
            raise ValueError(f"out must be the folder of a run of the same settings, and {differs}")


def _read(path: Path, keys: Collection[str] = ()) -> dict[str, Any]:
    """The table of a JSON file of a run, which must have these keys."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        found = None
    if not isinstance(found, dict) or set(keys) - found.keys():
        raise ValueError(f"{path} is damaged; delete the folder {path.parent} to make the run anew")
    return found


def _save(folder: Path, step: int, record: Record, data: str, method: Method, draws: torch.Generator) -> None:
    """The checkpoint, and the log of the tests it knows."""
    state = {
        "step": step,
        "record": json.dumps(asdict(record)),
        "data": data,
        "method": method.state_dict(),
        "torch": torch.get_rng_state(),
        "draws": draws.get_state(),
    }
    with write_whole(folder / "checkpoint.pt") as part:
        torch.save(state, part)
    _write(folder / "log.jsonl", "".join(json.dumps(finite(line)) + "\n" for line in record.tests))


def _resume(folder: Path, data: str, method: Method, draws: torch.Generator) -> tuple[Record, int]:
    """The record and the step of the checkpoint, whose state the method and the generators take; or a new start."""
    path = folder / "checkpoint.pt"
    if not path.exists():
        return Record(), 0
    try:
        state = torch.load(path, weights_only=True)
        same = state["data"] == data
        if same:
            method.load_state_dict(state["method"])
            torch.set_rng_state(state["torch"])
            draws.set_state(state["draws"])
        record, step = Record(**json.loads(state["record"])), state["step"]
    except Exception as error:  # unpickling, zip and key errors of many kinds
        raise ValueError(f"the checkpoint {path} can't be read; delete it to start anew: {error!r}") from error
    if not same:
        raise ValueError(f"data must give the samples that the run began with; delete {path} to start anew with these")
    return record, step


def _write(path: Path, text: str) -> None:
    with write_whole(path) as part:
        part.write_text(text, encoding="utf-8")
