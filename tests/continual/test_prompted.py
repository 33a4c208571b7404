"""FlyPrompt's rivals with prompts: what each does that the others do not."""

import pytest
import torch
import torch.nn.functional as F
from made_material import pictures

from flyk.continual.batch import Batch
from flyk.continual.methods import Setting, make_method


@pytest.fixture(scope="module")
def images():
    return pictures()


def make(images, name, **options):
    torch.manual_seed(0)
    setting = Setting(32, 6, num_tasks=3, backbone=images.backbone, learning_rate=0.05, online_iter=2)
    return make_method(name, setting, options)


def batch_of(images, task):
    return Batch(images.train, (images.train.labels // 2 == task).nonzero().squeeze(1))


def shown(method, monkeypatch):
    """The prompts that the method shows, call by call."""
    calls, real = [], type(method).prompted
    monkeypatch.setattr(type(method), "prompted", lambda self, b, p: calls.append(p) or real(self, b, p))
    return calls


def test_l2p_shows_the_entries_of_the_nearest_keys(images, monkeypatch):
    method = make(images, "l2p", pool_size=4, top=2, length=3, prompt_layers=2)
    calls, batch = shown(method, monkeypatch), batch_of(images, 0)
    method.logits(batch)
    cosines = F.cosine_similarity(batch.features[:, None], method.keys[None], dim=2)
    for row, tokens in enumerate(calls[0]):
        first, second = cosines[row].argsort(descending=True)[:2]
        assert torch.equal(tokens, torch.cat([method.entries[first], method.entries[second]], dim=1))
    torch.testing.assert_close(method.penalty(), -0.5 * cosines.topk(2, dim=1).values.sum(1).mean())
    method.close()


def test_dualprompt_trains_the_tasks_prompt_and_tests_by_key(images, monkeypatch):
    method = make(images, "dualprompt", general=1, special=1, length=2)
    for task in range(2):
        method.start_task(task)
        before = [[one.detach().clone() for one in of_tasks] for of_tasks in (method.special, method.keys)]
        method.observe(batch_of(images, task))
        for old, new in zip(before, (method.special, method.keys), strict=True):
            moved = [not torch.equal(one, other) for one, other in zip(old, new, strict=True)]
            assert moved == [e == task for e in range(3)], "no momentum moves what is of an earlier task"
    calls, batch = shown(method, monkeypatch), batch_of(images, 1)
    method.predict(batch, torch.ones(6, dtype=torch.bool))
    met = torch.stack(list(method.keys)[:2])
    cosines = F.cosine_similarity(batch.features[:, None], met[None], dim=2)
    for tokens, task in zip(calls[0], cosines.argmax(1).tolist(), strict=True):
        assert torch.equal(tokens, torch.cat([method.general, method.special[task]]))
    method.close()


def test_codaprompt_mixes_components_and_freezes_earlier_tasks(images, monkeypatch):
    method = make(images, "codaprompt", components=2, length=2, prompt_layers=2)
    assert float(method.penalty()) < 1e-6, "components start orthogonal"
    calls, batch = shown(method, monkeypatch), batch_of(images, 0)
    method.start_task(1)
    method.logits(batch)
    tokens, query = calls[0], batch.features
    for layer in range(2):
        want = torch.zeros(len(query), 2 * 32)
        for task in range(2):
            for m in range(2):
                A, K, P = (parts[task][layer, m] for parts in (method.attention, method.keys, method.values))
                want = want + F.cosine_similarity(query * A, K[None], dim=1)[:, None] * P
        torch.testing.assert_close(tokens[:, layer].flatten(1), want, rtol=1e-4, atol=1e-5)
    kept = [parts[0].detach().clone() for parts in (method.attention, method.keys, method.values)]
    method.observe(batch)
    for old, parts in zip(kept, (method.attention, method.keys, method.values), strict=True):
        assert torch.equal(old, parts[0])
    method.close()


def test_mvp_weighs_logits_by_the_mask_of_the_entry(images):
    method = make(images, "mvp", pool_size=3, length=2, prompt_layers=2)
    batch = batch_of(images, 0)
    with torch.no_grad():
        method.head.weight.normal_()
        method.head.bias.normal_()
        plain = method.logits(batch)
        method.masks[:, 2] = -1e9
        masked = method.logits(batch)
    assert not masked[:, 2].any()
    assert torch.equal(plain[:, 3], masked[:, 3])
    method.close()


def test_mvp_counts_a_sample_that_wants_something_else_more(images):
    method = make(images, "mvp", pool_size=3, length=2, prompt_layers=2, focus=5.0)
    method.seen[:] = True
    method._features = torch.ones(4, 32)
    logits = torch.zeros(4, 6, requires_grad=True)
    method.loss(logits, torch.tensor([0, 0, 0, 1])).backward()
    weight = -logits.grad.gather(1, torch.tensor([0, 0, 0, 1])[:, None]).squeeze(1)
    assert weight[3] > 1.5 * weight[0]
    method.close()


def test_misa_is_one_prompt_and_a_head(images):
    method = make(images, "misa", length=2, prompt_layers=2)
    assert [tuple(p.shape) for p in method.pool.prompts] == [(2, 2, 32)]
    before = method.pool.prompts[0].detach().clone()
    method.observe(batch_of(images, 0))
    method.observe(batch_of(images, 1))
    assert not torch.equal(before, method.pool.prompts[0])
    method.close()
