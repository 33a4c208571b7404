"""REAR at an expansion whose G does not fit: planned, solved in its dual form, and its equations checked.

    python bench/wide.py bench/results/scale/wide.json

With 20000 rows and an expansion of 100000 it takes about ten minutes on two cores.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import torch

from flyk._files import write_whole
from flyk._machine import machine, peak_memory_mib
from flyk.nn import KernelREAR, plan_rear

ROWS, TESTED, FEATURES, CLASSES, EXPANSION, RIDGE = 20000, 1000, 768, 100, 100000, 1e4


def rows(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows around a centre for each class, as far from it as the centres from each other."""
    centres = torch.randn(CLASSES, FEATURES, generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES, (count,), generator=generator)
    return centres[labels] / 4 + torch.randn(count, FEATURES, generator=generator), labels


def left_over(router: KernelREAR) -> float:
    """|(ΦᵀΦ + λI) U - ΦᵀY| over the largest of its three terms, in float64, on the first panel of columns."""
    U = router.solve().double()
    scores, begin = 0, 0
    for panel in router._panels():
        scores = scores + panel.double() @ U[begin : begin + panel.shape[1]]
        begin += panel.shape[1]
    panel = next(iter(router._panels())).double()
    Y = torch.eye(CLASSES, dtype=torch.float64)[router.labels]
    terms = panel.t() @ scores, RIDGE * U[: panel.shape[1]], panel.t() @ Y
    return float((terms[0] + terms[1] - terms[2]).norm() / max(term.norm() for term in terms))


def main(path: str) -> None:
    plan = plan_rear(FEATURES, CLASSES, EXPANSION, rows=ROWS)
    print(plan)
    router = plan.make(ridge=RIDGE)
    assert isinstance(router, KernelREAR)
    h, labels = rows(ROWS, 1)
    begin = time.perf_counter()
    for part, ids in zip(h.split(500), labels.split(500), strict=True):
        router.update(part, ids)
    taken_in = time.perf_counter()
    router.solve()
    solved = time.perf_counter()
    x, truth = rows(TESTED, 2)
    found = {
        "rows": ROWS,
        "features": FEATURES,
        "classes": CLASSES,
        "expansion": EXPANSION,
        "ridge": RIDGE,
        "plan": {"form": plan.form.__name__, "bytes": plan.bytes, "operations": plan.operations},
        "bytes_of_G": 4 * EXPANSION**2,
        "update_s": taken_in - begin,
        "solve_s": solved - taken_in,
        "peak_bytes": int(peak_memory_mib() * 2**20),
        "accuracy_on_new_rows": float((router.route(x) == truth).double().mean()),
        "relative_residual": left_over(router),
        "machine": machine() | {"command": f"python bench/wide.py {path}"},
    }
    with write_whole(Path(path)) as part:
        part.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main(sys.argv[1])
