"""KernelREAR and ShardedREAR are REAR: the same scores from the rows themselves, and from rows of G on processes."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from test_rear import D, T, stream

from flyk import _memory
from flyk.nn import REAR, KernelREAR, ShardedREAR, kernel_rear, plan_rear

M = 150
HOW = {"ridge": 0.5, "dtype": torch.float64, "seed": 1}
KINDS = [
    {},
    {"k": 7},
    {"activation": "none", "kind": "sparse_sign", "nnz": 3, "ridge": 20.0},
    {"kind": "binary", "nnz": 2, "k": 9},
]


def both(form, n=40, **options):
    """The form and REAR after the same rows in several updates."""
    options = HOW | options
    made = form(D, T, M, **options), REAR(D, T, M, **options)
    h, labels = stream(n, dtype=options["dtype"])
    for module in made:
        for rows, ids in zip(h.split(9), labels.split(9), strict=True):
            module.update(rows, ids)
    return made


@pytest.fixture(autouse=True)
def small_panels(monkeypatch):
    monkeypatch.setattr(kernel_rear, "PANEL", 64)


@pytest.mark.parametrize("form", [KernelREAR, ShardedREAR])
@pytest.mark.parametrize("options", KINDS)
def test_forms_give_the_scores_of_rear(form, options):
    module, rear = both(form, **options)
    x = stream(9, seed=5)[0]
    torch.testing.assert_close(module.solve(), rear.solve(), rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(module(x), rear(x), rtol=1e-6, atol=1e-7)
    assert torch.equal(module.route(x), rear.route(x))
    module.add_expert()
    module.update(x, T)
    rear.add_expert()
    rear.update(x, T)
    torch.testing.assert_close(module(x), rear(x), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("form", [KernelREAR, ShardedREAR])
@pytest.mark.parametrize("precision", ["float32", "bf16x3"])
def test_forms_in_float32(form, precision):
    module, rear = both(form, n=100, dtype=torch.float32, ridge=20.0, precision=precision)
    x = stream(9, seed=5, dtype=torch.float32)[0]
    torch.testing.assert_close(module(x), rear(x), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("form", [KernelREAR, ShardedREAR])
def test_forms_merge_and_come_back_from_files_and_states(tmp_path, form):
    module, rear = both(form)
    other = form(D, T, M, **HOW)
    other.update(*stream(13, seed=3))
    rear.update(*stream(13, seed=3))
    module.merge_(other)
    torch.testing.assert_close(module.solve(), rear.solve(), rtol=1e-6, atol=1e-8)
    assert torch.equal(module.counts, rear.counts)
    module.save(tmp_path / "x.safetensors")
    again, third = form.load(tmp_path / "x.safetensors"), form(D, 0, M, **HOW | {"seed": 5})
    third.load_state_dict(module.state_dict())
    for found in (again, third):
        assert torch.equal(found.solve(), module.solve())
        found.update(*stream(3, seed=4))
    assert torch.equal(again.solve(), third.solve())
    with pytest.raises(ValueError, match=r"path must name a REAR that flyk saved, got .*: it holds a "):
        REAR.load(tmp_path / "x.safetensors")
    with pytest.raises(TypeError, match=f"other must be a {form.__name__}, got REAR"):
        module.merge_(rear)


def test_a_kernel_router_hands_its_rows_over_to_rear():
    module, rear = both(KernelREAR)
    module.flush()
    again = REAR(D, T, M, **HOW)
    again.update(module.rows, module.labels)
    torch.testing.assert_close(again.solve(), rear.solve())
    assert torch.equal(KernelREAR(D, T, M, **HOW)(stream(2)[0]), torch.full((2, T), -torch.inf, dtype=torch.float64))
    reduced = module.reduce()  # alone: a copy
    assert torch.equal(reduced.solve(), module.solve())


@pytest.mark.parametrize("form", [KernelREAR, ShardedREAR])
def test_forms_keep_no_reference_and_refuse_bad_rows(form):
    h, labels = stream(10)
    module, source = form(D, T, M, **HOW), h.clone()
    module.update(source, labels)
    source.zero_()
    with pytest.raises(ValueError, match="h must be finite, got row 3 of norm nan"):
        module.update(torch.where(torch.arange(10)[:, None] == 3, torch.nan, h), labels)
    wanted = REAR(D, T, M, **HOW)
    wanted.update(h, labels)
    torch.testing.assert_close(module.solve(), wanted.solve(), rtol=1e-6, atol=1e-8)
    assert torch.equal(module.counts, wanted.counts)
    with torch.inference_mode():
        module.update(h, labels)
    module(h.clone().requires_grad_()).sum().backward()


def test_a_state_of_rows_that_do_not_fit_is_refused():
    module = both(KernelREAR)[0]
    before, state = module.solve(), module.state_dict()
    for name, tensor, sentence in (
        ("rows", torch.zeros(40, D + 1), r"rows must have shape \(N, 6\), got \(40, 7\)"),
        ("labels", torch.full((40,), T), r"labels must be from 0 to 3, got 4"),
        ("labels", torch.zeros(40), r"labels must be of dtype int64, got float32"),
        ("counts", torch.tensor([40, 0, 0, 0]), r"counts must be how often each label occurs"),
    ):
        with pytest.raises(RuntimeError, match=sentence):
            module.load_state_dict(state | {name: tensor})
    assert torch.equal(module.solve(), before)


def test_iterations_that_do_not_suffice_are_refused():
    module, _ = both(ShardedREAR)
    module.limit, module.tolerance, module._factor = 0, 1e-30, None
    module.ridge = 1.0
    with pytest.raises(ValueError, match=r"^ridge must be large enough for 0 iterations to leave 1e-30 of the error"):
        module.solve()


def test_a_plan_takes_the_smaller_form_and_refuses_what_does_not_fit(monkeypatch):
    wide, tall = plan_rear(8, 3, 5000, rows=100), plan_rear(8, 3, 100, rows=5000)
    assert (wide.form, tall.form) == (KernelREAR, REAR)
    assert isinstance(wide.make(ridge=2.0), KernelREAR)
    assert wide.make(ridge=2.0, k=5).settings() == KernelREAR(8, 3, 5000, ridge=2.0, k=5).settings()
    assert "KernelREAR of expansion 5000 for 100 rows: " in str(wide)
    assert plan_rear(768, 10, 100000, rows=10**6).bytes > 2 * 4 * 10**10
    monkeypatch.setattr(_memory, "total", lambda device: 2**20)
    with pytest.raises(
        ValueError, match=r"^expansion must need at most the 1.0 MiB of memory that cpu has, got one that needs 74"
    ):
        plan_rear(8, 3, 100000, rows=10**6).make()
    module = KernelREAR(D, T, M, ridge=1.0)
    module.update(*stream(600))
    with pytest.raises(ValueError, match=r"^expansion must need at most the 1.0 MiB of memory"):
        module.solve()


def work(rank, world, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=world)
    found = {"refused": []}
    for i, options in enumerate(shared(world)):
        kernel, sharded = KernelREAR(D, T, M, **HOW | options), ShardedREAR(D, T, M, tolerance=1e-11, **HOW | options)
        for h, labels in mine(rank):
            kernel.update(h, labels)
            sharded.update(h, labels)
        assert sharded.G.shape == (sharded.end - sharded.begin, M)
        sharded.save(f"{folder}/{i}-{rank}.safetensors")
        again = ShardedREAR.load(f"{folder}/{i}-{rank}.safetensors")
        found[i] = {"kernel": kernel.reduce().solve(), "sharded": sharded.solve(), "again": again.solve()}
        found[i]["counts"] = sharded.counts
    before = sharded.G.clone()
    bad = torch.full((2, D), torch.nan)
    for h in (torch.zeros(2, D + (rank == 1)), bad if rank == 1 else bad[:0]):
        try:
            sharded.update(h, 0)
        except (ValueError, RuntimeError) as error:
            found["refused"].append(f"{type(error).__name__}: {error}")
    assert torch.equal(sharded.G, before)
    try:
        ShardedREAR.load(f"{folder}/0-{(rank + 1) % world}.safetensors")
    except ValueError as error:
        found["refused"].append("it is of" in str(error))
    torch.save(found, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


def shared(world):
    """Four processes on few cores take long for an iteration: one kind is enough for them."""
    return KINDS if world == 2 else KINDS[:1]


def mine(rank):
    """Two batches, uneven; rank 0 has an empty one."""
    return [stream(17 * rank, seed=rank), stream(5 + rank, seed=50 + rank)]


@pytest.mark.slow
@pytest.mark.skipif(not dist.is_available(), reason="this torch has no torch.distributed")
@pytest.mark.parametrize("world", [2, 4])
def test_processes_share_one_G(tmp_path, world):
    mp.spawn(work, (world, str(tmp_path)), nprocs=world)
    found = [torch.load(tmp_path / f"{rank}.pt") for rank in range(world)]
    for i, options in enumerate(shared(world)):
        alone = REAR(D, T, M, **HOW | options)
        for rank in range(world):
            for h, labels in mine(rank):
                alone.update(h, labels)
        for of in found:
            for name in ("kernel", "sharded", "again"):
                torch.testing.assert_close(of[i][name], alone.solve(), rtol=1e-6, atol=1e-8)
            assert torch.equal(of[i]["sharded"], found[0][i]["sharded"])
            assert torch.equal(of[i]["counts"], alone.counts)
    for rank, of in enumerate(found):
        wrong = "h must have 6 features in its last dimension, got shape (2, 7)"
        other = "RuntimeError: update must be given rows that fit on every rank, got others on another one"
        assert of["refused"] == [
            f"ValueError: {wrong}" if rank == 1 else other,
            "ValueError: h must be finite, got row 0 of norm nan in torch.float64",
            True,
        ]
