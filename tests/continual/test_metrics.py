"""Measures against values worked out by hand."""

import math

import numpy as np
import pytest
import torch

from flyk.continual import metrics

NAN = float("nan")
# Three task ends, four classes: the third is exposed at the second, the fourth at the last.
HISTORY = np.array([[0.9, 0.0, NAN, NAN], [0.6, 0.5, 0.8, NAN], [0.7, 0.2, 0.6, 1.0]])


def test_accuracy_counts_exposed_classes_alone():
    prediction, target = np.array([0, 1, 1, 2]), np.array([0, 0, 1, 2])
    assert metrics.accuracy(prediction, target, np.array([True, True, False])) == pytest.approx(2 / 3)
    assert metrics.accuracy(prediction, target, np.array([True, True, True])) == pytest.approx(3 / 4)
    assert math.isnan(metrics.accuracy(prediction, target, np.zeros(3, dtype=bool)))


def test_class_accuracies_are_nan_where_nothing_can_be_said():
    prediction, target = np.array([0, 1, 1, 2]), np.array([0, 0, 1, 2])
    row = metrics.class_accuracies(prediction, target, np.array([True, True, False, True]))
    np.testing.assert_array_equal(row, [0.5, 1.0, NAN, NAN])


def test_averages():
    assert metrics.a_auc([0.5, 0.7, 0.9]) == pytest.approx(0.7)
    assert metrics.a_avg([0.5, 0.8]) == pytest.approx(0.65)
    assert metrics.a_last([0.5, 0.8]) == 0.8
    assert all(math.isnan(f([])) for f in (metrics.a_auc, metrics.a_avg, metrics.a_last))


def test_forgetting_is_the_fall_from_the_best_earlier_moment():
    # .9 - .7, .5 - .2, .8 - .6; the fourth class has no earlier moment
    assert metrics.forgetting(HISTORY) == pytest.approx((0.2 + 0.3 + 0.2) / 3)
    assert math.isnan(metrics.forgetting(HISTORY[:1]))
    assert math.isnan(metrics.forgetting(np.array([[0.0, NAN], [1.0, 1.0]])))


def test_backward_transfer_starts_at_the_first_positive_moment():
    # .7 - .9, .2 - .5 (not .2 - 0), .6 - .8
    assert metrics.backward_transfer(HISTORY) == pytest.approx((-0.2 - 0.3 - 0.2) / 3)
    assert metrics.backward_transfer(np.array([[0.2], [0.9], [0.5]])) == pytest.approx(0.3)
    assert metrics.forgetting(np.array([[0.2], [0.4], [0.5]])) == pytest.approx(-0.1)
    assert math.isnan(metrics.backward_transfer(HISTORY[:1]))
    assert math.isnan(metrics.backward_transfer(np.array([[0.0, NAN], [1.0, 1.0]])))


def test_routing_is_held_against_the_task_with_most_samples():
    counts = np.array([[5, 2, 0, 3], [1, 2, 0, 4]])
    home = metrics.home_experts(counts)
    assert home.tolist() == [0, 0, -1, 1]
    routes, target = np.array([0, 1, 1, 0]), np.array([0, 1, 2, 3])
    assert metrics.routing_accuracy(routes, target, home) == pytest.approx(1 / 3)
    assert math.isnan(metrics.routing_accuracy(routes, np.full(4, 2), home))


def test_measures_take_their_tests_by_why_they_were_made():
    accuracies = [0.1, 0.5, 0.4, 0.8]
    history = np.array([[0.1, NAN], [0.5, NAN], [0.3, 0.5], [0.7, 0.9]])
    got = metrics.measures(accuracies, history, [True, False, True, True], [False, True, False, True])
    assert got["a_auc"] == pytest.approx((0.1 + 0.4 + 0.8) / 3)
    assert got["a_avg"] == pytest.approx((0.5 + 0.8) / 2)
    assert got["a_last"] == 0.8
    assert got["forgetting"] == pytest.approx(0.5 - 0.7)
    assert got["bwt"] == pytest.approx(0.7 - 0.5)


