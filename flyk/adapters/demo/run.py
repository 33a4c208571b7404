"""The demo of adapters: four methods on four text tasks, alone and merged, with what they cost."""

from __future__ import annotations

import functools
import hashlib
import shlex
import time
from dataclasses import asdict, dataclass, fields
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from flyk._machine import machine
from flyk.adapters.demo import cost, network, tasks
from flyk.adapters.demo.methods import METHODS, TARGETS, Method, adapt, after_step, inner, merged, save
from flyk.adapters.demo.units import Units
from flyk.nn import _check

SEARCHED = ("trec6", "arc_easy")  # tasks on which rates are compared: one of labels, one of own answers
SEARCH_SEED = 99
TIMING_SECONDS = 20.0  # for training steps of all methods in turns
PACKAGES = ("flyk", "torch", "transformers", "peft", "numpy")


@dataclass(frozen=True)
class Settings:
    """What a run is made of; see `flyk demo lora --help`."""

    data: Path = Path("data")
    model: Path | None = None
    layers: int = 6
    train: int = 320
    test: int = 120
    batch: int = 4
    seeds: int = 3
    rates: tuple[float, ...] = (7e-4, 2e-3, 6e-3, 1.8e-2, 5e-2)


QUICK = {"layers": 2, "train": 64, "test": 40, "seeds": 1, "rates": (1e-2,)}


class Work:
    """The network cut in two, the tasks, and the units done so far."""

    def __init__(self, settings: Settings, folder: Path) -> None:
        for name in ("layers", "train", "test", "batch", "seeds"):
            _check.integer(name, getattr(settings, name), 1)
        if not settings.rates or min(settings.rates) <= 0:
            raise ValueError(f"rates must be at least one number above 0, got {settings.rates}")
        tasks.files(settings.data)  # what is missing is said before the work
        whole, tokenize, self.model = network.load(settings.model)
        self.settings = settings
        self.depth, self.size = len(whole.model.layers), sum(p.numel() for p in whole.parameters())
        self.sum = float(sum(p.double().sum() for p in whole.parameters()))  # tells models of one name apart
        self.lower, self.network = network.cut(whole, settings.layers)
        validation = settings.test if len(settings.rates) > 1 else 0
        self.tasks = tasks.read(
            settings.data, tokenize, train=settings.train, validation=validation, test=settings.test
        )
        self.states = functools.cache(self._states)
        self.units = Units(folder, self._about(), self._total())
        self.rates: dict[str, float] = {}  # of each method, once they are chosen

    def _about(self) -> dict[str, Any]:
        """All that a unit's result depends on."""
        paths = tasks.files(self.settings.data).values()
        sums = [hashlib.sha256(path.read_bytes()).hexdigest() for path in paths]
        own = asdict(self.settings) | {"validation": [len(task.validation) for task in self.tasks]}
        kept = {key: value for key, value in own.items() if key not in ("data", "seeds", "rates")}
        model = [self.model, self.sum]
        return {**kept, "files": sums, "model": model, "methods": METHODS, "versions": versions()}

    def _total(self) -> int:
        searches = len(self.settings.rates) * len(SEARCHED) * (len(self.settings.rates) > 1)
        return 2 + len(METHODS) * (searches + self.settings.seeds * (len(self.tasks) + 1)) + self.settings.seeds

    def _states(self, number: int) -> network.States:
        """The frozen layers' output for all rows of a task, computed when it is first asked for."""
        task = self.tasks[number]
        searched = task.validation if task.name in SEARCHED else []
        rows = [example.right for example in task.train]
        rows += [row for example in (*searched, *task.test) for row in example.rows]
        return network.states(self.lower, rows)

    def train(self, method: Method, number: int, seed: int, rate: float) -> tuple[Any, dict[str, Any]]:
        """A model trained on a task, and what that took; order and A depend on task and seed alone."""
        rows = [example.right for example in self.tasks[number].train]
        states, own = self.states(number), 1000 * seed + number
        model = adapt(self.network, method, own)
        parts = network.order(rows, self.settings.batch, own)
        begin = time.perf_counter()
        losses = network.train(inner(model), parts, states, rate, after_step(model, method))
        return model, {"losses": losses, "seconds": time.perf_counter() - begin, "steps": len(parts)}

    def accuracy(self, model: Any, number: int, *, validation: bool = False) -> float:
        task = self.tasks[number]
        examples = task.validation if validation else task.test
        return network.accuracy(inner(model), task, examples, self.states(number))

    def name(self, method: Method, number: int, seed: int) -> str:
        return f"{self.run_of(method)}-{self.tasks[number].name}-{seed}"

    def run_of(self, method: Method) -> str:
        return f"{slug(method)}-{self.rates[method.name]:g}"

    def adapter(self, method: Method, number: int, seed: int) -> Path:
        return self.units.folder / f"{self.name(method, number, seed)}.safetensors"

    def on_all(self, model: Any) -> list[float]:
        """The accuracy on each task."""
        return [self.accuracy(model, number) for number in range(len(self.tasks))]


