"""Adapters on disk: whole after a round trip, small, and refused in a sentence where they do not fit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

from flyk.adapters import FlyLoRAModel, adapters, apply, load_adapter, save_adapter
from flyk.nn import FlyLoRALinear


def net(width: int = 8) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, width), nn.GELU(), nn.Linear(width, 4))


def trained(model: nn.Module) -> nn.Module:
    torch.manual_seed(1)
    for layer in adapters(model).values():
        nn.init.normal_(layer.B)
        if isinstance(layer, FlyLoRALinear):
            nn.init.normal_(layer.routing_bias, std=0.1)
        else:
            nn.init.normal_(layer.gate)
    return model


X = torch.linspace(-1, 1, 60).view(10, 6)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    model = trained(apply(net(), ["0", "2"], r=4, k=2, nnz=3, alpha=5.0, selection="signed", dropout=0.25, seed=7))
    save_adapter(model, tmp_path / "a.safetensors")
    return tmp_path / "a.safetensors"


def test_round_trip_into_a_base_model(saved: Path) -> None:
    model = trained(apply(net(), ["0", "2"], r=4, k=2, nnz=3, alpha=5.0, selection="signed", dropout=0.25, seed=7))
    again = net()
    assert load_adapter(again, saved) is again
    assert torch.equal(again.eval()(X), model.eval()(X))
    assert again[0].extra_repr() == model[0].extra_repr()
    assert again[0].dropout.p == 0.25
    assert {n for n, p in again.named_parameters() if p.requires_grad} == {"0.B", "2.B"}


def test_a_layer_of_other_inputs_is_refused(tmp_path: Path) -> None:
    """B fits both, and A is made anew: nothing but the file can tell."""
    save_adapter(apply(nn.Sequential(nn.Linear(6, 4)), "0", r=4, k=2, nnz=3), tmp_path / "a.safetensors")
    with pytest.raises(ValueError, match=r"model must have 6 inputs at '0' for .*, got 9"):
        load_adapter(nn.Sequential(nn.Linear(9, 4)), tmp_path / "a.safetensors")


def test_a_file_from_before_inputs_were_told_is_read(saved: Path) -> None:
    model = load_adapter(net(), altered(saved, lambda about: about.pop("inputs")))
    assert torch.equal(model.eval()(X), load_adapter(net(), saved).eval()(X))


def test_holds_what_was_trained_and_no_projection(saved: Path) -> None:
    assert set(load_file(saved)) == {"0.B", "0.routing_bias", "2.B", "2.routing_bias"}


def test_adapters_that_stand_there_are_replaced(saved: Path) -> None:
    model = load_adapter(apply(net(), ["0"], r=2, k=1), saved)
    assert torch.equal(model.eval()(X), load_adapter(net(), saved).eval()(X))
    assert isinstance(model[0].base, nn.Linear)


def test_a_layer_in_two_places(tmp_path: Path) -> None:
    def tied() -> nn.Module:
        layer = nn.Linear(6, 6)
        with torch.no_grad():
            layer.weight.copy_(torch.linspace(-1, 1, 36).view(6, 6))
        return nn.Sequential(layer, nn.GELU(), layer)

    model = trained(apply(tied(), "0", r=2, k=1))
    model[2] = model[0]
    save_adapter(model, tmp_path / "a.safetensors")
    again = load_adapter(tied(), tmp_path / "a.safetensors")
    assert again[0] is again[2]


def test_tasks_need_a_model_of_the_same_tasks(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    model = trained(
        FlyLoRAModel(
            net(),
            ["0"],
            rank=4,
            num_experts=2,
            sparsity=0.0,
            tasks=["a", "b"],
            temperature=0.5,
            learn_temperature=True,
            seed=3,
        )
    )
    model.base_model[0].log_temperature.data += 1.0
    save_adapter(model, path)
    again = load_adapter(FlyLoRAModel(net(), ["0"], tasks=["a", "b"]), path)
    for task in ("a", "b"):
        model.set_task(task)
        again.set_task(task)
        assert torch.equal(again.eval()(X), model.eval()(X))
    assert again.base_model[0].temperature == pytest.approx(0.5 * 2.718281828)
    assert again.base_model[0].gate.requires_grad
    assert again.base_model[0].log_temperature.requires_grad
    for other in (net(), FlyLoRAModel(net(), ["0"], tasks=["b", "a"])):
        with pytest.raises(ValueError, match=r"model must be the FlyLoRAModel of tasks \['a', 'b'\]"):
            load_adapter(other, path)


def test_into_another_dtype(saved: Path) -> None:
    model = load_adapter(net().bfloat16(), saved)
    assert model[0].B.dtype == torch.bfloat16
    assert model[0].routing_bias.dtype == torch.float32


def altered(saved: Path, change, tensors=None) -> Path:
    """A copy of the file with its settings changed, and tensors added or (by None) left out."""
    with safe_open(saved, "pt") as file:
        about = json.loads(file.metadata()["flyk"])
    held = load_file(saved) | (tensors or {})
    change(about)
    path = saved.with_name("altered.safetensors")
    save_file({k: t for k, t in held.items() if t is not None}, path, metadata={"flyk": json.dumps(about)})
    return path


def setting(**values):
    return lambda about: about["layers"]["0"].update(values)


BAD = {
    "r a string": (setting(r="8"), {}, "known settings"),
    "r a bool": (setting(r=True), {}, "known settings"),
    "r another": (setting(r=8), {}, r"0.B must have shape \(8, 8\).*got \(8, 4\)"),
    "r huge": (setting(r=10**15), {}, "rank of '0' must be from 1 to 1024 for 6 inputs and 8 outputs"),
    "r huge in the file too": (setting(r=2000), {"0.B": torch.zeros(8, 2000)}, "rank of '0' must be from 1 to 1024"),
    "k negative": (setting(k=-1), {}, "k must be from 1 to 4, got -1"),
    "k above r": (setting(k=5), {}, "k must be from 1 to 4, got 5"),
    "nnz huge": (setting(nnz=10**12), {}, "nnz must be from 1 to 6 for '0'"),
    "nnz zero": (setting(nnz=0), {}, "nnz must be from 1 to 6"),
    "seed negative": (setting(seed=-1), {}, "seed must be at least 0"),
    "seed beyond int64": (setting(seed=2**70), {}, "seed"),
    "alpha NaN": (setting(alpha=float("nan")), {}, "alpha must be finite"),
    "selection unknown": (setting(selection="os.system"), {}, "selection must be one of"),
    "dropout above 1": (setting(dropout=2.0), {}, "dropout must be from 0"),
    "a setting too many": (setting(base="evil"), {}, "known settings"),
    "form unknown": (setting(form="pickle"), {}, "known settings"),
    "form a list": (setting(form=[]), {}, "known settings"),
    "form null and no more": (lambda a: a["layers"].update({"0": {"form": None}}), {}, "known settings"),
    "version newer": (lambda a: a.update(version=2), {}, "version 1, got .* of version 2"),
    "no layers": (lambda a: a.pop("layers"), {}, "adapter that flyk saved"),
    "layers a list": (lambda a: a.update(layers=[1]), {}, "adapter that flyk saved"),
    "an entry a number": (lambda a: a["layers"].update({"0": 1}), {}, "adapter that flyk saved"),
    "another layer": (lambda a: a["layers"].update(x=a["layers"]["0"]), {}, "must have a linear layer 'x'"),
    "a layer not linear": (lambda a: a["layers"].update({"1": a["layers"]["0"]}), {}, "must have a linear layer '1'"),
    "no name": (lambda a: a["layers"].update({"": a["layers"]["0"]}), {}, "must have a linear layer ''"),
    "other inputs": (lambda a: a["inputs"].update({"0": 7}), {}, "model must have 7 inputs at '0' for .*, got 6"),
    "inputs a number": (lambda a: a.update(inputs=3), {}, "adapter that flyk saved"),
    "a tensor missing": (lambda a: None, {"2.B": None}, r"2.B must have shape \(4, 4\)"),
    "a tensor too many": (lambda a: None, {"x": torch.zeros(1)}, "x must have shape None"),
    "a tensor of ints": (lambda a: None, {"0.B": torch.zeros(8, 4, dtype=torch.int32)}, "0.B must be of a floating"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_file_that_does_not_fit_changes_nothing(saved: Path, case: str) -> None:
    change, tensors, sentence = BAD[case]
    model = net()
    with pytest.raises(ValueError, match=sentence):
        load_adapter(model, altered(saved, change, tensors))
    assert [type(m) for m in model] == [nn.Linear, nn.GELU, nn.Linear]
    assert all(p.requires_grad for p in model.parameters())


def test_a_file_cannot_reach_inside_an_adapter_or_past_one(saved: Path) -> None:
    """Names of a model's parts that no saved adapter has: an adapter's own base, or a weight that its parent reads."""
    about_inside = altered(saved, lambda a: a.update(layers={"0.base": a["layers"]["0"]}))
    with pytest.raises(ValueError, match=r"layers without an adapter, got '0\.base', which has one"):
        load_adapter(apply(net(), "0", r=4, k=2), about_inside)
    attention = nn.ModuleDict({"a": nn.MultiheadAttention(6, 2)})
    with pytest.raises(ValueError, match=r"got 'a.out_proj': nn.MultiheadAttention reads its weight"):
        load_adapter(attention, altered(saved, lambda a: a.update(layers={"a.out_proj": a["layers"]["0"]})))


def test_damaged_files(saved: Path, tmp_path: Path) -> None:
    whole = saved.read_bytes()
    for length in (0, 7, 50, len(whole) - 1):
        (tmp_path / "cut.safetensors").write_bytes(whole[:length])
        with pytest.raises(ValueError, match="path must name an adapter that can be read"):
            load_adapter(net(), tmp_path / "cut.safetensors")
    with pytest.raises(ValueError, match="that can be read"):
        load_adapter(net(), tmp_path / "none.safetensors")
    save_file({"0.B": torch.zeros(8, 4)}, tmp_path / "other.safetensors")
    with pytest.raises(ValueError, match="adapter that flyk saved"):
        load_adapter(net(), tmp_path / "other.safetensors")
    with pytest.raises(ValueError, match=r"path must end with .safetensors"):
        save_adapter(apply(net(), "0"), tmp_path / "a.bin")


def test_a_model_without_adapters_writes_nothing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="must have adapters"):
        save_adapter(net(), tmp_path / "a.safetensors")
    assert list(tmp_path.iterdir()) == []
