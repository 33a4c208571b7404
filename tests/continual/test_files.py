"""Arrays without pickles, files that are whole or absent, and a cache that notices damage."""

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from flyk._files import write_whole
from flyk._packages import need, package_file
from flyk.continual.cache import cached
from flyk.continual.files import cache_folder, read_arrays


def test_arrays_come_back_from_every_format(tmp_path):
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.savez(tmp_path / "a.npz", x=x)
    np.save(tmp_path / "a.npy", x)
    save_file({"x": torch.from_numpy(x).bfloat16(), "y": torch.tensor([1, 2])}, tmp_path / "a.safetensors")
    np.testing.assert_array_equal(read_arrays(tmp_path / "a.npz")["x"], x)
    np.testing.assert_array_equal(read_arrays(tmp_path / "a.npy")[""], x)
    tensors = read_arrays(tmp_path / "a.safetensors")
    np.testing.assert_array_equal(tensors["x"], x)
    assert tensors["x"].dtype == np.float32
    assert tensors["y"].dtype == np.int64


@pytest.mark.parametrize("name", ["absent.npz", "noise.npz", "noise.npy", "noise.safetensors", "cut.npz", "object.npy"])
def test_what_cannot_be_read_is_named(tmp_path, name):
    (tmp_path / "noise.npz").write_bytes(b"no zip at all")
    (tmp_path / "noise.npy").write_bytes(b"\x93NUMPY nonsense")
    (tmp_path / "noise.safetensors").write_bytes(b"\xff" * 40)
    np.savez(tmp_path / "whole.npz", x=np.ones(1000))
    (tmp_path / "cut.npz").write_bytes((tmp_path / "whole.npz").read_bytes()[:500])
    np.save(tmp_path / "object.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(ValueError, match=name):
        read_arrays(tmp_path / name)
    with pytest.raises(ValueError, match=f"^data: .*{name} can't be read as"):
        read_arrays(tmp_path / name, "data")


def write_half(path):
    path.write_text("half")
    raise OSError("disk full")


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path):
    path = tmp_path / "deep" / "file.txt"
    with write_whole(path) as part:
        part.write_text("first")
    with pytest.raises(OSError, match="disk full"), write_whole(path) as part:
        write_half(part)
    assert path.read_text() == "first"
    assert list(path.parent.iterdir()) == [path]


def test_cache_folder_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("FLYK_CACHE", str(tmp_path / "own"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "own"
    monkeypatch.delenv("FLYK_CACHE")
    assert cache_folder() == tmp_path / "xdg" / "flyk"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "flyk"


def test_missing_packages_are_named_with_the_command():
    with pytest.raises(ModuleNotFoundError, match=r"no_such_module.*pip install that"):
        need("no_such_module", "pip install that")
    with pytest.raises(ModuleNotFoundError, match=r"no_such_package.*pip install this"):
        package_file("no_such_package", "*", "pip install this")
    with pytest.raises(ModuleNotFoundError, match="numpy"):
        package_file("numpy", "no such file", "pip install numpy")
    assert package_file("numpy", "__init__.py", "").name == "__init__.py"


class Maker:
    """Makes an array and counts how often it had to."""

    def __init__(self):
        self.calls = 0

    def __call__(self):
        self.calls += 1
        return np.arange(5000, dtype=np.float32).reshape(50, 100)


def test_the_second_time_comes_from_the_file(tmp_path):
    make, path = Maker(), tmp_path / "cache" / "features.npz"
    first, fresh = cached(path, make)
    second, again = cached(path, make)
    assert (make.calls, fresh, again) == (1, False, True)
    np.testing.assert_array_equal(first, second)
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("damage", ["cut", "empty", "flip", "other array", "no checksum"])
def test_a_damaged_file_is_made_anew_with_a_warning(tmp_path, damage):
    make, path = Maker(), tmp_path / "features.npz"
    cached(path, make)
    content = path.read_bytes()
    if damage == "cut":
        path.write_bytes(content[: len(content) // 2])
    elif damage == "empty":
        path.write_bytes(b"")
    elif damage == "flip":
        path.write_bytes(content[:9000] + bytes([content[9000] ^ 255]) + content[9001:])
    elif damage == "other array":
        checksum = np.load(path)["checksum"]
        np.savez(path, features=np.zeros((50, 100), dtype=np.float32), checksum=checksum)
    else:
        np.savez(path, features=make())
    with pytest.warns(UserWarning, match="damaged"):
        features, from_cache = cached(path, make)
    assert not from_cache
    np.testing.assert_array_equal(features, make())
    assert path.read_bytes() == content, "the file is whole again"


def test_a_folder_that_cannot_be_written_costs_a_warning(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    with pytest.warns(UserWarning, match="can't be cached"):
        features, _ = cached(tmp_path / "file" / "features.npz", Maker())
    assert features.shape == (50, 100)


def test_an_interrupted_make_leaves_nothing(tmp_path):
    def make():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cached(tmp_path / "features.npz", make)
    assert list(tmp_path.iterdir()) == []