def run(settings: Settings, folder: Path) -> dict[str, Any]:
    """Do what is not done yet under `folder`, and return everything measured, ready for JSON.

    Raises:
        ModuleNotFoundError: a package is missing; the message says how to install it.
        ValueError: a setting is out of range, or data or model are not as described.
    """
    begin = time.perf_counter()
    work = Work(settings, folder)
    try:
        frozen = work.units.get("frozen", lambda: work.on_all(work.network))
        searched = {method.name: _search(work, method) for method in METHODS}
        work.rates = {name: max(found, key=lambda rate: found[rate]) for name, found in searched.items()}
        alone = {method.name: _alone(work, method) for method in METHODS}
        after = {method.name: _merged(work, method, "dense") for method in METHODS}
        exact = _merged(work, METHODS[-1], "concat")
        costs = work.units.get("cost", lambda: _cost(work))
    finally:
        work.units.close()
    return {
        "command": command(settings),
        "machine": machine() | {"command": command(settings)},
        "versions": versions(),
        "settings": asdict(settings) | {"data": str(settings.data), "model": work.model},
        "model": {"name": work.model, "layers": work.depth, "parameters": work.size, "targets": list(TARGETS)},
        "tasks": [_describe(task) for task in work.tasks],
        "searched": list(SEARCHED),
        "frozen": frozen,
        "search": {name: {str(rate): value for rate, value in found.items()} for name, found in searched.items()},
        "rates": work.rates,
        "alone": {name: [[unit["accuracy"] for unit in seed] for seed in found] for name, found in alone.items()},
        "merged": after,
        "concat": exact,
        "cost": costs,
        "seconds": {
            "training": sum(unit["seconds"] for found in alone.values() for seed in found for unit in seed),
            "units": work.units.seconds,
            "processor": work.units.processor,
            "this call": time.perf_counter() - begin,
            "units found done": work.units.found,
        },
    }


def _search(work: Work, method: Method) -> dict[float, float]:
    """Rate to the mean accuracy on validation examples of two tasks; one rate needs no search."""
    rates = work.settings.rates
    if len(rates) == 1:
        return {rates[0]: float("nan")}

    def try_rate(rate: float, number: int) -> float:
        model, _ = work.train(method, number, SEARCH_SEED, rate)
        return work.accuracy(model, number, validation=True)

    numbers = {task.name: number for number, task in enumerate(work.tasks) if task.name in SEARCHED}
    found = {
        rate: [
            work.units.get(f"search-{slug(method)}-{name}-{rate:g}", functools.partial(try_rate, rate, number))
            for name, number in numbers.items()
        ]
        for rate in rates
    }
    return {rate: float(np.mean(values)) for rate, values in found.items()}


def _alone(work: Work, method: Method) -> list[list[dict[str, Any]]]:
    """For each seed and task: accuracy on the task, losses, seconds, steps. The adapters are kept on disk."""

    def unit(seed: int, number: int) -> dict[str, Any]:
        model, took = work.train(method, number, seed, work.rates[method.name])
        save(model, method, work.adapter(method, number, seed))
        return took | {"accuracy": work.accuracy(model, number)}

    return [
        [
            work.units.get(work.name(method, number, seed), functools.partial(unit, seed, number))
            for number in range(len(work.tasks))
        ]
        for seed in range(work.settings.seeds)
    ]


def _merged(work: Work, method: Method, how: str) -> list[list[float]]:
    """For each seed the accuracy on each task with the adapters of all tasks averaged."""

    def unit(seed: int) -> list[float]:
        paths = [work.adapter(method, number, seed) for number in range(len(work.tasks))]
        return work.on_all(merged(work.network, method, paths, how))

    return [
        work.units.get(f"{work.run_of(method)}-{how}-{seed}", functools.partial(unit, seed))
        for seed in range(work.settings.seeds)
    ]


def _cost(work: Work) -> dict[str, Any]:
    batch, rows = work.settings.batch, [example.right for example in work.tasks[0].train]
    longest = sorted(rows, key=lambda row: len(row.ids))[-batch:]
    tokens = len(longest[-1].ids) - 1
    return {
        "batch": batch,
        "tokens": tokens,
        "parameters": cost.parameters(work.network),
        "tokens a second": cost.training(work.network, longest, work.states(0), least=7, budget=TIMING_SECONDS),
        "adapter ms": cost.alone(work.network, batch * tokens, least=30, budget=TIMING_SECONDS / 8),
        "kept": cost.kept(work.network, batch, tokens),
        "peak": cost.peaks(work.network, batch, tokens),
    }


def _describe(task: tasks.Task) -> dict[str, Any]:
    parts = {"train": task.train, "validation": task.validation, "test": task.test}
    length = np.mean([len(example.right.ids) for example in task.train])
    about = {"name": task.name, "labels": len(task.labels), "length": float(length), "skipped": task.skipped}
    return about | {name: len(part) for name, part in parts.items()}


def slug(method: Method) -> str:
    return method.name.lower().replace(" ", "-")


def versions() -> dict[str, str]:
    return {package: metadata.version(package) for package in PACKAGES}


def command(settings: Settings) -> str:
    """The command line of these settings, options at their defaults left out."""
    words = ["flyk", "demo", "lora"]
    for option in fields(settings):
        value = getattr(settings, option.name)
        if value != option.default:
            name, values = ("rate", value) if option.name == "rates" else (option.name, [value])
            words += [word for each in values for word in (f"--{name}", str(each))]
    return shlex.join(words)
