"""A pytest plugin that puts FlyLoRA's configurations into the case lists of PEFT's own tests.

Run from the unpacked source distribution of PEFT, by test_acceptance.py; nothing of PEFT's tests is kept here.
"""

from __future__ import annotations

import itertools
import os
import sys
from typing import Any

import pytest

import flyk.adapters.peft
from flyk.adapters.peft import FlyLoraConfig

FULL, SPARSE = {"r": 8, "k": 8}, {"r": 8, "k": 2}  # k = r merges exactly, k < r does not merge
LAYERS: list[tuple[str, dict[str, Any]]] = [
    ("MLP", {"target_modules": "lin0"}),
    ("MLP", {"target_modules": ["lin0"]}),
    ("MLP", {"target_modules": ["lin0", "lin1"]}),
    ("MLP", {"target_modules": ["lin0"], "modules_to_save": ["lin1"]}),
    ("EmbConv1D", {"target_modules": ["conv1d"]}),
]
OPTIONS: list[dict[str, Any]] = [
    FULL,
    SPARSE,
    SPARSE | {"selection": "signed", "detach_input": True},
    FULL | {"save_projection": True},
    {"r": 4, "k": 4, "nnz": 1, "alpha": 8.0, "rank_pattern": {"lin1": 2}, "alpha_pattern": {"lin1": 3.0}},
]
CASES = [
    (f"FlyLoRA {number} {model}", model, FlyLoraConfig, layers | options)
    for number, ((model, layers), options) in enumerate(itertools.product(LAYERS, OPTIONS))
]
RANDOM = {"init_weights": False, **FULL}
LIN0, LIN1 = RANDOM | {"target_modules": "lin0"}, RANDOM | {"target_modules": "lin1"}
PAIRS = [
    ("FlyLoRA Same", "flylora", FlyLoraConfig, LIN0, LIN0),
    ("FlyLoRA Different", "flylora", FlyLoraConfig, LIN0, LIN1),
]


def mixed() -> list[tuple[str, FlyLoraConfig, FlyLoraConfig]]:
    def case(name: str, *options: dict[str, Any]) -> tuple[str, Any, Any]:
        return name, *(FlyLoraConfig(target_modules=["lin0"], init_weights=False, **each) for each in options)

    return [case("FlyLoRA mixed", FULL, {"r": 16, "k": 16}), case("FlyLoRA mixed winners", SPARSE, FULL)]


def skip_if_winners(model_id: str, config_cls: type, config_kwargs: dict[str, Any]) -> None:
    if config_kwargs.get("k", 8) < config_kwargs.get("r", 32):
        pytest.skip("FlyLoRA with k < r has no weight to merge: its winners depend on the input.")


def pytest_configure(config: pytest.Config) -> None:
    sys.path.insert(0, os.getcwd())
    from tests import test_config, test_custom_models, test_decoder_models, testing_common

    assert flyk.adapters.peft.FlyLoraConfig is FlyLoraConfig
    # The marks hold these very lists.
    test_custom_models.TEST_CASES[:] = CASES
    test_custom_models.ALL_PEFT_CONFIG_CLASSES[:] = [FlyLoraConfig]
    test_custom_models.MULTIPLE_ACTIVE_ADAPTERS_TEST_CASES[:] = PAIRS
    test_custom_models.MIXED_ADAPTER_TEST_CASES[:] = mixed()
    test_decoder_models.PEFT_DECODER_MODELS_TO_TEST[:] = [os.environ["FLYK_TINY_LLAMA"]]
    test_decoder_models.ALL_CONFIGS[:] = [(FlyLoraConfig, {"task_type": "CAUSAL_LM"} | o) for o in (FULL, SPARSE)]
    for module in (test_custom_models, test_decoder_models, testing_common):
        module._skip_if_merging_not_supported = skip_if_winners
    _replace_tuple(test_config.TestPeftConfig, test_config.ALL_CONFIG_CLASSES, ((FlyLoraConfig, {}),))
    test_config.LAYER_INDEXING_CONFIG_CLASSES[:] = [(FlyLoraConfig, {})]


def _replace_tuple(tests: type, theirs: tuple[Any, ...], ours: tuple[Any, ...]) -> None:
    """Where a mark holds a tuple it cannot be changed in place, so the mark is given another."""
    for test in vars(tests).values():
        for mark in getattr(test, "pytestmark", ()):
            if len(mark.args) > 1 and mark.args[1] is theirs:
                object.__setattr__(mark, "args", (mark.args[0], ours, *mark.args[2:]))
