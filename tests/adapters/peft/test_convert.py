"""Checkpoints of the published fork: what is kept, and that its own behaviour can be had."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

pytest.importorskip("peft")

from peft import PeftModel

from flyk.adapters.peft import convert_reference_checkpoint

R, K, IN, OUT, ALPHA = 8, 2, 24, 12, 16


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.lin = nn.Linear(IN, OUT)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.lin(x)


def checkpoint(folder: Path, **options) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A folder as the fork writes one; gives A, B and the bias."""
    torch.manual_seed(1)
    A = torch.zeros(R, IN)
    for row in A:
        row[torch.randperm(IN)[: IN // (R // K)]] = torch.randn(IN // (R // K)) / R
    B, bias = torch.randn(OUT, R), 0.05 * torch.randn(R)
    said = {
        "peft_type": "LORA", "r": R, "top_k": K, "bias_u": 0.01, "lora_alpha": ALPHA, "lora_dropout": 0.0,
        "init_lora_weights": "sparse", "target_modules": ["lin"], "bias": "none", "use_dora": False, "corda_config": {},
        "megatron_core": "megatron.core",
    }  # fmt: skip
    folder.mkdir(exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps(said | options))
    at = "base_model.model.lin"
    tensors = {f"{at}.lora_A.weight": A, f"{at}.lora_B.weight": B, f"{at}.lora_topk_bias": bias}
    save_file(tensors, folder / "adapter_model.safetensors")
    return A, B, bias


def test_the_fork_s_own_behaviour_exactly(tmp_path: Path) -> None:
    A, B, bias = checkpoint(tmp_path / "fork")
    told = convert_reference_checkpoint(tmp_path / "fork", tmp_path / "ours", selection="signed", detach_input=True)
    assert told["layers"] == ["base_model.model.lin"]
    assert told["dropped"] == ["megatron_core"]
    assert (told["config"]["r"], told["config"]["k"], told["config"]["bias_update_rate"]) == (R, K, 0.01)
    model = PeftModel.from_pretrained(Net(), str(tmp_path / "ours"), is_trainable=True).eval()
    x = torch.randn(40, IN, requires_grad=True)
    y = x @ A.t()
    kept = torch.zeros_like(y).scatter(1, (y + bias).topk(K).indices, 1.0)
    right = Net().lin(x) + ALPHA / R * (y * kept) @ B.t()
    torch.testing.assert_close(model(x), right)
    (grad,) = torch.autograd.grad(model(x).sum(), x)
    torch.testing.assert_close(grad, Net().lin.weight.sum(0).expand_as(grad))  # none through the adapter


def test_the_default_follows_the_paper(tmp_path: Path) -> None:
    A, B, bias = checkpoint(tmp_path / "fork", use_rslora=True)
    convert_reference_checkpoint(tmp_path / "fork", tmp_path / "ours")
    model = PeftModel.from_pretrained(Net(), str(tmp_path / "ours")).eval()
    x = torch.randn(40, IN)
    y = x @ A.t()
    kept = torch.zeros_like(y).scatter(1, (y.abs() + bias).topk(K).indices, 1.0)
    torch.testing.assert_close(model(x), Net().lin(x) + ALPHA / R**0.5 * (y * kept) @ B.t())


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"peft_type": "IA3"}, "the fork's adapter_config.json of type LORA"),
        ({"top_k": "2"}, "with r, top_k, lora_alpha"),
        ({"use_dora": True}, "use_dora must be False"),
        ({"rank_pattern": {"lin": 4}}, "rank_pattern must be {}"),
        ({"top_k": 9}, "k must be from 1 to 8"),
        ({"r": 4}, "must have 4 ranks"),
        ({"r": 0}, "with r, top_k, lora_alpha"),
        ({"r": True}, "with r, top_k, lora_alpha"),
        ({"r": -8, "use_rslora": True}, "with r, top_k, lora_alpha"),
        ({"lora_alpha": float("nan")}, "alpha must be finite"),
    ],
)
def test_refuses_what_it_cannot_keep(tmp_path: Path, options, sentence: str) -> None:
    checkpoint(tmp_path / "fork", **options)
    with pytest.raises(ValueError, match=sentence):
        convert_reference_checkpoint(tmp_path / "fork", tmp_path / "ours")
    assert not (tmp_path / "ours").exists()


def test_refuses_pickles_and_missing_files(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="directory must hold the fork's"):
        convert_reference_checkpoint(tmp_path, tmp_path / "ours")
    checkpoint(tmp_path)
    (tmp_path / "adapter_model.safetensors").rename(tmp_path / "adapter_model.bin")
    with pytest.raises(ValueError, match="got a pickle, which flyk does not open"):
        convert_reference_checkpoint(tmp_path, tmp_path / "ours")
    (tmp_path / "adapter_model.safetensors").write_bytes(b"no")
    with pytest.raises(ValueError, match="that can be read"):
        convert_reference_checkpoint(tmp_path, tmp_path / "ours")
