"""Learners and rivals one by one, on data small enough to know the answer."""

import numpy as np
import pytest
import torch

from flyk.continual import scales
from flyk.continual.learners import RearClassifier, RoutedTE2
from flyk.continual.rivals import LinearSGD, NearestClassMean, batch_ridge, expand
from flyk.nn import REAR, TE2Head


def blobs(per_class: int = 30, classes: int = 4, features: int = 8):
    generator = torch.Generator().manual_seed(0)
    centres = 4 * torch.randn(classes, features, generator=generator)
    labels = torch.arange(classes).repeat(per_class)
    return centres[labels] + torch.randn(len(labels), features, generator=generator), labels


def teach(learner, h, labels, tasks):
    """Shows classes 2t and 2t + 1 as task t."""
    for task in range(tasks):
        rows = labels // 2 == task
        for part, target in zip(h[rows].split(10), labels[rows].split(10), strict=True):
            learner.observe(part, target, task)


def accuracy(learner, h, labels, seen=None):
    seen = torch.ones(4, dtype=torch.bool) if seen is None else seen
    return (learner.predict(h, seen) == labels).float().mean().item()


def test_ridge_is_a_share_of_an_expanded_row():
    torch.manual_seed(0)
    h, R = 3 * torch.randn(200, 40), torch.randn(2000, 40)
    measured = (h @ R.T).relu().square().sum(dim=1).mean().item()
    assert scales.ridge(h, 2000, share=0.5) == pytest.approx(0.5 * measured, rel=0.05)


def test_rates_fall_as_features_grow():
    h = torch.tensor([[3.0, -4.0], [0.0, 1.0]])
    assert scales.adam_rate(h, share=2) == pytest.approx(2 / 4)
    assert scales.sgd_rate(h, share=2) == pytest.approx(2 / 13)


def test_batch_ridge_solves_the_regularised_least_squares():
    h, labels = blobs()
    R = torch.randn(50, 8, generator=torch.Generator().manual_seed(1))
    phi = np.maximum(h.double().numpy() @ R.double().numpy().T, 0)
    want = np.linalg.solve(phi.T @ phi + 7 * np.eye(50), phi.T @ np.eye(4)[labels.numpy()])
    for rows in (13, 1000):
        np.testing.assert_allclose(batch_ridge(h, labels, 4, R, 7.0, rows=rows).numpy(), want, rtol=1e-8, atol=1e-10)


def test_rear_classifier_is_batch_ridge_in_one_pass():
    h, labels = blobs()
    rear = REAR(8, 4, expansion=64, ridge=10.0)
    learner = RearClassifier(rear)
    teach(learner, h, labels, tasks=2)
    assert accuracy(learner, h, labels) > 0.95
    want = expand(h, rear.projection.values) @ batch_ridge(h, labels, 4, rear.projection.values, 10.0)
    torch.testing.assert_close(rear(h).double(), want, rtol=1e-3, atol=1e-3)


def test_te2_is_routed_and_learns_every_task():
    h, labels = blobs()
    heads = TE2Head(8, 4, 2)
    learner = RoutedTE2(REAR(8, 2, expansion=64, ridge=10.0), heads, scales.adam_rate(h))
    teach(learner, h, labels, tasks=2)
    seen = torch.ones(4, dtype=torch.bool)
    classes, routes = learner.predict_and_route(h, seen)
    assert (routes == labels // 2).float().mean() > 0.95
    assert torch.equal(classes, learner.predict(h, seen))
    for task in range(2):
        rows, own = labels // 2 == task, torch.arange(4) // 2 == task
        assert accuracy(learner, h[rows], labels[rows], seen=own) > 0.95
    assert heads.started.all()


def test_te2_restarts_a_bank_only_at_a_new_task():
    h, labels = blobs()
    heads = TE2Head(8, 4, 2)
    learner = RoutedTE2(REAR(8, 2, expansion=16), heads, 0.01, steps=1)
    start = heads.online.weight.detach().clone()
    learner.observe(h[:5], labels[:5], 0)
    learner.observe(h[5:10], labels[5:10], 0)
    assert not torch.equal(heads.online.weight, start)
    assert torch.dist(heads.bank_weight[0, 1], start) < torch.dist(heads.online.weight, start)


def test_nearest_class_mean():
    h, labels = blobs()
    learner = NearestClassMean(4, 8)
    teach(learner, h, labels, tasks=2)
    means = torch.stack([h[labels == c].mean(dim=0) for c in range(4)])
    want = torch.cdist(h, means).argmin(dim=1)
    assert torch.equal(learner.predict(h, torch.ones(4, dtype=torch.bool)), want)


def test_sgd_learns_what_it_sees_and_forgets():
    h, labels = blobs()
    learner = LinearSGD(4, 8, scales.sgd_rate(h, share=1.0))
    for _ in range(5):
        teach(learner, h, labels, tasks=1)
    first = labels < 2
    before = accuracy(learner, h[first], labels[first])
    for _ in range(30):
        learner.observe(h[~first], labels[~first], 1)
    assert before > 0.9
    assert accuracy(learner, h[~first], labels[~first]) > 0.9
    assert accuracy(learner, h[first], labels[first]) < before


@pytest.mark.parametrize("make", [lambda: NearestClassMean(4, 8), lambda: LinearSGD(4, 8, 0.01)])
def test_unseen_classes_are_never_predicted(make):
    h, labels = blobs()
    learner = make()
    teach(learner, h, labels, tasks=1)
    seen = torch.tensor([True, True, False, False])
    assert learner.predict(h, seen).max() < 2
