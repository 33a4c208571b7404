"""What a run plays: labelled samples as features of a frozen backbone and, for prompts, as its inputs."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tqdm import tqdm

from flyk.continual.backbone import EfficientNetLite0
from flyk.continual.batch import Part
from flyk.continual.cache import cached
from flyk.continual.config import Config
from flyk.continual.data import FeatureSet, check_parts, features_from_file, split
from flyk.continual.files import cache_folder
from flyk.continual.images import ImageSet, load_images
from flyk.continual.promptable import PromptableViT
from flyk.continual.streams import Draws
from flyk.continual.texts import MiniLM, TextSet, load_texts
from flyk.continual.vit import vit_s

BATCH = 64
VARIABLE = re.compile(r"\$\{?(\w+)", re.ASCII)  # as os.path.expandvars has it
Indices = NDArray[np.int64]


@dataclass(frozen=True)
class Material:
    """Training and test samples, and the backbone that made their features.

    Attributes:
        source: what they are and how they were made, for reports.
        names: a name for each of the C classes.
        train, test: the samples.
        domains: (N,) the domain of each training sample, or None.
        backbone: of the features, None where they came from a file.
    """

    source: str
    names: Sequence[str]
    train: Part
    test: Part
    domains: Indices | None = None
    backbone: Any = None

    @cached_property
    def checksum(self) -> str:
        """SHA-256 of the samples' labels and features, in order."""
        digest = hashlib.sha256()
        for part in (self.train, self.test):
            for values in (part.labels, part.features):
                digest.update(values.numpy().tobytes())
        return digest.hexdigest()


def load_material(config: Config, progress: bool = False) -> Material:
    """The samples that a config names. Their features are cached, and are the same for all methods and seeds.

    Raises:
        ModuleNotFoundError: a package is missing; the message says how to install it.
        ValueError: `data` or `repair` is not there or not as described, or `data` does not go with `backbone` or
            `stream`.
    """
    data = _filled("data", config.data)
    if data.endswith(".json.gz") != (config.backbone == "minilm"):
        raise ValueError(
            f"backbone must be minilm for .json.gz texts and another for the rest, got {config.backbone!r}"
        )
    if config.augment != "none" and config.backbone in ("minilm", "none"):
        raise ValueError(f"augment must be none where the data are no images, got {config.augment!r}")
    samples = _read(data, config)
    if config.stream == "domain":  # said before the features are made, which may take hours
        need_domains(config, samples.train_domains if isinstance(samples, FeatureSet) else samples.domains)
    if isinstance(samples, FeatureSet):
        return _of_features(samples, config)
    if isinstance(samples, TextSet):
        return _of_texts(samples, MiniLM(), config, progress)
    return _of_images(samples, _image_backbone(config), config, progress)


def need_domains(config: Config, domains: Indices | None) -> Indices:
    """The domains, for a stream that goes by them; ValueError where the data have none."""
    if domains is None:
        raise ValueError(f"stream must be another than domain for data without domains, such as {config.data!r}")
    return domains


def _filled(name: str, value: str) -> str:
    """The value of a setting with the variables of the environment filled in."""
    filled = os.path.expandvars(value)
    if "$" in filled or not all(os.environ.get(variable) for variable in VARIABLE.findall(value)):
        raise ValueError(f"{name} must name variables of the environment that are set and not empty, got {value!r}")
    return filled


def _read(data: str, config: Config) -> FeatureSet | TextSet | ImageSet:
    if config.backbone == "none":
        return features_from_file(data, argument="data")
    if config.backbone == "minilm":
        return load_texts(Path(data))
    return load_images(data)


def _image_backbone(config: Config) -> Any:
    if config.backbone == "efficientnet":
        return EfficientNetLite0(config.resolution)
    repair = None if config.repair is None else Path(_filled("repair", config.repair))
    model = vit_s(repair)  # refuses a file that can't be read
    identity = "vit-s" if repair is None else f"vit-s {hashlib.sha256(repair.read_bytes()).hexdigest()}"
    return PromptableViT(model, "ViT-S/14", config.resolution, identity)


def _of_features(data: FeatureSet, config: Config) -> Material:
    halves, chosen = [], []
    for features, labels, cap in (
        (data.train, data.train_labels, config.train_per_class),
        (data.test, data.test_labels, config.test_per_class),
    ):
        rows = torch.from_numpy(capped(labels.numpy(), np.arange(len(labels)), cap))
        halves.append(Part(labels[rows], features[None, rows]))
        chosen.append(rows.numpy())
    domains = None if data.train_domains is None else data.train_domains[chosen[0]]
    return Material(data.source, data.names, halves[0], halves[1], domains)


