"""The methods one by one, and the faults of published code that each must not have."""

import dataclasses

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from made_material import OPTIONS, blobs, pictures
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from torch.utils._python_dispatch import TorchDispatchMode

from flyk.continual.batch import Batch
from flyk.continual.methods import METHODS, Setting, make_method
from flyk.continual.run import evaluate
from flyk.nn import REAR

SMALL = OPTIONS["flyprompt"]


class Counting(TorchDispatchMode):
    """Counts the calls of operators."""

    calls = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.calls += 1
        return func(*args, **(kwargs or {}))


@pytest.fixture(scope="module")
def images():
    return pictures()


def make(material, name="flyprompt", options=None, **changes):
    setting = Setting(
        material.train.features.shape[2], 6, num_tasks=3, backbone=material.backbone, learning_rate=0.02, **changes
    )
    torch.manual_seed(0)
    return make_method(name, setting, SMALL if options is None and name == "flyprompt" else options or {})


def task_batches(material, task, size=8):
    """Batches of classes 2 task and 2 task + 1."""
    rows = (material.train.labels // 2 == task).nonzero().squeeze(1)
    return [Batch(material.train, part, "flip", torch.Generator().manual_seed(0)) for part in rows.split(size)]


def play(method, material, tasks=3):
    counts = np.zeros((tasks, 6), dtype=np.int64)
    for task in range(tasks):
        method.start_task(task)
        for batch in task_batches(material, task):
            method.observe(batch)
            counts[task] += torch.bincount(batch.labels, minlength=6).numpy()
    return counts


def test_the_router_is_solved_for_tests_alone(images, monkeypatch):
    """Published fault: the ridge system is solved at every switch of experts and at every test, and then again."""
    solved, fit = [], REAR._fit
    monkeypatch.setattr(REAR, "_fit", lambda self: solved.append(self) or fit(self))
    method = make(images)
    counts = play(method, images)
    assert solved == [], "no expert's start and no batch needs a solution"
    evaluate(method, images, counts, False)
    evaluate(method, images, counts, False)
    assert len(solved) == 1, "one system for all tests between two batches"
    method.close()


def test_experts_that_were_never_seen_are_never_chosen(images):
    """Published fault: experts without data have a score of 0, which beats negative ones."""
    method = make(images)
    method.start_task(0)
    for batch in task_batches(images, 0):
        method.observe(batch)
    router = method.router
    router.flush()
    router.Q.neg_()  # so that the one known expert scores below 0, on every row
    batch = Batch(images.test, torch.arange(len(images.test.labels)))
    assert (router._expand(batch.features) @ router.solve())[:, 0].max() < 0
    assert method.route(batch).unique().tolist() == [0]
    method.close()


def test_prompts_of_earlier_experts_never_move(images):
    """Published fault: one parameter for all experts, whose earlier parts Adam's momentum keeps moving."""
    method = make(images)
    kept = []
    for task in range(3):
        method.start_task(task)
        assert all(torch.equal(old, new) for old, new in zip(kept, method.pool.prompts, strict=False))
        before = method.pool.prompts[task].detach().clone()
        for batch in task_batches(images, task):
            method.observe(batch)
        assert not torch.equal(method.pool.prompts[task], before)
        kept.append(method.pool.prompts[task].detach().clone())
    assert all(torch.equal(old, new) for old, new in zip(kept, method.pool.prompts, strict=True))
    method.close()


def test_heads_are_read_for_all_rows_at_once(images):
    """Published fault: the averaged heads are applied in a Python loop over rows."""
    method = make(images)
    play(method, images)
    method.router.solve()
    rows, seen = torch.arange(len(images.test.labels)), torch.ones(6, dtype=torch.bool)
    calls = []
    for some in (rows, rows.repeat(3)):
        with Counting() as counting:
            method.predict(Batch(images.test, some), seen)
        calls.append(counting.calls)
    assert calls[0] == calls[1], "three times the rows, and not one call of an operator more"
    method.close()


@pytest.mark.parametrize("name", METHODS)
def test_a_prediction_does_not_depend_on_what_is_asked_beside_it_or_on_labels(images, name):
    method = make(images, name, OPTIONS.get(name, {}))
    play(method, images)
    rows, seen = torch.arange(len(images.test.labels)), torch.ones(6, dtype=torch.bool)
    want = method.predict(Batch(images.test, rows), seen)
    blind = dataclasses.replace(images.test, labels=torch.full_like(images.test.labels, -1))
    home = None if want.routes is None else (want.routes + 1) % 3
    got = method.predict(Batch(blind, rows), seen, home)
    assert torch.equal(got.classes, want.classes)
    assert want.routes is None or torch.equal(got.routes, want.routes)
    method.close()


def test_a_machine_without_gpu_is_enough(images, monkeypatch):
    """Published fault: the number of GPUs is divided by, and there may be none."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: pytest.fail("a GPU was asked for"))
    method = make(images)
    assert evaluate(method, images, play(method, images), False)["accuracy"] >= 0
    method.close()


def test_the_router_sees_each_sample_once_as_it_is(images, monkeypatch):
    seen, update = [], REAR.update
    monkeypatch.setattr(REAR, "update", lambda self, h, e: seen.append((h.clone(), e)) or update(self, h, e))
    method = make(images)
    play(method, images)
    assert method.router.counts.tolist() == [16, 16, 16]
    want = torch.cat([batch.features for task in range(3) for batch in task_batches(images, task)])
    assert torch.equal(torch.cat([h for h, _ in seen]), want), "once a batch, without augmentation"
    method.close()


def test_prompts_have_a_rate_of_their_own(images):
    for name, options in (("flyprompt", None), ("misa", {"length": 2, "prompt_layers": 2})):
        method = make(images, name, options, prompt_rate=1e-5)
        method.start_task(0)
        head = method.heads.online if name == "flyprompt" else method.head
        prompts, weight = method.pool.prompts[0].detach().clone(), head.weight.detach().clone()
        method.observe(task_batches(images, 0)[0])
        assert 0 < (method.pool.prompts[0] - prompts).abs().max() < 5e-5
        assert (head.weight - weight).abs().max() > 0.02
        method.close()


def test_averages_follow_every_step(images):
    method = make(images, options=SMALL | {"decays": [0.5]})
    method.start_task(0)
    moved = []
    real = method.heads.ema_step
    method.heads.ema_step = lambda: moved.append(method.heads.online.weight.detach().clone()) or real()
    method.observe(task_batches(images, 0)[0])
    assert len(moved) == 3
    want = torch.zeros_like(moved[0])
    for weight in moved:
        want = 0.5 * want + 0.5 * weight
    torch.testing.assert_close(method.heads.bank_weight[0, 0], want)
    method.close()


def test_unseen_classes_are_never_predicted(images):
    seen = torch.tensor([True, True, False, False, False, False])
    for name in ("flyprompt", "sequential", "ncm", "slda"):
        method = make(images, name)
        method.start_task(0)
        for batch in task_batches(images, 0):
            method.observe(batch)
        assert method.predict(Batch(images.test, torch.arange(18)), seen).classes.max() < 2
        method.close()


@pytest.mark.parametrize("mask", ["batch", "seen", "random", "none"])
def test_masks_by_hand(images, mask):
    method = make(images, "sequential", mask=mask)
    method.seen[:] = torch.tensor([True, True, True, False, False, False])
    logits, labels = torch.randn(4, 6, requires_grad=True), torch.tensor([0, 1, 1, 0])
    torch.manual_seed(1)
    loss = method.loss(logits, labels)
    torch.manual_seed(1)
    part = {"batch": [0, 1], "seen": [0, 1, 2], "none": list(range(6))}.get(mask)
    if part is None:
        drawn = torch.rand(6) < 0.5
        drawn[:2] = True
        part = drawn.nonzero().squeeze(1).tolist()
        assert 2 < len(part) < 6
    torch.testing.assert_close(loss, F.cross_entropy(logits[:, part], labels))
    (gradient,) = torch.autograd.grad(loss, logits)
    assert gradient.any(0).nonzero().squeeze(1).tolist() == part


def test_cold_starts_differ_from_warm_ones(images):
    warm, cold = make(images), make(images, options=SMALL | {"warm_start": False})
    drawn = cold.pool.prompts[1].detach().clone()
    for method in (warm, cold):
        method.start_task(0)
        method.observe(task_batches(images, 0)[0])
        method.start_task(1)
    assert torch.equal(cold.pool.prompts[1], drawn)
    assert torch.equal(warm.pool.prompts[1], warm.pool.prompts[0])
    warm.close()
    cold.close()


def test_experts_by_drift_of_the_routers_own_scores():
    material = blobs(per_class=80, spread=4.0)
    options = {"prompt_length": 0, "expansion": 128, "ridge": 1.0, "experts": "drift", "num_experts": 6}
    method = make(material, options=options)
    started = []
    for task in range(3):
        for batch in task_batches(material, task):
            batch.augment = "none"
            method.observe(batch)
            started.append((task, method.expert))
    first = {expert: task for task, expert in reversed(started)}
    assert first == {0: 0, 1: 1, 2: 2}, "an expert for each task, though nobody told the borders"


def test_experts_by_samples_stop_at_the_last():
    material = blobs()
    method = make(material, options=SMALL | {"prompt_length": 0, "experts": "samples", "budget": 16, "num_experts": 3})
    experts = []
    for task in range(3):
        for batch in task_batches(material, task):
            batch.augment = "none"
            method.observe(batch)
            experts.append(method.expert)
    assert experts == [0, 0, 1, 1, 2, 2, 2, 2, 2]


def test_the_oracle_router_is_given_the_home(images):
    method = make(images)
    counts = play(method, images)
    told = evaluate(method, images, counts, True)
    method.route = lambda batch: batch.labels // 2
    assert told["also"]["oracle router"] == evaluate(method, images, counts, False)["accuracy"]
    method.close()


def test_slda_is_scikit_learns():
    material = blobs(per_class=40)
    method = make(material, "slda", {"shrinkage": 1e-6})
    x, y = material.train.features[0], material.train.labels
    for rows in torch.randperm(len(y), generator=torch.Generator().manual_seed(2)).split(7):
        method.observe(Batch(material.train, rows))
    theirs = LinearDiscriminantAnalysis(priors=np.full(6, 1 / 6)).fit(x.double().numpy(), y.numpy())
    generator = torch.Generator().manual_seed(9)
    probe = Batch(material.test, torch.zeros(200, dtype=torch.int64))
    probe.features = 3 * torch.randn(200, 16, generator=generator)
    ours = method.predict(probe, torch.ones(6, dtype=torch.bool)).classes
    assert ours.tolist() == theirs.predict(probe.features.double().numpy()).tolist()


def test_slda_says_where_its_shrinkage_is_too_small():
    material = blobs()
    thrice = dataclasses.replace(material.train, features=1e3 * material.train.features.repeat(1, 1, 3))
    method = make(dataclasses.replace(material, train=thrice), "slda", {"shrinkage": 1e-16})
    batch = Batch(thrice, torch.arange(len(thrice.labels)))
    method.observe(batch)
    with pytest.raises(ValueError, match="shrinkage must be larger for these features, got 1e-16"):
        method.predict(batch, torch.ones(6, dtype=torch.bool))


def test_ranpac_holds_out_by_a_hash_and_counts_all_in_the_end():
    material = blobs(per_class=50)
    method = make(material, "ranpac", {"expansion": 32, "ridges": (0.1, 1.0, 10.0)})
    for rows in torch.arange(300).split(30):  # in the order of the file
        method.observe(Batch(material.train, rows))
    assert 40 < len(method.held.rows) < 80
    assert method.held.labels.unique().tolist() == list(range(6)), "a share of every class, not the last ones"
    U = method._solve()
    R = method.fit.projection.values.double()
    phi = (material.train.features[0].double() @ R.T).relu()
    ridge = method._choose()
    assert ridge in (0.1, 1.0, 10.0)
    want = torch.linalg.solve(phi.T @ phi + ridge * torch.eye(32), phi.T @ F.one_hot(material.train.labels, 6).double())
    torch.testing.assert_close(U.double(), want, rtol=1e-2, atol=1e-4)


def test_ranpac_over_winners_alone():
    material = blobs()
    method = make(material, "ranpac", {"expansion": 64, "sparse": 4, "winners": 5, "ridges": (0.01, 0.1, 1.0)})
    method.observe(Batch(material.train, torch.arange(72)))
    assert (method.fit._expand(material.train.features[0]) != 0).sum(1).tolist() == 72 * [5]
    assert method.fit.projection.indices.shape == (64, 4)
    classes = method.predict(Batch(material.test, torch.arange(6)), torch.ones(6, dtype=torch.bool)).classes
    assert torch.equal(classes, material.test.labels[:6])


def test_ranpac_passes_over_ridges_too_small_for_float32():
    material = blobs()
    method = make(material, "ranpac", {"expansion": 256, "ridges": (1e-4, 1e-3, 10.0)})
    method.observe(Batch(material.train, torch.arange(72)))  # fewer than the expansion is wide
    classes = method.predict(Batch(material.test, torch.arange(30)), torch.ones(6, dtype=torch.bool)).classes
    assert (classes == material.test.labels).float().mean() > 0.9


def test_ranpac_says_that_its_ridge_is_at_the_edge(caplog):
    material = blobs(spread=0.0)
    method = make(material, "ranpac", {"expansion": 32, "ridges": (1e5, 1e6)})
    method.observe(Batch(material.train, torch.arange(72)))
    method._solve()
    assert "at the edge of its grid" in caplog.text


def test_a_run_that_diverges_ends_in_a_sentence():
    material = blobs()
    method = make_method("sequential", Setting(16, 6, learning_rate=1e37), {})
    with pytest.raises(ValueError, match="learning_rate and prompt_rate must be lower for these data: the loss is"):
        method.observe(Batch(material.train, torch.arange(20)))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"aggregation": "vote"}, "aggregation must be one of"),
        ({"experts": "now"}, "experts must be one of"),
        ({"experts": "drift", "router": "mlp"}, "router must be ridge"),
        ({"router": "oracle"}, "router must be one of"),
    ],
)
def test_bad_options_of_flyprompt_are_named(images, options, words):
    with pytest.raises(ValueError, match=words):
        make(images, options=SMALL | options)


def test_bad_options_of_the_others_are_named(images):
    for name, options, words in (
        ("ranpac", {"ridges": (1.0, 0.1)}, "ridges must rise"),
        ("slda", {"shrinkage": 0}, "shrinkage must be"),
        ("l2p", {"top": 11}, "top must be"),
        ("mvp", {"temperature": 0.0}, "temperature must be above 0, got 0.0"),
    ):
        with pytest.raises(ValueError, match=words):
            make(images, name, options)
