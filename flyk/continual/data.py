"""Labelled features, in memory and split into train and test, from images or from a file of features."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from tqdm import tqdm

from flyk.continual.backbone import EfficientNetLite0
from flyk.continual.cache import cached
from flyk.continual.files import cache_folder, read_arrays
from flyk.continual.images import check_domains, check_labels, load_images
from flyk.continual.streams import Draws

TEST_SHARE = 0.2
BATCH = 64


@dataclass(frozen=True)
class FeatureSet:
    """Features of the training and the test samples.

    Attributes:
        source: what they are and how they were made, for reports.
        names: a name for each of the C classes.
        train, test: (N, d) float32.
        train_labels, test_labels: (N,) int64, classes from 0.
        from_cache: whether a backbone's features were read from the cache; None where no backbone ran.
        train_domains: (N,) int64, the domain of each training sample, or None.
    """

    source: str
    names: Sequence[str]
    train: torch.Tensor
    train_labels: torch.Tensor
    test: torch.Tensor
    test_labels: torch.Tensor
    from_cache: bool | None
    train_domains: NDArray[np.int64] | None = None

    @property
    def num_classes(self) -> int:
        """C, the number of classes."""
        return len(self.names)


def features_from_images(
    data: str | None = None,
    *,
    resolution: int = 96,
    limit: int | None = None,
    seed: int = 0,
    device: str = "cpu",
) -> FeatureSet:
    """The images that `data` names (see load_images) through EfficientNet-Lite0, or their features from the cache.

    The cache key is a checksum of the images used, the backbone's weights and the resolution. Train and test are the
    set's own, else a random fifth of each class is held out.

    Args:
        data: None for the digits, a folder, an .npz pack or the name of a torchvision set.
        resolution: pixels at the backbone's input.
        limit: about how many images to use, drawn evenly from every class of train and of test; None for all.
        seed: decides the split and the draw.
        device: where the backbone runs.

    Raises:
        ModuleNotFoundError, ValueError: see load_images and EfficientNetLite0.
    """
    images = load_images(data)
    is_test = split(images.labels, images.is_test, seed)
    chosen = _draw(images.labels, is_test, limit, seed)
    backbone = EfficientNetLite0(resolution, device)

    def make() -> NDArray[np.float32]:
        out = np.empty((len(chosen), backbone.num_features), dtype=np.float32)
        for start in tqdm(range(0, len(chosen), BATCH), "features", disable=None, leave=False):
            part = chosen[start : start + BATCH].tolist()
            out[start : start + BATCH] = backbone.features([images.image(i) for i in part]).numpy()
        return out

    key = hashlib.sha256(f"{images.checksum(chosen)} {backbone.checksum()} {resolution}".encode()).hexdigest()
    features, from_cache = cached(cache_folder() / "features" / f"{key[:32]}.npz", make)
    source = f"{images.source} through {backbone.name} at {resolution} px"
    return _assemble(source, images.names, features, images.labels[chosen], is_test[chosen], from_cache)


def features_from_file(
    file: str | Path, *, limit: int | None = None, seed: int = 0, argument: str = "features"
) -> FeatureSet:
    """Features made elsewhere.

    An .npz or .safetensors file has `x` (N, d) features, `y` (N) whole numbers and perhaps `split` (N; 0 train,
    1 test), `names` (a name for each class; .npz only) and `domain` (N whole numbers). An .npy file is one (N, d + 1)
    table whose last column is `y`. `limit` and `seed` are as in features_from_images; errors begin with `argument`.

    Raises:
        ValueError: the file can't be read without unpickling or is not as described.
    """
    path = Path(file)
    what = f"{argument}: {path}"
    arrays = read_arrays(path, argument)
    if "" in arrays:
        arrays = _unpack_table(arrays[""], what)
    if missing := {"x", "y"} - arrays.keys():
        raise ValueError(f"{what} must have the arrays x and y and lacks {sorted(missing)}")
    x = _check_features(arrays["x"], what)
    labels, names, own = check_labels(arrays, len(x), what)
    domains = check_domains(arrays, len(x), what)
    is_test = split(labels, own, seed)
    chosen = _draw(labels, is_test, limit, seed)
    assembled = _assemble(f"features in {path.name}", names, x[chosen], labels[chosen], is_test[chosen], None)
    return assembled if domains is None else replace(assembled, train_domains=domains[chosen][~is_test[chosen]])


def _check_features(x: NDArray, what: str) -> NDArray[np.float32]:
    """The features as float32; ValueError where they are not (N, d) real numbers, or one is not finite as float32."""
    if x.ndim != 2 or 0 in x.shape or not _is_real(x):
        raise ValueError(f"{what}: `x` must be (N, d) real numbers, got {x.dtype} of shape {x.shape}")
    with np.errstate(over="ignore"):  # what is beyond float32 becomes infinite
        out = x.astype(np.float32, copy=False)
    if len(bad := np.flatnonzero(~np.isfinite(out).all(axis=1))):
        raise ValueError(
            f"{what}: `x` must be finite as float32, and {len(bad)} of its {len(x)} rows are not, first row {bad[0]}"
        )
    return out


def _unpack_table(table: NDArray, what: str) -> dict[str, NDArray]:
    if table.ndim == 2 and table.shape[1] >= 2 and _is_real(table):
        with np.errstate(invalid="ignore"):  # what is no whole number differs from its cast
            labels = table[:, -1].astype(np.int64)
        if (table[:, -1] == labels).all():
            return {"x": table[:, :-1], "y": labels}
    raise ValueError(
        f"{what} must be an (N, d + 1) table of real numbers, whole ones in its last column, "
        f"got {table.dtype} of shape {table.shape}"
    )


def _is_real(array: NDArray) -> bool:
    return np.issubdtype(array.dtype, np.integer) or np.issubdtype(array.dtype, np.floating)


def split(labels: NDArray[np.int64], own: NDArray[np.bool_] | None, seed: int) -> NDArray[np.bool_]:
    """The set's own test rows, else a random fifth of each class (none of a class with a single sample)."""
    if own is not None:
        return own
    draws = Draws(seed)
    is_test = np.zeros(len(labels), dtype=bool)
    for label in np.unique(labels):
        rows = draws.shuffled(np.flatnonzero(labels == label))
        held_out = max(round(len(rows) * TEST_SHARE), 1) if len(rows) > 1 else 0
        is_test[rows[:held_out]] = True
    return is_test