def _of_texts(texts: TextSet, backbone: MiniLM, config: Config, progress: bool) -> Material:
    check_parts(texts.names, texts.labels, texts.is_test)
    chosen = [
        capped(texts.labels, np.flatnonzero(mask), cap)
        for mask, cap in ((~texts.is_test, config.train_per_class), (texts.is_test, config.test_per_class))
    ]
    halves = []
    for rows in chosen:
        key = f"{texts.checksum(rows)} {backbone.checksum()}"

        def batch(part: Indices) -> torch.Tensor:
            return backbone.features([str(texts.texts[i]) for i in part.tolist()])

        # By length, so that a batch has little padding.
        order = np.argsort([len(texts.texts[i]) for i in rows.tolist()], kind="stable")
        features = _features(key, rows[order], batch, backbone.num_features, progress)[np.argsort(order)]

        def tokens(part: torch.Tensor, rows: Indices = rows) -> torch.Tensor:
            return backbone.prepare([str(texts.texts[i]) for i in rows[part.numpy()].tolist()])

        halves.append(Part(torch.from_numpy(texts.labels[rows]), torch.from_numpy(features)[None], tokens))
    domains = None if texts.domains is None else texts.domains[chosen[0]]
    source = f"{texts.source} through {backbone.name}"
    return Material(source, texts.names, halves[0], halves[1], domains, backbone)


def _of_images(images: ImageSet, backbone: Any, config: Config, progress: bool) -> Material:
    is_test = split(images.labels, images.is_test, 0)
    check_parts(images.names, images.labels, is_test)
    chosen = [
        capped(images.labels, np.flatnonzero(mask), cap)
        for mask, cap in ((~is_test, config.train_per_class), (is_test, config.test_per_class))
    ]
    halves = []
    for rows, views in zip(chosen, (2 if config.augment == "flip" else 1, 1), strict=True):
        inputs = _inputs(images, rows, backbone)
        features = []
        for view in range(views):
            key = f"{images.checksum(rows)} {backbone.checksum()} {config.resolution} view {view}"

            def plain(part: Indices, make: Any = inputs) -> torch.Tensor:
                return backbone.embed(make(torch.from_numpy(part)))

            def mirrored(part: Indices, make: Any = inputs) -> torch.Tensor:
                return backbone.embed(make(torch.from_numpy(part)).flip(-1))

            make = mirrored if view else plain
            features.append(_features(key, np.arange(len(rows)), make, backbone.num_features, progress))
        labels = torch.from_numpy(images.labels[rows])
        halves.append(Part(labels, torch.from_numpy(np.stack(features)), inputs, backbone.embed))
    source = f"{images.source} through {backbone.name} at {config.resolution} px"
    domains = None if images.domains is None else images.domains[chosen[0]]
    return Material(source, images.names, halves[0], halves[1], domains, backbone)


def _inputs(images: ImageSet, rows: Indices, backbone: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    def inputs(part: torch.Tensor) -> torch.Tensor:
        return torch.stack([backbone.prepare(images.image(int(i))) for i in rows[part.numpy()]])

    return inputs


def _features(
    key: str, rows: Indices, batch: Callable[[Indices], torch.Tensor], width: int, progress: bool
) -> NDArray[np.float32]:
    """Features of the rows a batch at a time, or from the cache."""

    def make() -> NDArray[np.float32]:
        out = np.empty((len(rows), width), dtype=np.float32)
        for start in tqdm(range(0, len(rows), BATCH), "features", disable=None if progress else True, leave=False):
            out[start : start + BATCH] = batch(rows[start : start + BATCH]).numpy()
        return out

    name = hashlib.sha256(key.encode()).hexdigest()[:32]
    return cached(cache_folder() / "features" / f"{name}.npz", make)[0]


def capped(labels: Indices, rows: Indices, cap: int | None) -> Indices:
    """At most `cap` of the rows of each class, in rising order: the same ones at every call."""
    if cap is None:
        return rows
    draws = Draws(0)
    return np.sort(np.concatenate([draws.shuffled(rows[labels[rows] == c])[:cap] for c in np.unique(labels[rows])]))
