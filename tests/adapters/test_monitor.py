"""The routing as numbers, as a callback, as a picture; and where tasks conflict."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from flyk.adapters import FlyLoRAModel, RoutingMonitor, adapters, apply, task_conflict
from flyk.adapters.monitor import winners
from flyk.nn import FlyLoRALinear


def net(r: int = 8, k: int = 2, **options) -> nn.Module:
    torch.manual_seed(0)
    return apply(nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 4)), ["0", "2"], r=r, k=k, **options)


def test_counts_what_the_layer_counts() -> None:
    model = net(dropout=0.0).train()
    x = torch.randn(3, 50, 16)
    with RoutingMonitor(model) as monitor:
        model(x)
        model(x[:1])
    for name, layer in adapters(model).items():
        assert torch.equal(monitor.together[name].diagonal(), layer.counts)
        assert monitor.tokens[name] == 200
    model(x)
    assert monitor.tokens["0"] == 200  # closed
    assert all(not m._forward_pre_hooks for m in model.modules())
    monitor.reset()
    assert monitor.tokens["0"] == 0


def test_watching_changes_no_result() -> None:
    model, x = net(), torch.randn(20, 16)
    out = model(x)
    with RoutingMonitor(model):
        assert torch.equal(model(x), out)


def test_opened_again_counts_once_and_a_measurement_leaves_each_mode() -> None:
    model, x = net(), torch.randn(20, 16)
    monitor = RoutingMonitor(model)
    monitor.__enter__()  # as before a training that broke off
    model[1].eval()
    with monitor:
        model(x)
    assert monitor.tokens["0"] == 20
    assert all(not m._forward_pre_hooks for m in model.modules())
    task_conflict(model, {"a": [x]})
    assert [m.training for m in model] == [True, False, True]


def test_report_by_hand() -> None:
    model = apply(nn.Sequential(nn.Linear(4, 2)), "0", r=4, k=2, nnz=4, selection="signed")
    layer = adapters(model)["0"]
    with torch.no_grad():
        layer.projection.values.copy_(torch.eye(4))
        layer.projection.indices.copy_(torch.arange(4).expand(4, 4))
    rows = torch.tensor([[2.0, 1, 0, 0], [2.0, 1, 0, 0], [2.0, 0, 1, 0], [2.0, 0, 1, 0]])
    with RoutingMonitor(model) as monitor:
        model(rows)
    found = monitor.report()["0"]
    assert found["usage"] == [1.0, 0.5, 0.5, 0.0]
    assert found["dead"] == [3]
    assert found["imbalance"] == 2.0
    assert found["entropy"] == pytest.approx(1.0397207708 / 1.3862943611)  # of (1/2, 1/4, 1/4, 0), over log 4
    assert found["coactivation"] == pytest.approx(found["expected_coactivation"])  # k (k - 1) / (r (r - 1)) always
    assert found["most_together"] == pytest.approx(1.0)  # rank 0 always wins: it is with others as often as they win
    assert found["tokens"] == 4


def test_nothing_seen() -> None:
    found = RoutingMonitor(net()).report()["0"]
    assert found["tokens"] == 0
    assert found["dead"] == []
    assert found["entropy"] != found["entropy"] or found["entropy"] == 0


def test_winners_are_those_of_the_forward() -> None:
    layer = FlyLoRALinear(16, 16, 8, 3, selection="biased_magnitude")
    nn.init.normal_(layer.routing_bias, std=0.1)
    nn.init.normal_(layer.B)
    x = torch.randn(30, 16)
    value, at = winners(layer, x)
    dense = torch.zeros(30, 8).scatter(1, at, value)
    torch.testing.assert_close(layer(x), layer.scale * dense @ layer.B.t())


def test_plot(tmp_path: Path) -> None:
    model = net()
    with RoutingMonitor(model) as monitor:
        model(torch.randn(20, 16))
    monitor.plot().savefig(tmp_path / "routing.png")
    assert (tmp_path / "routing.png").stat().st_size > 1000


def test_needs_layers_with_winners() -> None:
    with pytest.raises(ValueError, match="model must have FlyLoRALinear layers"):
        RoutingMonitor(FlyLoRAModel(nn.Sequential(nn.Linear(4, 4)), "0"))


def test_conflicting_tasks_are_told() -> None:
    model = net(selection="signed")
    x = torch.randn(40, 16) + 2
    found = task_conflict(model, {"a": [x[:20], (x[20:],)], "same": [{"input": x}], "opposite": [-x]})["0"]
    assert found["tasks"] == ["a", "same", "opposite"]
    assert found["conflicts"] == [("a", "same")]
    assert found["cosine"][0][1] == pytest.approx(1)
    assert found["cosine"][0][2] < 0.7
    assert model.training
    with pytest.raises(ValueError, match="loaders must have a batch for each task, got none for 'b'"):
        task_conflict(model, {"b": []})
    with pytest.raises(TypeError, match=r"loaders\['a'\] must be a list of batches or a loader, got a Tensor"):
        task_conflict(model, {"a": x})


def test_callback_in_trainer(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=50, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2
    )
    model = apply(transformers.LlamaForCausalLM(config), ["q_proj", "v_proj"], r=8, k=2)
    ids = torch.randint(50, (16, 8))
    data = [{"input_ids": row, "labels": row} for row in ids]
    monitor = RoutingMonitor(model)
    arguments = transformers.TrainingArguments(
        str(tmp_path), max_steps=4, per_device_train_batch_size=2, gradient_accumulation_steps=2, logging_steps=2,
        report_to=[], use_cpu=True, save_strategy="no", disable_tqdm=True,
    )  # fmt: skip
    trainer = transformers.Trainer(model, arguments, train_dataset=data, callbacks=[monitor.callback(every=2)])
    trainer.train()
    logged = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert logged
    layer = next(iter(adapters(model).values()))
    assert layer.routing_bias.abs().max() <= 4 * 1e-3 + 1e-9  # once for each of 4 optimizer steps
    assert layer.routing_bias.abs().max() > 0
    assert layer.counts.sum() == 0
    assert all(not m._forward_pre_hooks for m in model.modules())