def test_lists_and_tensors_are_taken_as_arrays():
    prediction, target, exposed = [0, 1, 1, 2], [0, 0, 1, 2], [True, True, False]
    history = HISTORY.tolist()
    for given in (lambda values: values, torch.tensor):
        assert metrics.accuracy(given(prediction), given(target), given(exposed)) == pytest.approx(2 / 3)
        row = metrics.class_accuracies(given(prediction), given(target), given(exposed))
        np.testing.assert_array_equal(row, [0.5, 1.0, NAN])
        assert metrics.routing_accuracy(given(prediction), given(target), given([0, 1, -1])) == pytest.approx(2 / 3)
        assert metrics.home_experts(given([[5, 0], [6, 0]])).tolist() == [1, -1]
        assert metrics.forgetting(given(history)) == pytest.approx(metrics.forgetting(HISTORY))
        assert metrics.backward_transfer(given(history)) == pytest.approx(metrics.backward_transfer(HISTORY))
        assert metrics.a_auc(given([0.5, 0.7])) == pytest.approx(0.6)
    assert math.isnan(metrics.accuracy([], [], exposed))


TRUE, TESTS = [True, True], [True, False, True]


@pytest.mark.parametrize(
    ("call", "error", "sentence"),
    [
        (lambda: metrics.accuracy([0, 1], [0, -1], TRUE), ValueError, "target must be from 0 to 1, got -1"),
        (lambda: metrics.accuracy([0, 1], [0, 2], TRUE), ValueError, "target must be from 0 to 1, got 2"),
        (lambda: metrics.accuracy([0, 1], [0, 1], [1, 1]), TypeError, "exposed must be True or False, got dtype int64"),
        (lambda: metrics.accuracy([0], [0, 1], TRUE), ValueError, r"prediction must have shape \(2,\), got \(1,\)"),
        (
            lambda: metrics.accuracy([0, 1], [0.0, 1.0], TRUE),
            TypeError,
            "target must be whole numbers, got dtype float64",
        ),
        (lambda: metrics.accuracy([0, 1], [TRUE], TRUE), ValueError, r"target must have shape \(N,\), got \(1, 2\)"),
        (lambda: metrics.accuracy([0, 1], TRUE, TRUE), TypeError, "target must be whole numbers, got dtype bool"),
        (lambda: metrics.accuracy([0], [0], None), ValueError, r"exposed must have shape \(C,\), got \(\)"),
        (lambda: metrics.accuracy([0], [0, [1]], TRUE), TypeError, "target must be an array, got list: "),
        (
            lambda: metrics.accuracy([0], torch.zeros(1, device="meta"), TRUE),
            TypeError,
            "target must be an array, got Tensor: ",
        ),
        (lambda: metrics.class_accuracies([0], [-1], TRUE), ValueError, "target must be from 0 to 1, got -1"),
        (lambda: metrics.class_accuracies([0], [2], TRUE), ValueError, "target must be from 0 to 1, got 2"),
        (lambda: metrics.class_accuracies([0], [0], [1, 0]), TypeError, "exposed must be True or False"),
        (lambda: metrics.routing_accuracy([0], [-1], [0, 0]), ValueError, "target must be from 0 to 1, got -1"),
        (lambda: metrics.routing_accuracy([0, 1], [0], [0, 0]), ValueError, r"routes must have shape \(1,\)"),
        (lambda: metrics.routing_accuracy([0], [0], [0.5]), TypeError, "home must be whole numbers"),
        (lambda: metrics.home_experts([5, 2]), ValueError, r"counts must have shape \(T, C\), got \(2,\)"),
        (lambda: metrics.forgetting(HISTORY[0]), ValueError, r"history must have shape \(E, C\), got \(4,\)"),
        (lambda: metrics.backward_transfer(HISTORY[0]), ValueError, r"history must have shape \(E, C\), got \(4,\)"),
        (lambda: metrics.forgetting([["a"], ["b"]]), TypeError, "history must be numbers, got dtype <U1"),
        (lambda: metrics.a_auc(0.5), ValueError, r"accuracies must have shape \(E,\), got \(\)"),
        (lambda: metrics.a_avg([0.5, None]), TypeError, "task_ends must be numbers, got dtype object"),
        (lambda: metrics.a_last([[0.5]]), ValueError, r"task_ends must have shape \(E,\), got \(1, 1\)"),
        (lambda: metrics.measures([1.0, 1.0], HISTORY, TRUE, TRUE), ValueError, r"history must have shape \(2, C\)"),
        (lambda: metrics.measures([1.0] * 3, HISTORY, TRUE, TESTS), ValueError, r"at_interval must have shape \(3,\)"),
        (
            lambda: metrics.measures([1.0] * 3, HISTORY, TESTS, [0, 2, 1]),
            TypeError,
            "at_task_end must be True or False",
        ),
    ],
)
def test_what_can_not_be_measured_is_refused_in_one_sentence(call, error, sentence):
    with pytest.raises(error, match=f"^{sentence}"):
        call()
