"""Two processes: FlyLoRA in PEFT under DDP with each form of checkpointing, and under FSDP2, gives what one gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

pytest.importorskip("peft")
transformers = pytest.importorskip("transformers")

from peft import get_peft_model, get_peft_model_state_dict, set_peft_model_state_dict  # noqa: E402

from flyk.adapters import adapters, update_routing_bias  # noqa: E402
from flyk.adapters.peft import FlyLoraConfig  # noqa: E402

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not dist.is_available(), reason="this torch has no torch.distributed"),
]
CHECKPOINTING = ("none", "reentrant", "non-reentrant")


def tuned() -> Any:
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=50, **sizes))
    options = {"r": 8, "k": 2, "target_modules": ["q_proj", "down_proj"], "init_weights": False}
    return get_peft_model(model, FlyLoraConfig(**options, bias_update_rate=0.1)).train()


def batches(rank: int) -> torch.Tensor:
    """Two batches of a process."""
    return torch.randint(50, (2, 3, 6), generator=torch.Generator().manual_seed(rank))


def found(model: nn.Module) -> dict[str, list[torch.Tensor]]:
    layers = adapters(model).values()
    return {"gradients": [layer.B.grad for layer in layers], "biases": [layer.routing_bias for layer in layers]}


def accumulate(model: Any, ranks: Any) -> dict[str, list[torch.Tensor]]:
    """Gradients and routing biases after the batches of the ranks, and one update of the biases."""
    for rank in ranks:
        for ids in batches(rank):
            model(input_ids=ids, labels=ids).loss.backward()
    update_routing_bias(model)
    return found(model)


def step(model: Any, ranks: Any) -> None:
    """One optimizer step on the mean loss of the ranks' first batches."""
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.5)
    losses = [model(input_ids=ids, labels=ids).loss for ids in (batches(rank)[0] for rank in ranks)]
    torch.stack(losses).mean().backward()
    optimizer.step()
    update_routing_bias(model)


def under_ddp(rank: int, checkpointing: str) -> dict[str, list[torch.Tensor]]:
    model = tuned()
    if checkpointing != "none":
        model.gradient_checkpointing_enable({"use_reentrant": checkpointing == "reentrant"})
        model.enable_input_require_grads()
    return accumulate(nn.parallel.DistributedDataParallel(model), [rank])


def under_fsdp(rank: int) -> dict[str, torch.Tensor]:
    """The adapter's state after a step, whole."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
    from torch.distributed.fsdp import fully_shard

    mesh, model = dist.init_device_mesh("cpu", (2,)), tuned()
    for block in model.base_model.model.model.layers:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    step(model, [rank])
    assert all(isinstance(layer.B, torch.distributed.tensor.DTensor) for layer in adapters(model).values())
    whole = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
    return get_peft_model_state_dict(model, state_dict=whole)


def work(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    results: dict[str, Any] = {kind: under_ddp(rank, kind) for kind in CHECKPOINTING}
    torch.save(results | {"fsdp": under_fsdp(rank)}, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each process has seen."""
    folder = tmp_path_factory.mktemp("two")
    mp.spawn(work, (str(folder),), nprocs=2)
    return [torch.load(Path(folder, f"{rank}.pt")) for rank in range(2)]


@pytest.mark.parametrize("checkpointing", CHECKPOINTING)
def test_under_ddp(ranks: list[dict[str, Any]], checkpointing: str) -> None:
    alone = accumulate(tuned(), [0, 1])
    first, second = (each[checkpointing] for each in ranks)
    for name in ("gradients", "biases"):
        assert all(torch.equal(a, b) for a, b in zip(first[name], second[name], strict=True)), name
    for mine, right in zip(first["gradients"], alone["gradients"], strict=True):
        torch.testing.assert_close(mine, right / 2)  # DDP takes the mean over processes
    for mine, right in zip(first["biases"], alone["biases"], strict=True):
        assert torch.equal(mine, right)
        assert mine.count_nonzero() > 4


def test_under_fsdp(ranks: list[dict[str, Any]]) -> None:
    alone = tuned()
    step(alone, [0, 1])
    right = get_peft_model_state_dict(alone)
    for each in ranks:
        assert each["fsdp"].keys() == right.keys()
        for key, tensor in each["fsdp"].items():
            torch.testing.assert_close(tensor, right[key], msg=key)
    again = tuned()
    set_peft_model_state_dict(again, ranks[0]["fsdp"])
    ids = batches(0)[0]
    torch.testing.assert_close(again.eval()(ids).logits, alone.eval()(ids).logits)
