"""What REAR would cost for 10^9 rows at an expansion of 100000 on 1 to 1024 GPUs: a paper plan from measured pieces.

    python bench/scale_plan.py measure bench/results/scale/pieces.json   # a minute, one thread, an idle machine
    python bench/scale_plan.py table bench/results/scale/pieces.json     # writes the tables of docs/scale.md

A piece is measured as the share of the machine's own peak that flyk reaches (of its products, of its copies), so that
it may be put on another machine's data sheet. The model is held against two processes here; nothing is measured on a
GPU.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from roofline import GPUS

from flyk import distributed
from flyk._files import write_whole
from flyk._machine import machine
from flyk._memory import text
from flyk._triangle import pack, rows, unpack_
from flyk.bench._ceilings import Ceilings, ceilings
from flyk.nn import REAR
from flyk.nn._resolve import times
from flyk.ops.ridge_solve import factor, substitute

TARGET = Path(__file__).parents[1] / "docs" / "scale.md"
FEATURES, CLASSES = 768, 100
ROWS, EXPANSION = 10**9, 100000
RANKS = (1, 8, 64, 256, 1024)
# Of the plan's machines; data sheets: NVLink 900 GB/s both ways within 8 GPUs, beyond them one 400 Gb/s adapter each.
NEAR, FAR, TOGETHER, GPU_MEMORY = 450e9, 50e9, 8, {"H200": 141e9}


@dataclass(frozen=True)
class Pieces:
    """Shares of the peak product rate (gram, solve, iterate) and of that of copies in memory (pack), and iterations.

    Of conjugate gradients the iterations by number of blocks, and what one reaches, which multiplies in float64.
    """

    gram: float
    solve: float
    iterate: float
    pack: float
    iterations: dict[str, int]


@dataclass(frozen=True)
class Machine:
    name: str
    rate: float  # operations a second of the products of learning,
    plain: float  # and of float32, in which, or in float64 at half of it, systems are solved
    bandwidth: float  # bytes a second of memory
    link: Callable[[int], float]  # bytes a second that one of W ranks sends
    memory: float


@dataclass(frozen=True)
class Cost:
    learn: float  # seconds
    send: float
    solve: float
    wire: float  # bytes that each rank sends
    memory: float  # bytes on each rank

    def __str__(self) -> str:
        return " | ".join([*map(duration, (self.learn, self.send, self.solve)), text(self.wire), text(self.memory)])


def replicated(p: Pieces, on: Machine, ranks: int, rows: int, m: int, d: int, t: int) -> Cost:
    """REAR on each rank, its own rows, one `reduce`, and a Cholesky on each."""
    triangle = 2 * m * m  # bytes
    wire = 2 * (ranks - 1) / ranks * triangle
    return Cost(
        learn=rows / ranks * (m * m + 2 * d * m) / (on.rate * p.gram),
        send=wire / on.link(ranks) + (2 * triangle / (on.bandwidth * p.pack) if ranks > 1 else 0),
        solve=m**3 / 3 / (on.plain * p.solve),
        wire=wire,
        memory=4 * (2 * m * m + m * d + 2 * m * t),
    )


def dealt_out(p: Pieces, on: Machine, ranks: int, rows: int, m: int, d: int, t: int) -> Cost:
    """ShardedREAR: all rows to all ranks, each its rows of G, then conjugate gradients."""
    known = max(int(blocks) for blocks in p.iterations if int(blocks) <= ranks)
    iterations = p.iterations[str(known)]
    received, share = rows * d * 4 * (ranks - 1) / ranks, m / ranks
    wire = received + iterations * 8 * share * t * (ranks - 1)
    block = share**3 / 3 * 2 / (on.plain * p.solve)  # in float64, at half the rate
    return Cost(
        learn=rows * (2 * m * share + 2 * d * m) / (on.rate * p.gram),
        send=received / on.link(ranks),
        solve=block + iterations * (2 * m * share * t / (on.plain * p.iterate) + 8 * m * t / on.link(ranks)),
        wire=wire,
        memory=4 * m * share + 8 * share**2 + 4 * (m * d + m * t) + 8 * 5 * share * t,
    )


def best(call: Callable[[], object], repeats: int = 3) -> float:
    seconds = []
    for _ in range(repeats):
        begin = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - begin)
    return min(seconds)


def router(m: int, seed: int = 0) -> REAR:
    return REAR(FEATURES, CLASSES, m, ridge=1e3, seed=seed)


def stream(rows: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, FEATURES, generator=generator), torch.randint(CLASSES, (rows,), generator=generator)


def measure() -> dict[str, object]:
    """The pieces on one thread, and the two processes that the model is held against."""
    torch.set_num_threads(1)
    m, count = 2048, 4096  # more rows than columns, as in a long stream
    peak, rear, (h, labels) = ceilings(), router(m), stream(count)

    def solve() -> None:
        rear._forget()
        rear.solve()

    def iterate() -> None:
        times(torch.ones(CLASSES, m, dtype=torch.float64), rear.G, 1.0)

    learn = best(lambda: (rear.update(h, labels), rear.flush()))
    pieces = Pieces(
        gram=count * (m * m + 2 * FEATURES * m) / learn / peak.flop_rate,
        solve=m**3 / 3 / best(solve) / peak.flop_rate,
        iterate=2 * m * m * CLASSES / best(iterate) / peak.flop_rate,
        pack=2 * 2 * m * m / best(lambda: unpack_(rows(rear.G), pack(rear.G))) / max_copy(peak),
        iterations={str(blocks): iterations(rear, blocks) for blocks in (1, 8, 64)},
    )
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(two, (folder,), nprocs=2)
        found = json.loads(Path(folder, "0.json").read_text())
    here = Machine("here", found["rate"], found["rate"], found["copy"], lambda _: found["link"], 0)
    model = replicated(pieces, here, 2, *SMALL, FEATURES, CLASSES)
    held = {"measured": found["seconds"], "model": {"learn": model.learn, "send": model.send, "solve": model.solve}}
    about = machine() | {"command": " ".join(["python", "bench/scale_plan.py", *sys.argv[1:]])}
    return {"pieces": pieces.__dict__, "two processes": held, "machine": about}


def max_copy(peak: Ceilings) -> float:
    """Bytes a second of the largest copy, which no cache holds."""
    return peak.copy[max(peak.copy)]


def iterations(rear: REAR, blocks: int) -> int:
    """Of conjugate gradients on a G of as many rows as columns, preconditioned by this many blocks."""
    G = rear.G.tril() + rear.G.tril(-1).t()
    parts = torch.arange(len(G)).tensor_split(blocks)
    factors = [factor(G[part][:, part], rear.ridge, torch.float64) for part in parts]

    def precondition(x: torch.Tensor) -> torch.Tensor:
        return torch.cat([substitute(F, x[part]) for F, part in zip(factors, parts, strict=True)])

    def multiply(x: torch.Tensor) -> torch.Tensor:
        return times(x.t(), rear.G, rear.ridge).t()

    return distributed.conjugate_gradients(multiply, precondition, rear.Q.double(), tolerance=1e-6, limit=400)[1]


SMALL = (8192, 1024)  # rows of both processes, expansion


def two(rank: int, folder: str) -> None:
    """One of two processes: learn, reduce, solve; and what the link between them carries."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    peak, (h, labels) = ceilings(), stream(SMALL[0] // 2, rank)
    rear, buffer = router(SMALL[1]), torch.ones(2**22)
    distributed.sum_(buffer)
    sent = best(lambda: distributed.sum_(buffer), 5)
    begin = time.perf_counter()
    rear.update(h, labels)
    rear.flush()
    dist.barrier()
    learned = time.perf_counter()
    total = rear.reduce()
    reduced = time.perf_counter()
    total.solve()
    solved = time.perf_counter()
    found = {
        "rate": peak.flop_rate,
        "copy": max_copy(peak),
        "link": 4 * 2**22 / sent,  # W = 2: each rank sends the buffer once
        "seconds": {"learn": learned - begin, "send": reduced - learned, "solve": solved - reduced},
    }
    Path(folder, f"{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


def duration(seconds: float) -> str:
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.2g} s" if seconds else "0"


