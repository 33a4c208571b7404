"""Four text tasks as prompts whose answers a language model scores."""

from __future__ import annotations

import functools
import gzip
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Tokenize = Callable[[str], list[int]]
PROMPTS = {
    "sst2": "Review: {}\nSentiment:",
    "trec6": "Question: {}\nType of answer:",
    "tweet_emotion": "Tweet: {}\nEmotion:",
    "arc_easy": "Question: {}\nAnswer:",
}
LONGEST = 96  # tokens of a prompt with its answer; longer examples are left out


@dataclass(frozen=True)
class Row:
    """A prompt with an answer, as tokens; the last `answer` of them are the answer."""

    ids: tuple[int, ...]
    answer: int


@dataclass(frozen=True)
class Example:
    """A question: a row for each answer that is scored on its own, or one row where labels are scored together.

    Attributes:
        rows: see above; a single row holds the right label.
        gold: number of the right label or answer.
    """

    rows: tuple[Row, ...]
    gold: int

    @property
    def right(self) -> Row:
        return self.rows[self.gold if len(self.rows) > 1 else 0]


@dataclass(frozen=True)
class Task:
    """Examples of one data set.

    Attributes:
        name: of the data set.
        labels: first token of each label, by which labels are told apart; empty where examples have own answers.
        train, validation, test: examples; the first two are parts of the data set's training part.
        skipped: examples passed over because they were too long.
    """

    name: str
    labels: tuple[int, ...]
    train: list[Example]
    validation: list[Example]
    test: list[Example]
    skipped: int


def read(folder: Path, tokenize: Tokenize, *, train: int, validation: int, test: int) -> list[Task]:
    """The four tasks with at most so many examples each, the same ones in every run; of arc_easy half as many to
    validate and to test on.

    A task is folder/NAME.json.gz, an object with the lists `train` and `test`. An example is [text, label], where
    `labels` lists the labels; or an object of `question`, `choices` and `answer`, the number of the right choice.

    Raises:
        ValueError: a file is missing or not of this form, or two labels begin with the same token.
    """
    return [_read(name, path, tokenize, train, validation, test) for name, path in files(folder).items()]


def files(folder: Path) -> dict[str, Path]:
    """The file of each task.

    Raises:
        ValueError: one is missing.
    """
    paths = {name: folder / f"{name}.json.gz" for name in PROMPTS}
    missing = [path.name for path in paths.values() if not path.is_file()]
    if missing:
        wanted = ", ".join(path.name for path in paths.values())
        raise ValueError(f"data must be a folder with {wanted}, got {str(folder)!r} without {missing[0]}")
    return paths


def _read(name: str, path: Path, tokenize: Tokenize, train: int, validation: int, test: int) -> Task:
    try:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            stored = json.load(file)
        labels = stored.get("labels", [])
        first = tuple(tokenize(f" {label}")[0] for label in labels)
        make = functools.partial(_example, PROMPTS[name], labels, first, tokenize)
        validation = validation if labels else (validation + 1) // 2
        learn, learn_skipped = _draw(stored["train"], train + validation, make, f"flyk {name} train")
        exam, exam_skipped = _draw(stored["test"], test if labels else (test + 1) // 2, make, f"flyk {name} test")
    except (OSError, EOFError, ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise ValueError(f"data must hold examples in lists train and test, got {path}: {error!r}") from error
    if len(set(first)) < len(first):
        raise ValueError(f"labels must begin with different tokens, got {labels} in {path}")
    if len(learn) <= validation or not exam:
        raise ValueError(f"data must hold over {validation} examples to train on and one to test on, got {path}")
    return Task(name, first, learn[validation:], learn[:validation], exam, learn_skipped + exam_skipped)


def _draw(part: Sequence[Any], count: int, make: Callable[[Any], Example], seed: str) -> tuple[list[Example], int]:
    """At random at most `count` examples that are not too long, and how many that were are passed over."""
    found: list[Example] = []
    skipped = 0
    for raw in random.Random(seed).sample(part, len(part)):
        if len(found) == count:
            break
        example = make(raw)
        if max(len(row.ids) for row in example.rows) <= LONGEST:
            found.append(example)
        else:
            skipped += 1
    return found, skipped


def _example(prompt: str, labels: Sequence[str], first: Sequence[int], tokenize: Tokenize, raw: Any) -> Example:
    if labels:
        text, label = raw
        gold = labels.index(label)
        answers = [[first[gold]]]
    else:
        text, gold = raw["question"], int(raw["answer"])
        answers = [tokenize(f" {choice}") for choice in raw["choices"]]
        answers[gold]  # an IndexError where there is no such choice
    ids = tokenize(prompt.format(text))
    return Example(tuple(Row((*ids, *answer), len(answer)) for answer in answers), gold)