def check_parts(names: Sequence[str], labels: NDArray[np.int64], is_test: NDArray[np.bool_]) -> None:
    """Raises ValueError where a class has nothing to learn from, or nothing is there to test on."""
    missing = set(range(len(names))) - set(labels[~is_test].tolist())
    if len(names) < 2 or missing or not is_test.any():
        raise ValueError(
            f"data must have at least two classes with training samples, and some test samples; got {len(names)} "
            f"classes, {len(missing)} of them without training samples, and {int(is_test.sum())} test samples"
        )


def _draw(labels: NDArray[np.int64], is_test: NDArray[np.bool_], limit: int | None, seed: int) -> NDArray[np.int64]:
    """Rising indices of about `limit` samples: the same share of each class in train and in test, at least one."""
    if limit is None or limit >= len(labels):
        return np.arange(len(labels))
    draws, share = Draws(seed), limit / len(labels)
    chosen = []
    for label in np.unique(labels):
        for part in (is_test, ~is_test):
            rows = draws.shuffled(np.flatnonzero((labels == label) & part))
            chosen.append(rows[: int(np.ceil(len(rows) * share))])
    return np.sort(np.concatenate(chosen))


def _assemble(
    source: str,
    names: Sequence[str],
    features: NDArray[np.float32],
    labels: NDArray[np.int64],
    is_test: NDArray[np.bool_],
    from_cache: bool | None,
) -> FeatureSet:
    check_parts(names, labels, is_test)
    x, y = torch.from_numpy(features), torch.from_numpy(labels)
    train, test = torch.from_numpy(~is_test), torch.from_numpy(is_test)
    return FeatureSet(source, names, x[train], y[train], x[test], y[test], from_cache)
