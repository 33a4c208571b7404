"""Every key of a config is checked, in a sentence that names it."""

import inspect

import pytest

from flyk.continual.config import load_config, make_config
from flyk.continual.methods import KINDS, METHODS, _class

GOOD = {"method": "flyprompt", "data": "x.npz"}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"method": "magic"}, "method must be one of flyprompt, "),
        ({"data": ""}, "data must be a name or path"),
        ({"data": 3}, "data must be a name or path, got 3"),
        ({"repair": 1}, "repair must be"),
        ({"backbone": "resnet"}, "backbone must be one of vit-s, "),
        ({"stream": "river"}, "stream must be one of si-blurry, "),
        ({"mask": "some"}, "mask must be one of batch, "),
        ({"augment": "blur"}, "augment must be one of none, flip, crop"),
        ({"precision": "fp8"}, "precision must be one of float32, bf16"),
        ({"resolution": 8}, "resolution must be a whole number from 14 to 1000000000, got 8"),
        ({"train_per_class": 0}, "train_per_class must be"),
        ({"test_per_class": 1.5}, "test_per_class must be"),
        ({"tasks": 0}, "tasks must be"),
        ({"tasks": True}, "tasks must be a whole number from 1 to 1000000, got True"),
        ({"tasks": "10"}, "tasks must be"),
        ({"passes": 0}, "passes must be"),
        ({"resolution": 100}, "resolution must be a multiple of 14 for the backbone vit-s, got 100"),
        ({"passes": 2}, "passes must be 1 but for the stream joint, got 2 with si-blurry"),
        ({"repair": "r", "backbone": "none"}, "repair must be left out but for the backbone vit-s, got it with none"),
        ({"batch_size": 0}, "batch_size must be"),
        ({"online_iter": 0}, "online_iter must be"),
        ({"eval_every": -1}, "eval_every must be a whole number from 1 to 1000000000, got -1"),
        ({"seed": -1}, "seed must be"),
        ({"n": 101}, "n must be a percentage"),
        ({"m": float("nan")}, "m must be a percentage"),
        ({"learning_rate": 0}, "learning_rate must be a number above 0"),
        ({"learning_rate": 10**400}, "learning_rate must be a number above 0"),
        ({"learning_rate": float("inf")}, "learning_rate must be"),
        ({"prompt_rate": -1}, "prompt_rate must be a number above 0"),
        ({"random_cuts": 1}, "random_cuts must be true or false"),
        ({"checkpointing": "no"}, "checkpointing must be true or false"),
        ({"options": [1]}, "options must be a table"),
        ({"options": {"depth": 3}}, "the method flyprompt has no option 'depth'; its options are prompt_length, "),
        ({"method": "ncm", "options": {"k": 3}}, "the method ncm has no option 'k'; it has none"),
        ({"options": {"winners": "a"}}, "options: winners must be a whole number, got 'a'"),
        ({"options": {"sparse": True}}, "options: sparse must be a whole number, got True"),
        ({"options": {"keep_factor": "no"}}, "options: keep_factor must be true or false, got 'no'"),
        ({"options": {"ridge": "a"}}, "options: ridge must be a finite number, got 'a'"),
        ({"method": "l2p", "options": {"pull": float("nan")}}, "options: pull must be a finite number, got nan"),
        ({"options": {"decays": 0.9}}, "options: decays must be a list of numbers, got 0.9"),
        ({"options": {"decays": ["a"]}}, "options: decays must be a list of numbers, got ['a']"),
        ({"options": {"router": ["ridge"]}}, "options: router must be a string, got ['ridge']"),
        ({"method": "ranpac", "options": {"ridges": 3}}, "options: ridges must be a list of numbers, got 3"),
        ({"seed": 2**63}, "seed must be a whole number from 0 to 9223372036854775807"),
        ({"tasks": 10**7}, "tasks must be a whole number from 1 to 1000000"),
        ({"options": {"prompt_length": -1}}, "options: prompt_length must be from 0 to 1000000, got -1"),
        ({"options": {"num_experts": 10**9}}, "options: num_experts must be from 1 to 1000000, got 1000000000"),
        ({"options": {"router": "prototype", "ridge": -3.0}}, "options: ridge must be at least 0, got -3.0"),
        ({"method": "codaprompt", "options": {"components": 0}}, "components must be from 1 to 1000000, got 0"),
        ({"method": "mvp", "options": {"pool_size": -1}}, "options: pool_size must be from 1 to 1000000, got -1"),
        ({"method": "l2p", "backbone": "efficientnet"}, "backbone must be vit-s or minilm for l2p with prompts"),
        ({"backbone": "none", "augment": "none"}, "backbone must be vit-s or minilm for flyprompt with prompts"),
        ({"batchsize": 3}, "unknown key 'batchsize'; did you mean batch_size"),
        ({"zzz": 3}, "unknown key 'zzz'; the keys are method, data, "),
    ],
)
def test_a_bad_key_is_named(change, words):
    with pytest.raises(ValueError, match="config: here") as caught:
        make_config(GOOD | change, "here")
    assert words in str(caught.value)


def test_a_missing_key_is_named():
    with pytest.raises(ValueError, match="lacks method and data"):
        make_config({}, "here")


def test_adam_is_the_default_and_the_only_optimizer():
    """Published fault: the config's default is SGD where the paper's numbers are Adam's."""
    import torch
    from made_material import tiny_vit

    from flyk.continual.methods import METHODS, Setting, make_method
    from flyk.continual.methods.base import TrainedMethod

    setting = Setting(32, 4, num_tasks=2, backbone=tiny_vit(), learning_rate=make_config(GOOD, "here").learning_rate)
    for name in METHODS:
        layers = {"prompt_layers": 2} if name in ("flyprompt", "l2p", "codaprompt", "mvp", "misa") else {}
        layers = layers or ({"general": 1, "special": 1} if name == "dualprompt" else {})
        method = make_method(name, setting, layers | ({"expansion": 8} if name in ("flyprompt", "ranpac") else {}))
        if isinstance(method, TrainedMethod):
            assert type(method.optimizer) is torch.optim.Adam
            assert all(group["lr"] == 5e-3 for group in method.optimizer.param_groups)
        method.close()


def test_a_file_is_read_and_changed(tmp_path):
    path = tmp_path / "a.toml"
    path.write_text('method = "flyprompt"\ndata = "x.npz"\nn = 30\n[options]\nexpansion = 5\n')
    config = load_config(path, seed=4)
    assert (config.n, config.seed, config.options) == (30, 4, {"expansion": 5})


@pytest.mark.parametrize("text", [None, "method =", "\xff"])
def test_a_file_that_is_no_toml_is_named(tmp_path, text):
    path = tmp_path / "a.toml"
    if text is not None:
        path.write_bytes(text.encode("latin-1"))
    with pytest.raises(ValueError, match=r"a\.toml can't be read as TOML"):
        load_config(path)


def test_every_option_is_of_a_kind_that_can_be_checked():
    for method in METHODS:
        for name, one in inspect.signature(_class(method)).parameters.items():
            if one.kind == one.KEYWORD_ONLY:
                assert one.annotation.removesuffix(" | None") in KINDS, (method, name)
