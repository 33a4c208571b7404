"""Checkpoints: what is stored comes back, and what is damaged, foreign, too new or cut off is refused in a sentence."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

from flyk import checkpoint
from flyk.nn import REAR, FlyLoRALinear, TE2Head


def same(a, b):
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and a.cpu().numpy().tobytes() == b.cpu().numpy().tobytes()
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and (a == b or a != a)


STATE = {
    "tensors": [torch.randn(3, 4), torch.arange(5), torch.tensor(2.5, dtype=torch.float64), torch.empty(0, 3)],
    "half": (torch.randn(3).half(), torch.tensor([True, False])),
    "numbers": {"step": 10**20, 3: 0.1, "none": None, "no": False, "text": "größe", "infinite": float("inf")},
    "a.b": torch.ones(1),
    "a": {"b": torch.zeros(1)},
    "empty": [{}, [], ()],
}


def test_a_tree_comes_back_as_it_was(tmp_path):
    path = tmp_path / "deep" / "state.safetensors"
    checkpoint.save(path, STATE)
    assert same(checkpoint.load(path), STATE)
    checkpoint.save(path, 7)  # in place of the old one
    assert checkpoint.load(path) == 7
    assert [p.name for p in path.parent.iterdir()] == ["state.safetensors"]


def test_tensors_of_one_memory_and_of_any_strides(tmp_path):
    whole = torch.arange(12.0).view(3, 4)
    state = {
        "a": whole,
        "b": whole,
        "row": whole[1],
        "flat": whole.view(-1),
        "turned": whole.t(),
        "wide": whole[:, :1].expand(3, 5),
    }
    checkpoint.save(tmp_path / "x.safetensors", state)
    found = checkpoint.load(tmp_path / "x.safetensors")
    assert all(torch.equal(found[name], state[name]) for name in state)
    with safe_open(tmp_path / "x.safetensors", "pt") as file:
        assert len(list(file.keys())) == 5  # a and b are one


def test_modules_and_their_optimizer_go_on_as_if_nothing_had_happened(tmp_path):
    def made():
        torch.manual_seed(0)
        head = TE2Head(6, 4, 3)
        model = nn.ModuleDict({"lora": FlyLoRALinear(6, 6, 4, 2), "router": REAR(6, 3, 20), "head": head})
        return model, torch.optim.AdamW(model.parameters(), lr=0.1)

    def step(model, optimizer, i):
        h = torch.randn(8, 6, generator=torch.Generator().manual_seed(i))
        if i == 0:
            model["head"].start_expert(1)
        model["router"].update(h, i % 3)
        model["head"](model["lora"](h)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        model["head"].ema_step()

    whole, other = made(), made()
    for i in range(6):
        step(*whole, i)
        whole[0].state_dict()  # flushes where the other one's checkpoint does
    for i in range(3):
        step(*other, i)
        other[0].state_dict()
    state = {"model": other[0].state_dict(), "optimizer": other[1].state_dict()}
    checkpoint.save(tmp_path / "x.safetensors", state)
    resumed, found = made(), checkpoint.load(tmp_path / "x.safetensors")
    resumed[0].load_state_dict(found["model"])
    resumed[1].load_state_dict(found["optimizer"])
    for i in range(3, 6):
        step(*resumed, i)
        resumed[0].state_dict()
    assert resumed[0]["head"].current == 1
    assert same(dict(resumed[0].state_dict()), dict(whole[0].state_dict()))


@pytest.mark.parametrize(
    ("state", "error", "sentence"),
    [
        ({"a": object()}, TypeError, r"state\.a must be a tensor, number, string, None or a container, got object"),
        ({"a": [torch.float32]}, TypeError, r"state\.a\.0 must be a tensor, .* got dtype"),
        ({(1, 2): 3}, TypeError, r"state must have keys of str or int, got tuple"),
        ({True: 3}, TypeError, r"state must have keys of str or int, got bool"),
        (
            torch.zeros(2, dtype=torch.complex64),
            ValueError,
            r"state must be a dense real tensor .* got torch.complex64",
        ),
        (torch.zeros(2, device="meta"), ValueError, r"state must be a dense real tensor that holds data"),
        (torch.zeros(2, 2).to_sparse(), ValueError, r"state must be a dense real tensor .* torch.sparse_coo"),
    ],
)
def test_what_cannot_be_stored_is_refused_before_the_old_file_is_touched(tmp_path, state, error, sentence):
    path = tmp_path / "x.safetensors"
    checkpoint.save(path, 1)
    with pytest.raises(error, match=f"^{sentence}"):
        checkpoint.save(path, state)
    assert checkpoint.load(path) == 1


def spoil(path, change):
    about = None
    with safe_open(path, "pt") as file:
        about = json.loads(file.metadata()["flyk"])
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    metadata = change(about, tensors)
    save_file(tensors, path, metadata={"flyk": json.dumps(about)} if metadata is None else metadata)


def newer(about, _):
    about["version"] = 2


def another_number(about, _):
    about["state"]["dict"][0][1] = 8


def another_tensor(_, tensors):
    tensors["state.t"][0] += 1


def renamed(_, tensors):
    tensors["state.u"] = tensors.pop("state.t")


def no_checksum(about, _):
    del about["checksum"]


def deep(about, _):
    return {"flyk": '{"version": 1, "checksum": "", "state": ' + "[" * 100000 + "]" * 100000 + "}"}


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (newer, r"path must name a checkpoint of version 1, got .* of version 2"),
        (another_number, r"path must name a checkpoint as it was written, got .* whose checksum does not hold"),
        (another_tensor, r"path must name a checkpoint as it was written, got .* whose checksum does not hold"),
        (renamed, r"path must name a checkpoint as it was written, got .* whose checksum does not hold"),
        (no_checksum, r"path must name a checkpoint as it was written, got .* whose checksum does not hold"),
        (deep, r"path must name a checkpoint that flyk saved, got .* which does not say so"),
        (lambda *_: {"other": "1"}, r"path must name a checkpoint that flyk saved, got .* which does not say so"),
        (lambda *_: {"flyk": "[]"}, r"path must name a checkpoint that flyk saved, got .* which does not say so"),
    ],
)
def test_altered_files_are_refused_in_a_sentence(tmp_path, change, sentence):
    path = tmp_path / "x.safetensors"
    checkpoint.save(path, {"step": 7, "t": torch.arange(4)})
    spoil(path, change)
    with pytest.raises(ValueError, match=f"^{sentence}"):
        checkpoint.load(path)


def test_truncated_missing_and_foreign_files_are_refused(tmp_path):
    path = tmp_path / "x.safetensors"
    checkpoint.save(path, STATE)
    whole = path.read_bytes()
    for length in (0, 1, 7, 8, 100, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError, match=r"^path must name a checkpoint that can be read whole, got "):
            checkpoint.load(path)
    path.write_bytes(b"GIF89a" * 100)
    for missing in (path, tmp_path / "no.safetensors", tmp_path / "folder.safetensors"):
        (tmp_path / "folder.safetensors").mkdir(exist_ok=True)
        with pytest.raises(ValueError, match=r"^path must name a checkpoint that can be read whole, got "):
            checkpoint.load(missing)
    for name in ("x.pt", "x"):
        with pytest.raises(ValueError, match=rf"^path must end with \.safetensors, got {name}"):
            checkpoint.save(name, 1)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    path = tmp_path_factory.mktemp("fuzz") / "x.safetensors"
    checkpoint.save(path, STATE)
    return path, path.read_bytes()


@settings(max_examples=int(os.environ.get("FLYK_FUZZ", 200)))
@given(data=st.data())
def test_of_a_file_with_any_bytes_changed_nothing_else_is_read(written, data):
    path, whole = written
    content = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    path.write_bytes(content)
    try:
        found = checkpoint.load(path)
    except ValueError as error:
        found = str(error)
    # Or nothing was lost: white space of the JSON, or a tensor's place in the file.
    assert (isinstance(found, str) and "\n" not in found) or same(found, STATE)


FULL = """
import resource, sys, torch
from flyk import checkpoint
path = sys.argv[1]
checkpoint.save(path, {"t": torch.zeros(100)})
resource.setrlimit(resource.RLIMIT_FSIZE, (10000, 10000))  # as a full disk: the write fails half-way
try:
    checkpoint.save(path, {"t": torch.ones(10**5)})
except OSError as error:
    print(error)
assert not checkpoint.load(path)["t"].any()
"""


def test_a_full_disk_leaves_the_old_checkpoint_intact(tmp_path):
    pytest.importorskip("resource")
    path = tmp_path / "x.safetensors"
    command = [sys.executable, "-c", FULL, str(path)]
    ran = subprocess.run(command, cwd=Path(__file__).parents[1], capture_output=True, text=True, check=True)
    assert ran.stdout.startswith(f"{path} could not be written and is as it was before: ")
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
