"""REAR in files: settings and statistics together, merged by `flyk merge`, and refused where they do not fit."""

from __future__ import annotations

import json

import pytest
import torch
from test_rear import D, M, T, fed, router, stream
from typer.testing import CliRunner

from flyk import checkpoint
from flyk.cli import app
from flyk.nn import REAR


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"dtype": torch.float32, "k": 5, "precision": "bf16x3"},
        {"kind": "sparse_sign", "nnz": 2, "activation": "none", "flush_rows": 3, "keep_factor": True, "ridge": 0.1},
        {"nonfinite": "drop", "seed": 2**63 - 1},
    ],
)
def test_a_router_comes_back_with_its_settings_and_goes_on(tmp_path, options):
    h, labels = stream(50)
    module = fed(h[:30], labels[:30], **options)
    module.save(tmp_path / "r.safetensors")
    again = REAR.load(tmp_path / "r.safetensors")
    assert again.settings() == module.settings()
    for either in (module, again):
        either.update(h[30:], labels[30:])
    assert torch.equal(again(h), module(h))
    assert torch.equal(again.G.tril(), module.G.tril())
    size = (tmp_path / "r.safetensors").stat().st_size
    assert size < module.G.element_size() * (M * (M + 1) // 2 + M * T) + 3000  # half of G


def test_rows_dropped_experts_added_and_large_matrices_come_back(tmp_path):
    module = REAR(3, 1, 1500, nonfinite="drop")  # of more than one panel
    module.add_expert()
    h = torch.randn(20, 3)
    h[4] = torch.nan
    module.update(h, 1)
    module.save(tmp_path / "r.safetensors")
    again = REAR.load(tmp_path / "r.safetensors")
    assert again.counts.tolist() == [0, 19]
    assert again.dropped.tolist() == [0, 1]
    assert torch.equal(again.G, module.G.tril())
    assert torch.equal(again.Q, module.Q)


def run(*arguments):
    return CliRunner().invoke(app, ["merge", *map(str, arguments)])


def test_merge_adds_files_up(tmp_path):
    parts = [fed(*stream(10 + i, i + 1, seed=i), num_experts=i + 1) for i in range(3)]
    names = [tmp_path / f"{i}.safetensors" for i in range(3)]
    for part, name in zip(parts, names, strict=True):
        part.save(name)
    out = tmp_path / "all.safetensors"
    done = run(*names, "-o", out)
    assert done.exit_code == 0, done.output
    assert f"{out}: 33 rows of 3 experts" in done.output
    joint = router(3)
    for part in parts:
        joint.merge_(part)
    assert torch.equal(REAR.load(out).solve(), joint.solve())
    done = run(names[0], names[1], "-o", names[0], "--json")  # in place of one of them
    assert json.loads(done.stdout)[-1] == {"file": str(names[0]), "rows": 21, "experts": 2}
    assert int(REAR.load(names[0]).counts.sum()) == 21


@pytest.mark.parametrize(
    ("name", "value"),
    [("seed", 2), ("activation", "none"), ("k", 3), ("ridge", 7.0), ("kind", "binary"), ("expansion", M + 1)],
)
def test_merge_refuses_what_does_not_go_together(tmp_path, name, value):
    fed(*stream()).save(tmp_path / "a.safetensors")
    options = {"expansion": M, "ridge": 0.5, "seed": 1, "dtype": torch.float64, name: value}
    if name == "kind":
        options["nnz"] = 2
    REAR(D, T, options.pop("expansion"), **options).save(tmp_path / "b.safetensors")
    done = run(tmp_path / "a.safetensors", tmp_path / "b.safetensors", "-o", tmp_path / "c.safetensors")
    assert done.exit_code == 2
    assert f"b.safetensors does not go with {tmp_path}/a.safetensors: other must have {name} " in done.output
    assert not (tmp_path / "c.safetensors").exists()


def test_merge_refuses_one_file_and_files_of_another_kind(tmp_path):
    fed(*stream()).save(tmp_path / "a.safetensors")
    done = run(tmp_path / "a.safetensors", "-o", tmp_path / "c.safetensors")
    assert (done.exit_code, done.output) == (2, "flyk merge: merge needs two files or more, got 1\n")
    done = run(tmp_path / "a.safetensors", tmp_path / "." / "a.safetensors", "-o", tmp_path / "c.safetensors")
    assert done.exit_code == 2
    assert "merge needs each file once, else its rows count twice" in done.output
    checkpoint.save(tmp_path / "b.safetensors", {"step": 1})
    done = run(tmp_path / "a.safetensors", tmp_path / "b.safetensors", "-o", tmp_path / "c.safetensors")
    assert done.exit_code == 2
    assert "path must name a REAR that flyk saved" in done.output
    done = run(tmp_path / "a.safetensors", tmp_path / "none.safetensors", "-o", tmp_path / "c.safetensors")
    assert done.exit_code == 2
    assert "path must name a checkpoint that can be read whole" in done.output


def setting(name, value):
    def change(state):
        state["settings"][name] = value

    return change


def statistic(name, change):
    def spoil(state):
        state["statistics"][name] = change(state["statistics"][name])

    return spoil


@pytest.mark.parametrize(
    "change",
    [
        setting("in_features", "6"),
        setting("in_features", 2**45),
        setting("expansion", 2**40),
        setting("expansion", -1),
        setting("flush_rows", 2**50),
        setting("num_experts", 2**50),
        setting("k", 0.5),
        setting("kind", "os.system"),
        setting("dtype", "float16"),
        setting("ridge", float("nan")),
        setting("something", 1),
        statistic("G", lambda t: t[:-1]),
        statistic("G", lambda t: t.half()),
        statistic("G", lambda t: t * torch.inf),
        statistic("Q", lambda t: t[:, :-1]),
        statistic("Q", lambda t: None),
        statistic("counts", lambda t: t.float()),
        statistic("counts", lambda t: "many"),
        lambda state: state.pop("form"),
        lambda state: state.update(form="TE2Head"),
        lambda state: state.update(settings=None),
        lambda state: state.update(statistics=[]),
    ],
)
def test_a_file_of_bad_contents_is_refused_and_takes_no_memory(tmp_path, change):
    fed(*stream()).save(tmp_path / "r.safetensors")
    state = checkpoint.load(tmp_path / "r.safetensors")
    change(state)
    checkpoint.save(tmp_path / "r.safetensors", state)
    if state.get("settings") and state["settings"]["num_experts"] == 2**50:
        assert REAR.load(tmp_path / "r.safetensors").num_experts == T  # as many as are there
        return
    with pytest.raises(ValueError, match=r"^path must name a REAR that flyk saved, got .*r\.safetensors: ") as error:
        REAR.load(tmp_path / "r.safetensors")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("state", [None, 3, "REAR", [], {}, torch.zeros(3), torch.zeros(()), {"form": "REAR"}])
def test_a_checkpoint_of_something_else_is_refused(tmp_path, state):
    checkpoint.save(tmp_path / "r.safetensors", state)
    with pytest.raises(ValueError, match=r"^path must name a REAR that flyk saved, got .*r\.safetensors: "):
        REAR.load(tmp_path / "r.safetensors")


def test_a_state_of_another_kind_is_refused_whole():
    h, labels = stream()
    module, before = fed(h, labels), fed(h, labels).solve()
    for options, sentence in (
        ({"k": 5}, r"kind must have k None, as this router, got 5"),
        ({"activation": "none"}, r"kind must have activation 'relu', as this router, got 'none'"),
        ({"kind": "binary", "nnz": 2}, r"kind must have kind 'gaussian', as this router, got 'binary'"),
    ):
        other = fed(h.flip(0), labels, seed=9, **options)
        with pytest.raises(RuntimeError, match=sentence):
            module.load_state_dict(other.state_dict())
        assert torch.equal(module.solve(), before)
        assert int(module.projection.seed) == 1  # R is still that of the statistics
    state = fed(h, labels, seed=9).state_dict()
    for spoiled in (torch.zeros(3), torch.tensor(list(b"{}"), dtype=torch.uint8), torch.tensor(1)):
        with pytest.raises(RuntimeError, match="kind must be the JSON that state_dict made"):
            module.load_state_dict(state | {"kind": spoiled})
    assert torch.equal(module.solve(), before)
    assert json.loads(bytes(state["kind"].tolist()))["in_features"] == D


def test_a_state_without_its_kind_is_missing_it_and_may_be_given_one():
    """As of an earlier flyk: nothing in it tells whether its G is of this router's expansion."""
    h, labels = stream()
    module, other = fed(h, labels), fed(h.flip(0), labels, seed=9)
    state = other.state_dict()
    del state["kind"]
    before = module.solve()
    with pytest.raises(RuntimeError, match=r'Missing key.* "kind"'):
        module.load_state_dict(state)
    assert module.load_state_dict(state, strict=False).missing_keys == ["kind"]
    assert torch.equal(module.solve(), before)
    assert int(module.projection.seed) == 1
    module.load_state_dict(state | {"kind": module.state_dict()["kind"]})
    assert torch.equal(module.solve(), other.solve())
