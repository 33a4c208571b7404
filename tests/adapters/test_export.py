"""Merged models as programs: the same outputs, of any batch size, in int8 with a measured change."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from flyk.adapters import FlyLoRAModel, adapters, apply, export, merge


def net(k: int = 2) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Dropout(0.5), nn.Linear(64, 10))
    apply(model, ["0", "3"], r=4, k=k)
    for layer in adapters(model).values():
        nn.init.normal_(layer.B, std=0.3)
    return model


X = torch.randn(50, 32, generator=torch.Generator().manual_seed(0))


def test_a_program_gives_the_merged_model_s_outputs_for_any_batch(tmp_path: Path) -> None:
    model = net()
    assert merge(model, approximate=True, inputs=[X]) > 0.01
    model[0].eval()
    program, report = export(model, [X[:8], (X,), X[:3]], tmp_path / "a.pt2")
    assert report["change"] == pytest.approx(0, abs=1e-6)
    assert report["agreement"] == 1
    assert [module.training for module in model] == [False, True, True, True]
    again = torch.export.load(tmp_path / "a.pt2").module()
    for found in (program.module(), again):
        torch.testing.assert_close(found(X[:5]), model.eval()(X[:5]))


def test_merged_tasks_and_keyword_arguments() -> None:
    base = nn.Sequential(nn.Linear(32, 10))
    merged = FlyLoRAModel(base, "0", tasks=["a", "b"]).merge_and_unload("b")
    program, _ = export(merged, [{"input": X[:4]}])
    torch.testing.assert_close(program.module()(input=X), merged(X))


def test_int8_reports_what_it_changes(tmp_path: Path) -> None:
    pytest.importorskip("torchao", exc_type=ImportError)
    model = net(k=4)
    merge(model)
    weights = [p.clone() for p in model.parameters()]
    program, report = export(model, [X], tmp_path / "a.pt2", int8=True)
    out, right = program.module()(X).detach(), model.eval()(X).detach()
    assert report["change"] == pytest.approx(float((out - right).norm() / right.norm()), rel=1e-4)
    assert 1e-4 < report["change"] < 0.03
    assert report["agreement"] == float((out.argmax(1) == right.argmax(1)).double().mean())
    assert 0.9 < report["agreement"] <= 1
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), weights, strict=True))
    torch.testing.assert_close(torch.export.load(tmp_path / "a.pt2").module()(X), out)


def test_int8_without_torchao_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchao", None)
    monkeypatch.setitem(sys.modules, "torchao.quantization", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'flyk\[export\]'"):
        export(nn.Sequential(nn.Linear(32, 4)), [X], int8=True)


def test_a_language_model(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = apply(transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=50, **sizes)), "q_proj", r=4, k=4)
    merge(model)
    batches = [{"input_ids": torch.arange(a * b).view(a, b) % 50, "use_cache": False} for a, b in ((2, 7), (3, 11))]
    program, report = export(model, batches)
    assert report["change"] < 1e-5
    assert program.module()(**batches[1]).logits.shape == (3, 11, 50)


@pytest.mark.parametrize("measure", [export, lambda model, inputs: merge(model, inputs=inputs)])
def test_one_batch_in_the_place_of_many_is_refused(measure) -> None:
    for inputs in (X, {"input": X}, 3):
        with pytest.raises(TypeError, match=f"inputs must be a list of batches .*, got a {type(inputs).__name__}"):
            measure(net(k=4), inputs)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((net(), [X]), "model must hold no adapter: merge them first, got one at '0'"),
        ((nn.Linear(32, 4), []), "inputs must be at least one batch, got none"),
        ((nn.Linear(32, 4), [X], "a.onnx"), "path must end with .pt2, got a.onnx"),
    ],
)
def test_refuses(arguments, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        export(*arguments)
