"""FlyLoraConfig: what PEFT keeps of a FlyLoRA adapter, checked before anything is made of it."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from peft.config import PeftConfig

from flyk.adapters.peft._type import FLYLORA
from flyk.nn import _check
from flyk.ops._check import SELECTIONS, choice

LARGEST_RANK = 1 << 16
WEIGHTS, PICKLED = "adapter_model.safetensors", "adapter_model.bin"
NAME, WAYS = 64, 1 << 20  # letters of a usual name; the most ways of matching one that a pattern may have


@dataclass
class FlyLoraConfig(PeftConfig):
    """Configuration of a FlyLoRA adapter, arXiv 2510.08396; see `flyk.nn.FlyLoRALinear`.

    A configuration may come from a stranger with a downloaded adapter, so every field is checked for type and range
    here, and patterns that could take forever to match are refused.

    Args:
        r: ranks.
        k: ranks that a token uses, from 1 to r. Merging into the base is exact for k = r alone.
        target_modules: names of linear layers, or their ends after a dot; "all-linear"; or a pattern for whole names.
        exclude_modules: the same, of layers that are left alone.
        alpha: the update is scaled by alpha / r; 2r where None.
        dropout: probability with which entries of the adapter's input are zeroed in training.
        nnz: entries of each row of A; in_features * k // r where None.
        selection: "magnitude", "signed" or "biased_magnitude".
        bias_update_rate: u of Eq. 9, what `flyk.adapters.update_routing_bias` moves a bias by.
        rank_pattern, alpha_pattern: r and alpha of layers whose names fit a key, in place of the above.
        modules_to_save: names of other modules that are trained and saved whole.
        layers_to_transform, layers_pattern: numbers of the blocks to adapt, and the name of the list that holds them.
        fan_in_fan_out: whether the base keeps its weight transposed; set right by itself for GPT-2's Conv1D.
        bias: "none", or whose biases are trained too, as PEFT means it: "all" or "flylora_only". Disabling an adapter
            does not undo them.
        seed: of A; each layer's own is made from it and the layer's name. Adapters that will be merged must have
            different seeds.
        save_projection: also save A, which the seed gives again on every machine.
        init_weights: False starts B at random and not at zero, as PEFT's own tests ask.
        detach_input: no gradient to x through the adapter, as the published fork.

    Raises:
        ValueError, TypeError: a field that does not fit.
    """

    r: int = 32
    k: int = 8
    target_modules: list[str] | str | None = None
    exclude_modules: list[str] | str | None = None
    alpha: float | None = None
    dropout: float = 0.0
    nnz: int | None = None
    selection: str = "magnitude"
    bias_update_rate: float = 1e-3
    rank_pattern: dict[str, int] = field(default_factory=dict)
    alpha_pattern: dict[str, float] = field(default_factory=dict)
    modules_to_save: list[str] | None = None
    layers_to_transform: list[int] | int | None = None
    layers_pattern: list[str] | str | None = None
    fan_in_fan_out: bool = False
    bias: str = "none"
    seed: int = 0
    save_projection: bool = False
    init_weights: bool = True
    detach_input: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.peft_type = FLYLORA
        self._check_numbers()
        for name in ("fan_in_fan_out", "save_projection", "init_weights", "detach_input", "inference_mode"):
            if not isinstance(getattr(self, name), bool):
                raise TypeError(f"{name} must be True or False, got {getattr(self, name)!r}")
        choice("selection", self.selection, SELECTIONS)
        choice("bias", self.bias, ("none", "all", "flylora_only"))
        for name in ("target_modules", "exclude_modules", "layers_pattern", "modules_to_save"):
            setattr(self, name, _patterns(name, getattr(self, name), as_set=name.endswith("_modules")))
        if isinstance(self.modules_to_save, str):  # whose letters PEFT would take for names
            self.modules_to_save = [self.modules_to_save]
        if self.layers_pattern and self.layers_to_transform is None:
            raise ValueError(f"layers_to_transform must be given with layers_pattern {self.layers_pattern!r}, got None")

    def _check_numbers(self) -> None:
        self.r = _rank("r", self.r)
        self.k = _check.integer("k", _no_bool("k", self.k), 1, self.r)
        self.seed = _check.integer("seed", _no_bool("seed", self.seed), 0, 2**63 - 1)
        if self.nnz is not None:
            self.nnz = _check.integer("nnz", _no_bool("nnz", self.nnz), 1)
        if self.alpha is not None:
            self.alpha = _check.number("alpha", _no_bool("alpha", self.alpha), 0)
        self.dropout = _check.number("dropout", _no_bool("dropout", self.dropout), 0, 1)
        rate = _no_bool("bias_update_rate", self.bias_update_rate)
        self.bias_update_rate = _check.number("bias_update_rate", rate, 0)
        numbers = self.layers_to_transform
        for number in numbers if isinstance(numbers, (list, tuple, set)) else [] if numbers is None else [numbers]:
            _check.integer("layers_to_transform", _no_bool("layers_to_transform", number), 0)
        for name in ("rank_pattern", "alpha_pattern"):
            if not isinstance(getattr(self, name), Mapping):
                raise TypeError(f"{name} must be a dict of names, got {type(getattr(self, name)).__name__}")
            _patterns(name, list(getattr(self, name)), as_set=False)
        self.rank_pattern = {key: _rank("rank_pattern", r) for key, r in self.rank_pattern.items()}
        self.alpha_pattern = {
            key: _check.number("alpha_pattern", _no_bool("alpha_pattern", a), 0)
            for key, a in self.alpha_pattern.items()
        }

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str, subfolder: str | None = None, **kwargs: Any) -> Any:
        """As PEFT's; a folder that holds its tensors as a pickle alone is refused, which PEFT would open."""
        folder = Path(pretrained_model_name_or_path, subfolder or "")
        if (folder / PICKLED).exists() and not (folder / WEIGHTS).exists():
            raise ValueError(f"an adapter's folder must hold {WEIGHTS}, got a pickle, {PICKLED}, in {folder}")
        return super().from_pretrained(pretrained_model_name_or_path, subfolder=subfolder, **kwargs)


