"""What a benchmark case is: inputs, the three rivals and flyk, what they must agree on, and the floor."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from flyk.bench._ceilings import Ceilings
from flyk.ops.make_projection_ import make_projection_

Inputs = dict[str, Any]
Result = Tensor | tuple[Tensor, ...]
FLOAT, INT64 = 4, 8  # bytes


@dataclass(frozen=True)
class Floor:
    """What the work costs at best: the bytes that must move and the floating-point operations that must be done."""

    bytes: int
    flop: int

    def seconds(self, ceilings: Ceilings) -> float:
        """The longer of moving the bytes and doing the operations, at the speeds measured on this machine."""
        return max(self.bytes / ceilings.copy_rate(self.bytes), self.flop / ceilings.flop_rate)


def _whole(result: Result, inputs: Inputs) -> tuple[Tensor, ...]:
    return (result,) if isinstance(result, Tensor) else result


@dataclass(frozen=True)
class Case:
    """One row of the benchmark.

    A rival is a function that names the inputs it reads as its parameters; what it needs made ready in advance (a
    dense form of a frozen matrix) is an input too, so that it is not timed. `ours` takes the namespace of
    operators first: with `flyk.ops` it is timed, with `flyk.reference` and float64 inputs it is the answer.
    """

    op: str
    what: str  # which use of the operator, e.g. "forward and backward"
    sizes: str
    inputs: Callable[[torch.Generator], Inputs]
    published: Callable[..., Result]  # the paper's or its official code's algorithm, plainly in eager PyTorch
    eager: Callable[..., Result]  # the best eager PyTorch that an expert would write
    ours: Callable[..., Result]
    floor: Floor
    bound: float = 1e-5  # largest error against float64, relative to the largest entry of the answer
    gradients: tuple[str, ...] = ()  # inputs whose gradient is part of the work; "grad" is then the output's
    state: tuple[str, ...] = ()  # inputs that are written to
    compared: Callable[[Result, Inputs], tuple[Tensor, ...]] = _whole  # what of a result must agree
    uncompiled: str = ""  # why torch.compile is not tried
    stream: tuple[str, ...] = ()  # inputs of which the published rival, when too long, is given only ...
    share: int = 1  # ... the first 1/share of the rows; its time is multiplied by that again

    @property
    def name(self) -> str:
        return f"{self.op} {self.what}: {self.sizes}"

    def inputs_of(self, rival: str, inputs: Inputs) -> Inputs:
        """The inputs as a rival gets them."""
        if rival != "published" or self.share == 1:
            return inputs
        return inputs | {name: inputs[name][: len(inputs[name]) // self.share] for name in self.stream}


def normal(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=generator)


def choose(generator: torch.Generator, n: int, *shape: int) -> Tensor:
    """Random int64 from 0 to n - 1."""
    return torch.randint(n, shape, generator=generator)


def frozen(
    generator: torch.Generator, rows: int, in_features: int, nnz: int | None, std: float = 1.0
) -> tuple[Tensor, Tensor | None]:
    """A frozen Gaussian matrix as values and indices; dense, with no indices, where nnz is None."""
    values = torch.empty(rows, nnz or in_features)
    indices = None if nnz is None else torch.empty(rows, nnz, dtype=torch.int32)
    kind = "gaussian" if nnz is None else "sparse_gaussian"
    make_projection_(values, indices, kind, in_features, std, generator.initial_seed())
    return values, indices


def decided(x: Tensor, scores: Tensor, k: int, margin: float = 1e-5) -> Tensor:
    """x with every row replaced whose k-th score and the next agree to within float32's rounding.

    Such a row has two right sets of winners, and a rival would be called wrong for finding the other.
    """
    top = scores.topk(min(k + 1, scores.shape[1])).values
    clear = x[top[:, k - 1] - top[:, -1] > margin * top[:, k - 1]] if k < scores.shape[1] else x
    return clear[torch.arange(len(x)) % len(clear)]


def placed(winners: Tensor, indices: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """Winners in their places among n, and the sizes in their order: together they say all of a top-k."""
    return winners.new_zeros(*winners.shape[:-1], n).scatter(-1, indices, winners), winners.abs()
