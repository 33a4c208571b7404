"""REAR.reduce on 2 and 4 processes: the router of all rows, whatever each process saw, however often it is called."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from flyk import distributed
from flyk.nn import REAR

D, M = 6, 70
KINDS = {
    "float32": {},
    "float64": {"dtype": torch.float64},
    "winners": {"k": 5, "dtype": torch.float64},
    "sparse": {"kind": "sparse_sign", "nnz": 3, "activation": "none", "dtype": torch.float64},
    "bf16x3": {"precision": "bf16x3"},
    "buffered": {"flush_rows": 7, "dtype": torch.float64},
}


def router(kind="float64", num_experts=2, **options):
    return REAR(D, num_experts, M, **{"ridge": 3.0, "seed": 4, **KINDS[kind], **options})


def rows_of(rank, round_=0):
    """Uneven: none on rank 0, 13 more on each other; of as many experts as `experts_of` says."""
    generator = torch.Generator().manual_seed(100 * round_ + rank)
    h = torch.randn(13 * rank, D, generator=generator)
    return h, torch.randint(experts_of(rank), (len(h),), generator=generator)


def experts_of(rank):
    return 2 + rank % 3


def fed(kind, rank, rounds=1):
    module = router(kind)
    for _ in range(experts_of(rank) - 2):
        module.add_expert()
    for round_ in range(rounds):
        module.update(*rows_of(rank, round_))
    return module


def statistics(module):
    return {"G": module.G.tril(), "Q": module.Q, "counts": module.counts, "U": module.solve()}


class Routed(nn.Module):
    """A model that DDP wraps: its first buffer is broadcast from rank 0 before each forward."""

    def __init__(self, rank):
        super().__init__()
        self.linear, self.router = nn.Linear(D, 2), fed("float64", rank)
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x):
        return self.linear(x)


def work(rank, world, folder):
    torch.set_num_threads(1)
    distributed.PANEL = 16  # several panels
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=world)
    found = {}
    for kind in KINDS:
        own = fed(kind, rank)
        found[kind] = statistics(own.reduce())
        found[f"{kind} again"] = statistics(own.reduce())
        own.update(*rows_of(rank, 1))
        found[f"{kind} later"] = statistics(own.reduce())

    late = router()  # the last rank was not there: what it had learned comes from its file
    if rank == world - 1:
        fed("float64", rank).save(f"{folder}/late.safetensors")
        late.merge_(REAR.load(f"{folder}/late.safetensors"))
    else:
        late.merge_(fed("float64", rank))
    found["late"] = statistics(late.reduce())

    parallel = DistributedDataParallel(Routed(rank))
    for _ in range(2):
        parallel(torch.randn(3, D)).sum().backward()
    found["under DDP"] = statistics(parallel.module.router.reduce())

    refused = []
    other = {"dtype": torch.float32} if rank else {}
    for spoiled in (router(seed=4 + rank), router(ridge=3.0 + rank), router(**other)):
        try:
            spoiled.reduce()
        except ValueError as error:
            refused.append(str(error))
    try:
        own.reduce().reduce()
    except RuntimeError as error:
        refused.append(str(error))
    found["refused"] = refused
    torch.save(found, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


@pytest.mark.slow
@pytest.mark.skipif(not dist.is_available(), reason="this torch has no torch.distributed")
@pytest.mark.parametrize("world", [2, 4])
def test_processes_reduce_to_the_router_of_all_rows(tmp_path, world):
    mp.spawn(work, (world, str(tmp_path)), nprocs=world)
    found = [torch.load(tmp_path / f"{rank}.pt") for rank in range(world)]
    for kind in KINDS:
        for name, rounds in ((kind, 1), (f"{kind} again", 1), (f"{kind} later", 2)):
            alone = fed(kind, 0, rounds)
            for rank in range(1, world):
                alone.merge_(fed(kind, rank, rounds))
            check(found, name, statistics(alone))
    check(found, "late", found[0]["float64"])
    check(found, "under DDP", found[0]["float64"])
    for refused in (of["refused"] for of in found):
        assert refused == found[0]["refused"]
        assert refused[0] == "seed must be one on all ranks, got 4 on 0 and 5 on 1"
        assert refused[1] == "ridge must be one on all ranks, got 3.0 on 0 and 4.0 on 1"
        assert refused[2] == "dtype must be one on all ranks, got 'torch.float64' on 0 and 'torch.float32' on 1"
        assert refused[3] == "reduce needs a router of one rank's rows, got one that holds those of all ranks"


def check(found, name, wanted):
    for of in found:
        for key, value in wanted.items():
            assert torch.equal(of[name][key], found[0][name][key]), (name, key)  # one answer on all ranks
            tight = value.dtype == torch.float64
            torch.testing.assert_close(of[name][key], value, rtol=1e-9 if tight else 1e-4, atol=1e-9 if tight else 1e-4)
        assert torch.equal(of[name]["counts"], wanted["counts"])


def test_alone_a_reduction_is_a_copy():
    own = fed("float32", 3)
    total = own.reduce()
    assert torch.equal(total.solve(), own.solve())
    own.update(*rows_of(3, 1))
    assert int(total.counts.sum()) == 39
    with pytest.raises(RuntimeError, match="reduce needs a router of one rank's rows"):
        router("float32").merge_(total).reduce()  # it would be counted once for each rank
