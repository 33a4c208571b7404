"""Adapter files and PEFT settings with anything in them: loaded, or refused in a sentence and nothing half done."""

from __future__ import annotations

import copy
import json
import os

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

from flyk import adapters

CASES = max(100, int(os.environ.get("FLYK_FUZZ", 0)) // 10)
ANYTHING = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-3, 9),
        st.sampled_from([2**31, 2**63, -(2**70), "", "r", "0", "top-k", "../x", "os.system"]),
        st.floats(),
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["r", "form", "x"]), inner, max_size=3),
    max_leaves=4,
)


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4))


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("fuzz") / "a.safetensors"
    made = adapters.apply(model(), ["0", "2"], r=4, k=2)
    adapters.save_adapter(made, path)
    with safe_open(path, "pt") as file:
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        return path, json.loads(file.metadata()["flyk"]), tensors


def spots(tree, at=()):
    """Where values stand in a tree of dicts."""
    for key, value in tree.items():
        yield (*at, key)
        if isinstance(value, dict):
            yield from spots(value, (*at, key))


@settings(max_examples=CASES, derandomize="FLYK_FUZZ" not in os.environ)
@given(data=st.data())
def test_an_adapter_file_of_any_settings_is_loaded_or_refused_in_a_sentence(saved, data):
    path, about, tensors = saved
    about = copy.deepcopy(about)
    *folders, key = data.draw(st.sampled_from(list(spots(about))))
    inside = about
    for folder in folders:
        inside = inside[folder]
    change = data.draw(st.sampled_from(["set", "delete", "add"]))
    if change == "delete":
        del inside[key]
    else:
        inside[key if change == "set" else "more"] = data.draw(ANYTHING)
    spoiled = path.with_name("spoiled.safetensors")
    save_file(tensors, spoiled, metadata={"flyk": json.dumps(about)})
    target = model()
    before = copy.deepcopy(target)
    try:
        adapters.load_adapter(target, spoiled)
    except ValueError as error:
        refused = str(error)
    else:
        refused = ""
    x = torch.randn(3, 6)
    assert "\n" not in refused
    assert target(x).shape == (3, 4)
    if refused:
        assert [type(module) for module in target] == [type(module) for module in before]
        assert torch.equal(target(x), before(x))


@settings(max_examples=CASES, derandomize="FLYK_FUZZ" not in os.environ)
@given(data=st.data())
def test_peft_settings_of_any_kind_are_taken_or_refused_in_a_sentence(data):
    pytest.importorskip("peft")
    from flyk.adapters.peft import FlyLoraConfig

    names = ["r", "k", "nnz", "alpha", "dropout", "selection", "seed", "bias_update_rate", "save_projection", "bias"]
    names += ["target_modules", "rank_pattern", "alpha_pattern", "layers_to_transform", "detach_input"]
    chosen = data.draw(st.dictionaries(st.sampled_from(names), ANYTHING, min_size=1, max_size=3))
    try:
        config = FlyLoraConfig(**{"target_modules": ["0"]} | chosen)
    except (ValueError, TypeError) as error:
        refused = str(error)
    else:
        refused = ""
    assert "\n" not in refused
    assert refused or 1 <= config.k <= config.r
