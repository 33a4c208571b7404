"""What a run is made of: a TOML file, checked key by key."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from flyk._packages import need
from flyk.continual.batch import AUGMENTATIONS
from flyk.continual.methods import METHODS, check_options, has_prompts, is_number, is_whole

BACKBONES = ("vit-s", "efficientnet", "minilm", "none")
STREAMS = ("si-blurry", "class", "domain", "joint")
MASKS = ("batch", "seen", "random", "none")
PRECISIONS = ("float32", "bf16")

CHOICES = {
    "method": tuple(METHODS),
    "backbone": BACKBONES,
    "stream": STREAMS,
    "mask": MASKS,
    "augment": AUGMENTATIONS,
    "precision": PRECISIONS,
}
MANY = 10**9
WHOLE = {  # the least and the largest
    "resolution": (14, MANY),
    "train_per_class": (1, MANY),
    "test_per_class": (1, MANY),
    "tasks": (1, 10**6),
    "passes": (1, MANY),
    "batch_size": (1, MANY),
    "online_iter": (1, MANY),
    "eval_every": (1, MANY),
    "seed": (0, 2**63 - 1),
}


@dataclass(frozen=True)
class Config:
    """The settings of one run.

    Attributes:
        method: one of METHODS; `options` are its own keyword arguments.
        data: a folder of classes, an .npz pack of images or of features, a torchvision set by name, or a .json.gz of
            texts; a variable of the environment such as $FLYK_DATA is filled in.
        backbone: "vit-s", "efficientnet", "minilm" (texts) or "none" (features).
        repair: a file of low-rank updates merged into "vit-s"; see flyk.continual.vit.
        resolution: pixels at the backbone's input.
        train_per_class, test_per_class: at most so many samples of each class, drawn once for all seeds; None for all.
        stream: "si-blurry" with `n` and `m` in %, "class", "domain", or "joint", all data shuffled, `passes` times.
        tasks: of the first two kinds of stream; `random_cuts` makes them unequal.
        batch_size: samples a batch.
        online_iter: optimizer steps a batch, each on a fresh augmentation.
        learning_rate: of Adam.
        prompt_rate: of Adam for all that is trained but the head; None for the same. Adam moves a logit by about the
            rate times the features' sum of magnitudes, and a prompt by the rate, so one rate seldom fits both.
        mask: classes that take part in the training loss: those of the "batch", those "seen" so far, the batch's and a
            "random" half of the others, or all ("none").
        augment: "none", "flip" or "crop".
        precision: of the prompted passes: "float32", or "bf16" by autocast.
        checkpointing: recompute the backbone's activations in the backward pass.
        eval_every: samples between two tests; tests at task ends come besides.
        seed: decides the stream and every start value.
    """

    method: str
    data: str
    options: Mapping[str, Any] = field(default_factory=dict)
    backbone: str = "vit-s"
    repair: str | None = None
    resolution: int = 112
    train_per_class: int | None = None
    test_per_class: int | None = None
    stream: str = "si-blurry"
    tasks: int = 10
    n: float = 50
    m: float = 10
    random_cuts: bool = False
    passes: int = 1
    batch_size: int = 64
    online_iter: int = 3
    learning_rate: float = 5e-3
    prompt_rate: float | None = None
    mask: str = "batch"
    augment: str = "flip"
    precision: str = "float32"
    checkpointing: bool = False
    eval_every: int = 1000
    seed: int = 0

    def __post_init__(self) -> None:
        optional = {one.name for one in fields(self) if one.default is None}
        for name, (low, high) in WHOLE.items():
            value = getattr(self, name)
            if value is None and name in optional:
                continue
            if not is_whole(value) or not low <= value <= high:
                raise ValueError(f"{name} must be a whole number from {low} to {high}, got {value!r}")
        for name, choices in CHOICES.items():
            if getattr(self, name) not in choices:
                raise ValueError(f"{name} must be one of {', '.join(choices)}, got {getattr(self, name)!r}")
        for name in ("random_cuts", "checkpointing"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name} must be true or false, got {getattr(self, name)!r}")
        for name in ("n", "m"):
            value = getattr(self, name)
            if not is_number(value) or not 0 <= value <= 100:
                raise ValueError(f"{name} must be a percentage from 0 to 100, got {value!r}")
        for name in ("learning_rate", "prompt_rate"):
            value = getattr(self, name)
            if not (value is None and name in optional) and not (is_number(value) and value > 0):
                raise ValueError(f"{name} must be a number above 0, got {value!r}")
        for name in ("data", "repair"):
            value = getattr(self, name)
            if not ((isinstance(value, str) and value) or (value is None and name in optional)):
                raise ValueError(f"{name} must be a name or path, got {value!r}")
        if self.passes > 1 and self.stream != "joint":
            raise ValueError(f"passes must be 1 but for the stream joint, got {self.passes} with {self.stream}")
        if self.backbone == "vit-s" and self.resolution % 14:
            raise ValueError(f"resolution must be a multiple of 14 for the backbone vit-s, got {self.resolution}")
        if self.repair is not None and self.backbone != "vit-s":
            raise ValueError(f"repair must be left out but for the backbone vit-s, got it with {self.backbone}")
        if not isinstance(self.options, Mapping):
            raise ValueError(f"options must be a table, got {self.options!r}")
        check_options(self.method, self.options)
        if self.backbone in ("efficientnet", "none") and has_prompts(self.method, self.options):
            raise ValueError(f"backbone must be vit-s or minilm for {self.method} with prompts, got {self.backbone}")


def load_config(path: Path, **changes: Any) -> Config:
    """The Config of a TOML file, with some keys set otherwise.

    Raises:
        ModuleNotFoundError: Python is older than 3.11 and tomli is not installed.
        ValueError: the file can't be read, lacks a key, has an unknown one or a value that does not fit.
    """
    toml = need("tomllib" if sys.version_info >= (3, 11) else "tomli", "pip install tomli (it is in flyk[continual])")
    try:
        settings = toml.loads(path.read_text(encoding="utf-8")) | changes
    except (OSError, UnicodeDecodeError, toml.TOMLDecodeError) as error:
        raise ValueError(f"config: {path} can't be read as TOML: {error}") from error
    return make_config(settings, str(path))


def make_config(settings: Mapping[str, Any], where: str) -> Config:
    """The Config of these keys.

    Raises:
        ValueError: a key is missing or unknown, or a value does not fit.
    """
    known = [one.name for one in fields(Config)]
    for key in settings:
        if key not in known:
            near = difflib.get_close_matches(key, known, 1)
            hint = f"; did you mean {near[0]}?" if near else f"; the keys are {', '.join(known)}"
            raise ValueError(f"config: {where} has the unknown key {key!r}{hint}")
    if missing := [key for key in ("method", "data") if key not in settings]:
        raise ValueError(f"config: {where} lacks {' and '.join(missing)}")
    try:
        return Config(**settings)
    except ValueError as error:
        raise ValueError(f"config: {where}: {error}") from error