def tables(found: dict) -> str:
    pieces = Pieces(**found["pieces"])
    lines = []
    for gpu in GPUS:
        if gpu.name not in GPU_MEMORY:
            continue
        for precision, rate in (("float32", gpu.float32), ("bf16x3", gpu.bf16 / 3)):
            on = Machine(
                gpu.name,
                rate,
                gpu.float32,
                gpu.bandwidth,
                lambda w: NEAR if w <= TOGETHER else FAR,
                GPU_MEMORY[gpu.name],
            )
            lines += [f"\n{gpu.name}, products in {precision}:\n"]
            lines += ["| GPUs | form | learn | send | solve | on the wire, each | memory, each | |"]
            lines += ["| --: | --- | --: | --: | --: | --: | --: | --- |"]
            for ranks in RANKS:
                for form in (replicated, dealt_out):
                    cost = form(pieces, on, ranks, ROWS, EXPANSION, FEATURES, CLASSES)
                    fits = "" if cost.memory <= on.memory else "does not fit"
                    name = {replicated: "`REAR`, reduced", dealt_out: "`ShardedREAR`"}[form]
                    lines += [f"| {ranks} | {name} | {cost} | {fits} |"]
    held = found["two processes"]
    check = ["| | learn | send | solve |", "| --- | --: | --: | --: |"]
    for name in ("measured", "model"):
        check += [f"| {name} | " + " | ".join(f"{held[name][step]:.2g} s" for step in held[name]) + " |"]
    shares = ", ".join(f"{name} {share:.2f}" for name, share in found["pieces"].items() if name != "iterations")
    blocks = ", ".join(f"{count} at {name}" for name, count in pieces.iterations.items())
    head = f"Shares of the peak: {shares}. Iterations by number of blocks: {blocks}.\n\n"
    return head + "\n".join(check) + "\n" + "\n".join(lines) + "\n"


def main(what: str, path: str) -> None:
    if what == "measure":
        with write_whole(Path(path)) as part:
            part.write_text(json.dumps(measure(), indent=1) + "\n")
        return
    found = tables(json.loads(Path(path).read_text()))
    page = re.sub(
        r"(<!-- plan -->\n).*?(<!-- /plan -->)", lambda at: at[1] + found + at[2], TARGET.read_text(), flags=re.S
    )
    TARGET.write_text(page)


if __name__ == "__main__":
    main(*sys.argv[1:])
