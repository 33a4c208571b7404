"""Every sample once, for any counts; the shares that n and m name; the same stream everywhere."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flyk.continual.streams import (
    ClassIncrementalStream,
    DomainIncrementalStream,
    Draws,
    JointStream,
    SiBlurryStream,
    _share,
    even,
)

labels_strategy = st.lists(st.integers(-5, 12), min_size=1, max_size=120).map(np.array)


def shares(stream: SiBlurryStream, labels: np.ndarray) -> np.ndarray:
    """(T, C) samples of each class in each task."""
    classes = np.unique(labels)
    return np.array([[int((labels[task] == c).sum()) for c in classes] for task in stream.tasks])


@settings(deadline=None, max_examples=200)
@given(
    labels_strategy,
    st.integers(1, 9),
    st.integers(0, 100),
    st.integers(0, 100),
    st.booleans(),
    st.integers(0, 2**32),
    st.integers(1, 40),
)
def test_every_sample_occurs_exactly_once(labels, tasks, n, m, random_cuts, seed, batch_size):
    stream = SiBlurryStream(labels, tasks, n=n, m=m, random_cuts=random_cuts, seed=seed)
    batches = list(stream.batches(batch_size))
    assert len(stream) == len(labels)
    assert len(stream.tasks) == len(stream.task_classes) == tasks
    assert sorted(np.concatenate([indices for _, indices in batches])) == list(range(len(labels)))
    assert [task for task, _ in batches] == sorted(task for task, _ in batches)
    assert all(0 < len(indices) <= batch_size for _, indices in batches)
    for task, samples in enumerate(stream.tasks):
        np.testing.assert_array_equal(np.concatenate([i for t, i in batches if t == task] or [[]]), samples)


@settings(deadline=None, max_examples=100)
@given(labels_strategy, st.integers(1, 9), st.integers(0, 100), st.integers(0, 100), st.booleans(), st.integers(0, 99))
def test_shares_of_disjoint_classes_and_mixed_samples(labels, tasks, n, m, random_cuts, seed):
    stream = SiBlurryStream(labels, tasks, n=n, m=m, random_cuts=random_cuts, seed=seed)
    classes = np.unique(labels)
    counts = shares(stream, labels)
    assert len(stream.disjoint_classes) == len(classes) * n // 100
    assert sorted(np.concatenate(stream.task_classes)) == classes.tolist()
    for task, home in enumerate(stream.task_classes):
        blurry = ~np.isin(classes, stream.disjoint_classes) & np.isin(classes, home)
        total = counts[:, blurry].sum()
        assert total - counts[task, blurry].sum() <= total * m // 100
        for c in np.flatnonzero(np.isin(classes, home) & ~blurry):
            assert counts[task, c] == counts[:, c].sum()


def test_balanced_tasks_of_a_balanced_set_are_equal_and_mix_m_per_cent():
    labels = np.repeat(np.arange(20), 50)
    stream = SiBlurryStream(labels, 5, n=50, m=10, seed=3)
    counts = shares(stream, labels)
    assert [len(classes) for classes in stream.task_classes] == [4] * 5
    assert counts.sum(axis=1).tolist() == [200] * 5
    away = sum(
        counts[other, classes].sum()
        for task, classes in enumerate(stream.task_classes)
        for other in range(5)
        if other != task
    )
    assert 0 < away <= 50, "10 % of 500 blurry samples are dealt out, a fifth of them to their own homes"


def test_n_100_is_class_incremental_and_n_0_m_100_is_mixed():
    labels = np.repeat(np.arange(6), 30)
    incremental = shares(SiBlurryStream(labels, 3, n=100, m=50), labels)
    assert ((incremental > 0).sum(axis=0) == 1).all()
    mixed = shares(SiBlurryStream(labels, 3, n=0, m=100), labels)
    assert (mixed > 0).all()
    assert mixed.sum(axis=1).tolist() == [60, 60, 60]


def test_counts_that_do_not_divide_lose_nothing():
    labels = np.repeat(np.arange(7), [1, 2, 3, 5, 8, 13, 21])
    stream = SiBlurryStream(labels, 4, n=50, m=33)
    assert [len(classes) for classes in stream.task_classes] == [2, 2, 2, 1]
    assert sorted(np.concatenate(stream.tasks)) == list(range(53))


@pytest.mark.parametrize("tenths", [323, 641, 646, 651])
def test_no_class_or_sample_is_lost_to_rounding(tenths):
    """1000 * 32.3 / 100 is below 323 in floats."""
    labels = np.arange(1000)
    assert len(SiBlurryStream(labels, 5, n=tenths / 10, m=0).disjoint_classes) == tenths
    stream = SiBlurryStream(np.zeros(1000, dtype=int), 2, n=0, m=tenths / 10)  # one class, whose home is the last task
    assert len(stream.tasks[0]) == (tenths + 1) // 2


@given(st.integers(0, 10**8), st.integers(0, 100_000))
def test_shares_are_those_of_exact_percentages(total, thousandths):
    assert _share(total, thousandths / 1000) == total * Fraction(thousandths, 1000) // 100
    assert _share(total, thousandths // 1000) == total * (thousandths // 1000) // 100


def test_random_cuts_make_unequal_tasks():
    labels = np.repeat(np.arange(50), 20)
    sizes = [len(task) for task in SiBlurryStream(labels, 5, random_cuts=True, seed=1).tasks]
    assert sum(sizes) == 1000
    assert max(sizes) - min(sizes) > 100


def test_seed_decides_the_stream_on_every_machine():
    labels = np.repeat(np.arange(4), 3)
    stream = SiBlurryStream(labels, 2, n=50, m=50, seed=7)
    again = SiBlurryStream(labels, 2, n=50, m=50, seed=7)
    assert [task.tolist() for task in stream.tasks] == [task.tolist() for task in again.tasks]
    assert [task.tolist() for task in stream.tasks] == GOLDEN
    other = SiBlurryStream(labels, 2, n=50, m=50, seed=8)
    assert [task.tolist() for task in other.tasks] != GOLDEN


GOLDEN = [[9, 10, 11, 6, 5, 7], [8, 4, 2, 3, 0, 1]]


def test_draws_are_fair():
    draws = Draws(0)
    firsts = np.bincount([draws.permutation(4)[0] for _ in range(4000)])
    assert np.abs(firsts - 1000).max() < 150
    cuts = np.array([draws.cuts(9, 3) for _ in range(2000)])
    assert (cuts.sum(axis=1) == 9).all()
    assert (cuts.min(axis=0) == 0).all()
    assert np.abs(cuts.mean(axis=0) - 3).max() < 0.3
    assert even(11, 4).tolist() == [3, 3, 3, 2]
    assert even(0, 2).tolist() == [0, 0]


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"labels": []}, ValueError, "labels"),
        ({"labels": [[1, 2]]}, ValueError, "labels"),
        ({"labels": [0.5, 1.0]}, TypeError, "labels"),
        ({"num_tasks": 0}, ValueError, "num_tasks must be a whole number of at least 1, got 0"),
        ({"num_tasks": 2.0}, ValueError, r"num_tasks must be .*, got 2\.0"),
        ({"num_tasks": "2"}, ValueError, "num_tasks must be .*, got '2'"),
        ({"num_tasks": True}, ValueError, "num_tasks must be .*, got True"),
        ({"n": "5"}, ValueError, "n must be a percentage from 0 to 100, got '5'"),
        ({"n": True}, ValueError, "n must be .*, got True"),
        ({"m": None}, ValueError, "m must be .*, got None"),
        ({"random_cuts": "false"}, TypeError, "random_cuts must be True or False, got 'false'"),
        ({"n": 101}, ValueError, "n must"),
        ({"m": -1}, ValueError, "m must"),
        ({"m": float("nan")}, ValueError, "m must"),
        ({"seed": -1}, ValueError, "seed"),
        ({"seed": 1.5}, ValueError, "seed"),
    ],
)
def test_bad_arguments_are_named(change, error, words):
    with pytest.raises(error, match=words):
        SiBlurryStream(**{"labels": [0, 1], "num_tasks": 2} | change)


@pytest.mark.parametrize("size", [0, 1.5, True])
def test_a_batch_has_a_whole_number_of_samples(size):
    with pytest.raises(ValueError, match=f"batch_size must be a whole number of at least 1, got {size}"):
        next(SiBlurryStream([0, 1], 1).batches(size))


@given(labels_strategy, st.integers(1, 9), st.booleans(), st.integers(0, 99))
def test_class_incremental_shows_each_class_in_one_task(labels, tasks, random_cuts, seed):
    stream = ClassIncrementalStream(labels, tasks, random_cuts=random_cuts, seed=seed)
    assert sorted(np.concatenate(stream.tasks)) == list(range(len(labels)))
    assert (np.count_nonzero(shares(stream, labels), axis=0) == 1).all()


@given(labels_strategy, st.integers(0, 99), st.integers(1, 40))
def test_domain_incremental_shows_each_sample_once_and_each_domain_in_one_task(domains, seed, batch_size):
    stream = DomainIncrementalStream(domains, seed=seed)
    batches = list(stream.batches(batch_size))
    assert len(stream) == len(domains)
    assert sorted(np.concatenate([indices for _, indices in batches])) == list(range(len(domains)))
    assert sorted(stream.task_domains) == np.unique(domains).tolist()
    for domain, task in zip(stream.task_domains, stream.tasks, strict=True):
        assert (domains[task] == domain).all()


def test_the_seed_decides_the_order_of_domains():
    domains = np.repeat(np.arange(9), 2)
    orders = {tuple(DomainIncrementalStream(domains, seed=seed).task_domains.tolist()) for seed in (0, 0, 1, 2)}
    assert len(orders) == 3


def test_joint_streams_show_all_in_each_pass():
    stream = JointStream(7, passes=3)
    (task,) = stream.tasks
    passes = task.reshape(3, 7)
    assert (np.sort(passes, axis=1) == np.arange(7)).all()
    assert len({tuple(one) for one in passes.tolist()}) == 3
    assert len(stream) == 21


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: DomainIncrementalStream([]), ValueError, "domains must be"),
        (lambda: DomainIncrementalStream([0.5]), TypeError, "domains must be whole"),
        (lambda: DomainIncrementalStream([0], seed=-1), ValueError, "seed"),
        (lambda: JointStream(0), ValueError, "size must be .*, got 0"),
        (lambda: JointStream(2.5), ValueError, r"size must be a whole number .*, got 2\.5"),
        (lambda: JointStream(3, passes=0), ValueError, "passes must be .*, got 0"),
        (lambda: JointStream(3, passes=True), ValueError, "passes must be .*, got True"),
    ],
)
def test_bad_arguments_of_the_other_streams_are_named(make, error, words):
    with pytest.raises(error, match=words):
        make()
