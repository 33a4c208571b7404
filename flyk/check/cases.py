"""The inputs on which each operator is held against its reference, made anew from a seed whenever asked for."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
DATA = ("normal", "integers", "nonfinite")
LAYOUTS = ("contiguous", "columns", "transposed", "expanded")
# Operators of sums and choices alone: on small integers every one of their sums is exact in any order.
SUMS = ("project", "winner_take_all", "project_topk", "fly_lora", "gram_", "expand_gram_")


@dataclass(frozen=True)
class Case:
    """One call of one operator.

    Args:
        operator: its name.
        sizes: what each number is says the operator's builder in `flyk.check.grids`.
        dtype: of the floating inputs.
        data: "normal", "integers" (-1, 0 and 1: exact sums, many ties) or "nonfinite" (integers, with NaN and inf).
        layout: strides of every input that may have any: "contiguous", "columns" (every second one), "transposed"
            or "expanded" (stride 0).
        options: arguments passed as they are, and what else the builder wants to know.
        gradient: hold the gradients against autograd through the reference, not the values.
    """

    operator: str
    sizes: tuple[int, ...]
    dtype: torch.dtype
    data: str
    layout: str
    options: tuple[tuple[str, Any], ...]
    gradient: bool = False

    @property
    def name(self) -> str:
        sizes = "x".join(map(str, self.sizes))
        options = " ".join(f"{key}={value}" for key, value in self.options)
        kind = " gradient" if self.gradient else ""
        return f"{self.operator}{kind} {sizes} {str(self.dtype)[6:]} {self.data} {self.layout} {options}".strip()

    @property
    def exact(self) -> bool:
        """Whether every sum is exact, so that a kernel must give the float64 result, rounded once."""
        return self.operator in SUMS and self.data != "normal"


class Draw:
    """Draws the tensors of one case on the CPU from a seed of its own, and puts them on `device`."""

    def __init__(self, case: Case, device: torch.device) -> None:
        self.case, self.device = case, device
        self.options = dict(case.options)
        self.generator = torch.Generator().manual_seed(zlib.crc32(case.name.encode()))

    def numbers(self, *shape: int) -> Tensor:
        if self.case.data == "normal":
            return torch.randn(shape, generator=self.generator, dtype=torch.float64).to(self.case.dtype)
        return torch.randint(-1, 2, shape, generator=self.generator).to(self.case.dtype)

    def ids(self, n: int, *shape: int) -> Tensor:
        """From 0 to n - 1; where n is 0 there may be none."""
        return self.lay(torch.randint(0, max(1, n), shape, generator=self.generator))

    def lay(self, t: Tensor) -> Tensor:
        """`t` on the device, in the case's strides."""
        t = t.to(self.device)
        if t.dim() == 0 or self.case.layout == "contiguous":
            return t
        if self.case.layout == "expanded":
            return t[:1].expand_as(t)
        if self.case.layout == "transposed" and t.dim() > 1:
            return t.mT.contiguous().mT
        return torch.stack((t, t), -1).flatten(-2)[..., ::2]

    def floats(self, *shape: int) -> Tensor:
        return self.lay(self.numbers(*shape))

    def spoiled(self, *shape: int, spread: float = 1.0) -> Tensor:
        """`floats` times `spread`, of which the first rows hold NaN and inf where the case's data are "nonfinite"."""
        t = self.numbers(*shape) * spread
        if self.case.data == "nonfinite" and t.numel() > 0:
            inf, nan = float("inf"), float("nan")
            rows = t.view(-1, shape[-1]) if shape else t.view(1, 1)
            for row, values in zip(rows, ([nan], [inf, -inf], [-inf, -nan, nan], [nan] * shape[-1]), strict=False):
                at = torch.randperm(len(row), generator=self.generator)[: len(values)]
                row[at] = torch.tensor(values[: len(at)], dtype=t.dtype)
        return self.lay(t)

    def optional(self, name: str, *shape: int) -> Tensor | None:
        """`floats` if the case's option `name` says so."""
        return self.floats(*shape) if self.options[name] else None

    def frozen(self, rows: int, columns: int) -> dict[str, Tensor | None]:
        """A matrix of option "nnz" entries a row, dense where that is None."""
        nnz = self.options["nnz"]
        if nnz is None:
            return {"values": self.floats(rows, columns), "indices": None}
        order = torch.rand(rows, columns, generator=self.generator).argsort(1)[:, :nnz]
        kind = torch.int32 if rows % 2 else torch.int64
        return {"values": self.floats(rows, nnz), "indices": self.lay(order.to(kind))}

    def passed(self, *names: str) -> dict[str, Any]:
        return {name: self.options[name] for name in names}


Options = Mapping[str, Callable[[Sequence[int]], Sequence[Any]]]


def grid(
    operator: str,
    shapes: Sequence[tuple[int, ...]],
    *,
    dtypes: Sequence[torch.dtype] = DTYPES,
    data: Sequence[str] = DATA,
    layouts: Sequence[str] = LAYOUTS,
    each: Options | None = None,
    some: Options | None = None,
    gradient: bool = False,
) -> Iterator[Case]:
    """Every shape in every dtype with every value of the options `each`; data, layout and options `some` by lot.

    An option is a function of the sizes that gives the values to choose from.
    """
    lot = random.Random(operator)
    for sizes in shapes:
        for dtype in dtypes:
            for combination in _combinations(each or {}, sizes):
                rest = {name: lot.choice(values(sizes)) for name, values in (some or {}).items()}
                options = tuple((combination | rest).items())
                yield Case(operator, sizes, dtype, lot.choice(data), lot.choice(layouts), options, gradient)


def _combinations(options: Options, sizes: Sequence[int]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [{}]
    for name, values in options.items():
        found = [before | {name: value} for before in found for value in values(sizes)]
    return found


def double(arguments: dict[str, Any]) -> dict[str, Any]:
    """Copies of the arguments, floating tensors among them as float64."""
    return {
        name: value.detach().double().clone() if isinstance(value, Tensor) and value.is_floating_point() else value
        for name, value in arguments.items()
    }
