"""Streams: the order in which training samples are shown, in tasks, each sample once.

Si-Blurry is a class-incremental stream in which some classes keep to one task and others are blurred over all. The
published sampler loses samples and fails on some counts; this one deals out every sample once for any counts.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Indices = NDArray[np.int64]


class Draws:
    """Random permutations and cuts made from raw PCG64 words.

    numpy promises the words of a bit generator for ever, but not what its Generator methods make of them, so these
    draws are the same on every machine and in every numpy version.
    """

    def __init__(self, seed: int):
        self._bits = np.random.PCG64(_whole_number("seed", seed, 0))

    def permutation(self, size: int) -> Indices:
        """A uniformly random order of range(size)."""
        return np.argsort(self._bits.random_raw(size), kind="stable").astype(np.int64)

    def shuffled(self, items: NDArray) -> NDArray:
        """A copy of `items` in random order."""
        return items[self.permutation(len(items))]

    def cuts(self, total: int, parts: int) -> Indices:
        """`parts` counts, some perhaps zero, that add up to `total`: the gaps between sorted uniform cut points."""
        points = np.sort(self._bits.random_raw(parts - 1) % np.uint64(total + 1)).astype(np.int64)
        return np.diff(points, prepend=0, append=total)


def even(total: int, parts: int) -> Indices:
    """`parts` counts that add up to `total` and differ by at most one, the larger ones first."""
    return np.array([total // parts + (part < total % parts) for part in range(parts)], dtype=np.int64)


class Stream:
    """Tasks of sample indices, played one after the other.

    Attributes:
        tasks: a list of int64 arrays of sample indices, in the order in which they are played.
    """

    tasks: list[Indices]

    def __len__(self) -> int:
        """The number of samples in the stream."""
        return sum(len(task) for task in self.tasks)

    def batches(self, batch_size: int) -> Iterator[tuple[int, Indices]]:
        """Yields (task, indices) in the order of the stream.

        A batch holds samples of one task only; the last batch of a task may be smaller; an empty task has none.
        """
        batch_size = _whole_number("batch_size", batch_size, 1)
        for task, samples in enumerate(self.tasks):
            for start in range(0, len(samples), batch_size):
                yield task, samples[start : start + batch_size]


class SiBlurryStream(Stream):
    """A single-pass stream of sample indices in `num_tasks` tasks.

    n % of the classes (rounded down) are disjoint: all their samples lie in one task. The other classes are blurry:
    each has a home task too, but a random m % (rounded down) of the blurry samples of every task are pooled, shuffled
    and dealt out over all tasks. Every sample occurs exactly once. The samples of a task come in random order.

    Balanced (the default): classes and pooled samples are dealt out as evenly as they go, larger shares of disjoint
    classes to the first tasks and of blurry ones to the last. With `random_cuts`, the numbers of disjoint classes, of
    blurry classes and of pooled samples for each task lie between sorted random cut points, so that tasks are unequal
    and may be empty.

    Source: Si-Blurry (Moon et al., ICCV 2023) in the form of FlyPrompt (arXiv 2602.01976), where `n` and `m` have the
    same meaning; there n is rounded to a multiple of the number of tasks and the remainder of the pool is dropped.

    Args:
        labels: (N,) whole numbers, the class of each sample; the classes are the distinct values.
        num_tasks: number of tasks, at least 1.
        n: percentage of disjoint classes, 0 to 100.
        m: percentage of the blurry classes' samples that are mixed over the tasks, 0 to 100.
        random_cuts: unequal tasks by random cuts instead of balanced ones.
        seed: decides every draw; the same stream on every machine.

    Attributes:
        tasks: a list of `num_tasks` int64 arrays of sample indices, in the order in which they are played.
        task_classes: a list of `num_tasks` arrays: the classes whose home the task is.
        disjoint_classes: array of the classes that occur in their home task alone.

    Raises:
        TypeError: labels are not whole numbers, or random_cuts is neither True nor False.
        ValueError: labels are not one-dimensional or empty, or num_tasks, n, m or seed is no number or out of range.
    """

    def __init__(
        self,
        labels: ArrayLike,
        num_tasks: int,
        *,
        n: float = 50,
        m: float = 10,
        random_cuts: bool = False,
        seed: int = 0,
    ):
        labels = _whole_numbers("labels", labels)
        num_tasks = _whole_number("num_tasks", num_tasks, 1)
        for name, percent in (("n", n), ("m", m)):
            if not isinstance(percent, numbers.Real) or isinstance(percent, bool) or not 0 <= percent <= 100:
                raise ValueError(f"{name} must be a percentage from 0 to 100, got {percent!r}")
        if not isinstance(random_cuts, bool):
            raise TypeError(f"random_cuts must be True or False, got {random_cuts!r}")
        draws = Draws(seed)
        deal = draws.cuts if random_cuts else even

        classes = draws.shuffled(np.unique(labels))
        num_disjoint = _share(len(classes), n)
        self.disjoint_classes = classes[:num_disjoint]
        blurry_classes = classes[num_disjoint:]
        disjoint = _split(self.disjoint_classes, deal(num_disjoint, num_tasks))
        # Reversed, so that the remainders of the two kinds do not pile up on the same tasks.
        blurry = _split(blurry_classes, deal(len(blurry_classes), num_tasks)[::-1])
        self.task_classes = [np.concatenate(pair) for pair in zip(disjoint, blurry, strict=True)]

        kept, pool = [], []
        for home in blurry:
            samples = draws.shuffled(np.flatnonzero(np.isin(labels, home)))
            mixed = _share(len(samples), m)
            pool.append(samples[:mixed])
            kept.append(samples[mixed:])
        shares = draws.shuffled(np.concatenate(pool))
        shares = _split(shares, deal(len(shares), num_tasks))
        self.tasks: list[Indices] = [
            draws.shuffled(np.concatenate([np.flatnonzero(np.isin(labels, own)), stay, share]))
            for own, stay, share in zip(disjoint, kept, shares, strict=True)
        ]


class ClassIncrementalStream(SiBlurryStream):
    """Each class in one task alone, all its samples there: Si-Blurry of 100 % disjoint classes."""

    def __init__(self, labels: ArrayLike, num_tasks: int, *, random_cuts: bool = False, seed: int = 0):
        super().__init__(labels, num_tasks, n=100, m=0, random_cuts=random_cuts, seed=seed)


class DomainIncrementalStream(Stream):
    """One task for each domain, in random order; the samples of a task come in random order.

    Args:
        domains: (N,) whole numbers, the domain of each sample; the domains are the distinct values.
        seed: decides both orders; the same stream on every machine.

    Attributes:
        tasks: a list of int64 arrays of sample indices, one for each domain.
        task_domains: the domain of each task.

    Raises:
        TypeError, ValueError: domains are not whole numbers, one-dimensional and at least one, or seed is below 0.
    """

    def __init__(self, domains: ArrayLike, *, seed: int = 0):
        domains = _whole_numbers("domains", domains)
        draws = Draws(seed)
        self.task_domains = draws.shuffled(np.unique(domains))
        self.tasks = [draws.shuffled(np.flatnonzero(domains == domain)) for domain in self.task_domains]


class JointStream(Stream):
    """All samples in one task in random order: what a learner reaches that need not fear order, the ceiling.

    Args:
        size: N samples.
        passes: how often all of them are shown, each time in a new order. This is the one stream that may repeat.
        seed: decides the orders.

    Raises:
        ValueError: size or passes is no whole number of at least 1, or seed none of at least 0.
    """

    def __init__(self, size: int, *, passes: int = 1, seed: int = 0):
        size, passes = _whole_number("size", size, 1), _whole_number("passes", passes, 1)
        draws = Draws(seed)
        self.tasks = [np.concatenate([draws.permutation(size) for _ in range(passes)])]


def _share(total: int, percent: float) -> int:
    """`percent` % of `total`, rounded down, as if 32.3 were exact, whose nearest float is a little less."""
    return math.floor(total * percent / 100 * (1 + 1e-12))


def _split(items: NDArray, counts: Indices) -> list[NDArray]:
    return np.split(items, np.cumsum(counts)[:-1])


def _whole_number(name: str, value: Any, low: int) -> int:
    if not isinstance(value, (int, np.integer)) or isinstance(value, bool) or value < low:
        raise ValueError(f"{name} must be a whole number of at least {low}, got {value!r}")
    return int(value)


def _whole_numbers(name: str, values: ArrayLike) -> NDArray:
    array = np.asarray(values)
    if array.ndim != 1 or array.size == 0:
        raise ValueError(f"{name} must be a non-empty one-dimensional array, got shape {array.shape}")
    if not np.issubdtype(array.dtype, np.integer):
        raise TypeError(f"{name} must be whole numbers, got dtype {array.dtype}")
    return array
