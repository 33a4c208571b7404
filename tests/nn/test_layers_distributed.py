"""Two processes under DDP: balanced routing from summed counts, and statistics that DDP does not overwrite."""

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from flyk.nn import REAR, FlyLoRALinear


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.lora = FlyLoRALinear(16, 8, 8, 2, base=nn.Linear(16, 8), seed=1)
        self.router = REAR(16, 2, 32, ridge=1.0)

    def forward(self, x):
        self.router.update(x, dist.get_rank() if dist.is_initialized() else x.new_zeros(len(x)).long())
        return self.lora(x)


def batches(rank):
    """Four batches; the two processes see different rows, and not equally many."""
    generator = torch.Generator().manual_seed(rank)
    return torch.randn(4, 10 + 7 * rank, 16, generator=generator)


def work(rank, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    model = Model()
    parallel = DistributedDataParallel(model)
    for x in batches(rank)[:2]:  # gradients are accumulated over two batches, then one step
        parallel(x).square().sum().backward()
    model.lora.update_routing_bias()
    for x in batches(rank)[2:]:
        parallel(x).square().sum().backward()
    model.router.flush()
    torch.save(
        {
            "bias": model.lora.routing_bias,
            "counts": model.lora.counts,
            "router": model.router.counts,
            "G": model.router.G.tril(),
        },
        f"{folder}/{rank}.pt",
    )
    dist.destroy_process_group()


@pytest.mark.slow
@pytest.mark.skipif(not dist.is_available(), reason="this torch has no torch.distributed")
def test_two_processes_route_as_one(tmp_path):
    mp.spawn(work, (str(tmp_path),), nprocs=2)
    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in range(2))
    alone = Model()
    for rank in range(2):
        for x in batches(rank)[:2]:
            alone.lora(x)
    alone.lora.update_routing_bias()
    assert alone.lora.routing_bias.count_nonzero() > 4
    assert torch.equal(first["bias"], alone.lora.routing_bias)
    assert torch.equal(second["bias"], alone.lora.routing_bias)
    for rank, found in enumerate((first, second)):
        # Each process still holds the counts and sums of its own rows, to the last row.
        assert found["counts"].sum() == 2 * 2 * (10 + 7 * rank)
        assert found["router"].tolist() == ([40, 0] if rank == 0 else [0, 68])
        own = REAR(16, 2, 32, ridge=1.0)
        own.update(batches(rank), rank)
        own.flush()
        torch.testing.assert_close(found["G"], own.G.tril())
