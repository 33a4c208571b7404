"""Predicts each case of `flyk bench` on GPUs that nobody has run it on, from their data sheets alone.

python bench/roofline.py writes docs/predictions.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from flyk.bench import Case, cases

TARGET = Path(__file__).parents[1] / "docs" / "predictions.md"
LAUNCH = 5e-6  # seconds that a launch takes about, whatever the work: no data sheet tells it
PRECISIONS = ("float32", "tf32", "bf16")
# Uses of an operator that are one matrix product, and take the argument `precision`.
PRODUCTS = {("project", "dense rows"), ("gram_", "in place"), ("expand_gram_", "all active")}
# 32 random words lie in 32 banks of shared memory, of which the fullest, by which a warp waits, holds this many.
CONFLICTS = 3.53


@dataclass(frozen=True)
class Gpu:
    """A data sheet's peaks: bytes a second, and dense flop a second in each precision, without sparsity."""

    name: str
    sheet: str
    bandwidth: float
    float32: float
    tf32: float
    bf16: float
    lanes: int  # float32 products and sums that a multiprocessor does in a clock

    def rate(self, precision: str) -> float:
        return getattr(self, precision)

    @property
    def words(self) -> float:
        """Random words of shared memory a second: 32 banks a multiprocessor, and what conflicts leave of them."""
        return self.float32 / 2 / self.lanes * 32 / CONFLICTS


GPUS = (
    Gpu("A100", "NVIDIA A100 Tensor Core GPU data sheet (80 GB SXM)", 2.039e12, 19.5e12, 156e12, 312e12, 64),
    Gpu("H100", "NVIDIA H100 Tensor Core GPU data sheet (SXM5)", 3.35e12, 67e12, 494.5e12, 989.5e12, 128),
    Gpu("H200", "NVIDIA H200 Tensor Core GPU data sheet (SXM)", 4.8e12, 67e12, 494.5e12, 989.5e12, 128),
    Gpu("B200", "NVIDIA Blackwell Architecture Technical Brief (HGX B200)", 8e12, 80e12, 1100e12, 2250e12, 128),
    Gpu("MI300X", "AMD Instinct MI300X data sheet", 5.3e12, 163.4e12, 653.7e12, 1307.4e12, 128),
)


@dataclass(frozen=True)
class Prediction:
    """The least time that a case could take, and what sets it: "memory", "arithmetic", or "launch" for all of it."""

    seconds: float
    bound: str

    def __str__(self) -> str:
        us = self.seconds * 1e6
        return f"{us:,.0f} {self.bound}" if us >= 100 else f"{us:.3g} {self.bound}"


def predict(case: Case, gpu: Gpu, precision: str = "float32") -> Prediction:
    moving, computing = case.floor.bytes / gpu.bandwidth, case.floor.flop / gpu.rate(precision)
    seconds = max(moving, computing)
    if seconds < LAUNCH:
        return Prediction(LAUNCH, "launch")
    return Prediction(seconds, "memory" if moving >= computing else "arithmetic")


def precisions(case: Case) -> Sequence[str]:
    return PRECISIONS if (case.op, case.what) in PRODUCTS else PRECISIONS[:1]


def sparse_share(gpu: Gpu, precision: str) -> float:
    """The share nnz/d of a row of R below which gathering its entries beats the dense product.

    An entry costs a random word of x in shared memory, a column of the dense product 2 flop.
    """
    return 2 * gpu.words / gpu.rate(precision)


def scatter_share(gpu: Gpu, precision: str) -> float:
    """The share k/M of winners below which scattering them beats the panels of the lower triangle.

    A sample costs k² / 2 entries of G, each read from and written to a random word of shared memory, or M² flop.
    """
    return math.sqrt(gpu.words / gpu.rate(precision))


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows))


def crossovers(share) -> str:
    rows = [[precision, *(f"{share(gpu, precision):.1%}" for gpu in GPUS)] for precision in PRECISIONS]
    return table(["precision of the product", *(gpu.name for gpu in GPUS)], rows)


def text(measured: Sequence[Case]) -> str:
    """The whole page."""
    peaks = [
        [gpu.name, f"{gpu.bandwidth / 1e12:.3g}", *(f"{gpu.rate(p) / 1e12:.4g}" for p in PRECISIONS), gpu.sheet]
        for gpu in GPUS
    ]
    rows = [
        [
            f"`{case.op}` {case.what}, {case.sizes}" + (f", in {precision}" if precision != "float32" else ""),
            *(str(predict(case, gpu, precision)) for gpu in GPUS),
        ]
        for case in measured
        for precision in precisions(case)
    ]
    return f"""\
# Predictions for GPUs

Nothing on this page was measured. `python bench/roofline.py` computes it from the floors of `flyk bench` (the bytes
that must move, the operations that must be done) and from data sheets. A kernel can come near these times and cannot
beat them, except that data which a cache still holds need not be read from memory again.

{table(["GPU", "memory, TB/s", *(f"{p}, TFLOP/s" for p in PRECISIONS), "from"], peaks)}

Peaks are dense, without structured sparsity.

## Predicted microseconds

The longer of moving the bytes at the peak bandwidth ("memory") and doing the operations at the peak rate
("arithmetic"); where both take less than {LAUNCH * 1e6:.0f} µs, about what one kernel launch takes, that ("launch").

{table(["case", *(gpu.name for gpu in GPUS)], rows)}

## Predicted crossovers

`project`: sparse rows should beat the dense product while nnz/d is below the share here. An entry of a sparse row costs
a random word of shared memory (32 banks a multiprocessor, {CONFLICTS} of 32 accesses in the fullest one), a column of
the dense product 2 flop.

{crossovers(sparse_share)}

`expand_gram_` with k winners: scattering them should beat panels of the lower triangle while k/M is below the share
here. A sample costs k²/2 entries, each read and written at random in shared memory, or M² flop.

{crossovers(scatter_share)}
"""


if __name__ == "__main__":
    TARGET.write_text(text(cases()))
    print(TARGET)