def _no_bool(name: str, value: Any) -> Any:
    if isinstance(value, bool):
        raise TypeError(f"{name} must be a number, got {value}")
    return value


def _rank(name: str, value: Any) -> int:
    return _check.integer(name, _no_bool(name, value), 1, LARGEST_RANK)


def _patterns(name: str, value: str | Iterable[str] | None, as_set: bool) -> Any:
    """Names as given; a list as a set, for modules, as PEFT keeps them."""
    if value is None:
        return None
    if not isinstance(value, (str, list, tuple, set)):
        raise TypeError(f"{name} must be names or a pattern, got {type(value).__name__}")
    # PEFT tries target_modules and exclude_modules on whole names, the others after ".*" and a dot, if any.
    before = "" if name in ("target_modules", "exclude_modules") else ".*?"
    for text in [value] if isinstance(value, str) else value:
        if not isinstance(text, str):
            raise TypeError(f"{name} must be names or a pattern, got {text!r}")
        if _ways(before + text) > WAYS:
            raise ValueError(
                f"{name} must be a pattern that cannot take long: of few repetitions and options, none of a group, and "
                f"no (? but (?:, got {text[:80]!r}"
            )
        try:
            re.compile(text)
        except (re.error, OverflowError, RecursionError) as error:
            raise ValueError(f"{name} must be names or a pattern, got {text[:80]!r}: {error}") from None
    return set(value) if as_set and not isinstance(value, str) else value


def _ways(pattern: str) -> float:
    """At least the number of ways in which the matcher may try a name before it gives up; each costs it a step.

    Infinite where a group is repeated, which can be exponential in the name, and where flags or comments could hide
    that.
    """
    plain = pattern.replace("(?:", "(")
    if len(pattern) > 500 or re.search(r"\)[*+{]|\(\?", plain):
        return math.inf
    repetitions, options = sum(map(plain.count, "*+{")), plain.count("?")
    return NAME**repetitions * 2**options * math.prod(1 + part.count("|") for part in plain.split(")"))
