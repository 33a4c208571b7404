"""For each operator: how its arguments are drawn, which are differentiable, and the grid of cases."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from flyk.check.bounds import clear_winners, expansion
from flyk.check.cases import Case, Draw, double, grid
from flyk.ops import _check
from flyk.ops.make_projection_ import KINDS

Arguments = dict[str, Any]
FINITE = ("normal", "integers")
NAMES = {
    "bias": lambda _: (False, True),
    "selection": lambda _: _check.SELECTIONS,
    "activation": lambda _: _check.ACTIVATIONS,
    "precision": lambda _: ("float32", "float32", "bf16", "bf16x3"),
}


def _some(n: int) -> list[int]:
    """0, 1, a middle number and all of n."""
    return sorted({0, min(1, n), n // 3, n})


def _nnz(columns: int) -> list[int | None]:
    return [None, None, *_some(columns)]


def _only(*names: str) -> dict[str, Any]:
    return {name: NAMES[name] for name in names}


# Sizes (columns d, rows M, leading ...)
MATRICES = (
    *((7, 5, 0), (1, 1, 1), (13, 17), (0, 5, 3), (17, 0, 5), (33, 31, 7), (67, 101, 2, 3), (129, 67, 19)),
    *((40, 257, 70), (200, 520, 40)),
)


def project(draw: Draw) -> Arguments:
    d, m, *lead = draw.case.sizes
    return {"x": draw.spoiled(*lead, d), **draw.frozen(m, d), **draw.passed("activation", "precision")}


def _project() -> Iterator[Case]:
    some = {"nnz": lambda s: _nnz(s[0]), **_only("precision")}
    yield from grid("project", MATRICES, each=_only("activation"), some=some)
    # The gradient is the exact product's, whatever precision the forward was asked for.
    some = some | {"precision": lambda _: ("float32",)}
    yield from grid("project", MATRICES, data=FINITE, each=_only("activation"), some=some, gradient=True)


def winner_take_all(draw: Draw) -> Arguments:
    n, *lead = draw.case.sizes
    return {"y": draw.spoiled(*lead, n), "bias": draw.optional("bias", n), **draw.passed("k", "selection")}


def _winner_take_all() -> Iterator[Case]:
    shapes = ((0, 3), (1, 1), (7,), (64, 0), (31, 2, 3), (64, 70), (65, 9), (257, 20), (1009, 6), (5003, 3))
    each = {"k": lambda s: _some(s[0])}
    yield from grid("winner_take_all", shapes, each=each, some=_only("bias", "selection"))
    yield from grid(
        "winner_take_all", shapes[:-1], data=FINITE, some={**each, **_only("bias", "selection")}, gradient=True
    )


def project_topk(draw: Draw) -> Arguments:
    d, m, *lead = draw.case.sizes
    matrix = draw.frozen(m, d)
    return {
        **{"x": draw.spoiled(*lead, d), **matrix, "bias": draw.optional("bias", m)},
        **draw.passed("k", "selection", "activation"),
    }


def _project_topk() -> Iterator[Case]:
    k = {"k": lambda s: _some(s[1])}
    some = {"nnz": lambda s: _nnz(s[0]), **_only("bias", "selection", "activation")}
    yield from grid("project_topk", MATRICES, each=k, some=some)
    yield from grid("project_topk", MATRICES, data=FINITE, some={**k, **some}, gradient=True)


def fly_lora(draw: Draw) -> Arguments:
    d, r, m, *lead = draw.case.sizes
    return {
        **{"x": draw.spoiled(*lead, d), "base": draw.optional("base", *lead, m), **draw.frozen(r, d)},
        **{"B": draw.floats(m, r), "bias": draw.optional("bias", r)},
        **draw.passed("k", "scale", "selection"),
    }


def _fly_lora() -> Iterator[Case]:
    shapes = (  # d, r, m, leading ...
        *((5, 3, 4, 0), (1, 1, 1, 1), (13, 8, 7), (0, 4, 5, 3), (33, 31, 17, 6), (67, 32, 0, 5)),
        *((67, 32, 101, 2, 3), (40, 64, 67, 70), (129, 100, 33, 19), (96, 32, 130, 150)),
    )
    k = {"k": lambda s: _some(s[1])}
    some = {
        **{"nnz": lambda s: _nnz(s[0]), "base": lambda _: (False, True), "scale": lambda _: (1.0, -0.5, 2.0)},
        **_only("bias", "selection"),
    }
    yield from grid("fly_lora", shapes, each=k, some=some)
    yield from grid("fly_lora", shapes, data=FINITE, each=k, some=some, gradient=True)
    # A scale that float32 cannot hold, which shows a kernel that narrows it; its products are exact on no data.
    some = some | k | {"scale": lambda _: (0.3,)}
    for gradient in (False, True):
        yield from grid("fly_lora", shapes, dtypes=(torch.float64,), data=("normal",), some=some, gradient=gradient)


def gram_(draw: Draw) -> Arguments:
    n, m, classes = draw.case.sizes
    return {
        **_statistics(draw, m, classes),
        **{"phi": draw.floats(n, m), "labels": draw.ids(classes, n)},
        **draw.passed("precision"),
    }


def _statistics(draw: Draw, m: int, classes: int) -> Arguments:
    """G and Q as they stand before, float32 or float64 and contiguous."""
    kind = torch.float64 if draw.case.dtype == torch.float64 else draw.options["accumulator"]
    return {name: draw.numbers(m, size).to(draw.device, kind) for name, size in (("G", m), ("Q", classes))}


ACCUMULATOR = {"accumulator": lambda _: (torch.float32, torch.float64)}


def _gram_() -> Iterator[Case]:
    shapes = (  # rows, M, classes
        *((0, 5, 3), (0, 7, 0), (1, 1, 1), (3, 0, 2), (5, 17, 1), (33, 31, 7), (70, 129, 10), (300, 65, 5)),
        (9, 1030, 3),  # past one panel of G
    )
    yield from grid("gram_", shapes, data=FINITE, each=_only("precision"), some=ACCUMULATOR)


def expand_gram_(draw: Draw) -> Arguments:
    d, m, classes, n = draw.case.sizes
    passed = draw.passed("activation", "k", "precision")
    matrix = draw.frozen(m, d)
    h = draw.numbers(n, d)
    statistics = _statistics(draw, m, classes)
    if draw.case.data == "normal" and passed["k"] is not None:
        # Where rounding could change the winners there is no one right answer: such rows become 0.
        eps = torch.finfo(statistics["G"].dtype).eps
        y, slack = expansion(double({"h": h, **matrix}), eps, **draw.passed("activation", "precision"))
        h = h * clear_winners(y, slack, passed["k"])[:, None]
    labels = draw.ids(classes, n)
    return {**statistics, "h": draw.lay(h), **matrix, "labels": labels, **passed}


def _expand_gram_() -> Iterator[Case]:
    shapes = (  # d, M, classes, rows
        *((7, 5, 3, 0), (1, 1, 1, 1), (13, 17, 2, 5), (33, 67, 7, 9), (20, 300, 10, 70)),
        (9, 130, 4, 1030),  # past one block of rows
    )
    few = {"k": lambda s: [None, 0, max(1, s[1] // 30), s[1] // 10, s[1] // 3, s[1]]}
    some = {"nnz": lambda s: _nnz(s[0]), **ACCUMULATOR, **_only("activation", "precision")}
    yield from grid("expand_gram_", shapes, data=FINITE, each=few, some=some)


def ridge_solve(draw: Draw) -> Arguments:
    m, classes = draw.case.sizes
    root = draw.numbers(4 * m + 3, m)  # of a condition number near 9
    above = torch.full((m, m), torch.nan, dtype=root.dtype).triu(1)  # must not be read
    return {
        **{"G": draw.lay((root.T @ root).tril() + above), "Q": draw.floats(m, classes)},
        **draw.passed("ridge"),
    }


def _ridge_solve() -> Iterator[Case]:
    shapes = ((0, 3), (1, 1), (5, 0), (7, 2), (17, 3), (64, 7), (131, 10))
    kinds = {"dtypes": _check.ACCUMULATORS, "data": ("normal",)}
    layouts = ("contiguous", "columns", "transposed")  # rows of stride 0 make no positive definite matrix
    ridge = {"ridge": lambda _: (0.5, 100.0)}
    for gradient in (False, True):
        yield from grid("ridge_solve", shapes, **kinds, layouts=layouts, each=ridge, gradient=gradient)


def ema_(draw: Draw) -> Arguments:
    n, *shape = draw.case.sizes
    bank = draw.spoiled(n, *shape)
    if draw.case.layout == "expanded":  # several entries in one place cannot be written to
        bank = bank.contiguous()
    return {"bank": bank, "online": draw.floats(*shape), "decays": [(0.0, 0.9, 0.999, 1.0)[i % 4] for i in range(n)]}


def _ema_() -> Iterator[Case]:
    shapes = ((0, 5), (1, 1), (3,), (2, 3, 0), (2, 7), (4, 17, 31), (3, 2, 5, 13), (5, 1000))
    yield from grid("ema_", shapes)


def ensemble(draw: Draw) -> Arguments:
    n, d, classes, experts, heads = draw.case.sizes
    seen = None
    if draw.options["seen"]:
        at_least_one = torch.arange(classes) == 0
        seen = draw.lay((torch.rand(classes, generator=draw.generator) < 0.5) | at_least_one)
    return {
        **{"h": draw.spoiled(n, d), "online_weight": draw.floats(classes, d)},
        **{"online_bias": draw.optional("online_bias", classes)},
        **{"bank_weight": draw.floats(experts, heads, classes, d)},
        **{"bank_bias": draw.optional("bank_bias", experts, heads, classes)},
        **{"expert_ids": draw.ids(experts, n), "seen": seen},
    }


def _ensemble() -> Iterator[Case]:
    shapes = (  # rows, d, classes, experts, heads
        *((0, 5, 3, 2, 2), (1, 1, 1, 1, 1), (3, 5, 0, 2, 1), (6, 0, 4, 2, 1), (5, 17, 3, 2, 0), (7, 13, 5, 3, 2)),
        *((33, 67, 31, 4, 2), (9, 40, 101, 10, 3), (64, 129, 17, 5, 2)),
    )
    some = {name: lambda _: (False, True) for name in ("online_bias", "bank_bias", "seen")}
    yield from grid("ensemble", shapes, some=some)
    yield from grid("ensemble", shapes, data=("normal",), some=some, gradient=True)


def masked_cross_entropy(draw: Draw) -> Arguments:
    n, classes = draw.case.sizes
    return {"logits": draw.spoiled(n, classes, **draw.passed("spread")), "target": draw.ids(classes, n)}


def _masked_cross_entropy() -> Iterator[Case]:
    shapes = ((0, 0), (0, 5), (1, 1), (7, 3), (33, 101), (64, 1000), (300, 7))
    spread = {"spread": lambda _: (1.0, 30.0)}
    yield from grid("masked_cross_entropy", shapes, each=spread)
    yield from grid("masked_cross_entropy", shapes, data=FINITE, each=spread, gradient=True)


def make_projection_(draw: Draw) -> Arguments:
    rows, columns = draw.case.sizes
    kind, nnz = draw.options["kind"], min(draw.options["nnz"], columns)
    dense = kind == "gaussian"
    return {
        "values": torch.zeros(rows, columns if dense else nnz, device=draw.device),
        "indices": None if dense else torch.zeros(rows, nnz, dtype=torch.int32, device=draw.device),
        **{"in_features": columns, **draw.passed("kind", "std", "seed", "first")},
    }


def _make_projection_() -> Iterator[Case]:
    some = {
        **{"nnz": lambda s: (1, max(1, s[1] // 3), s[1]), "std": lambda _: (1.0, 0.03125, 0.7)},
        **{"seed": lambda _: (0, 1, 2**41 + 7, 2**63 - 1), "first": lambda _: (0, 5, 2**33)},
    }
    kinds = {"kind": lambda _: KINDS}
    shapes = ((0, 7), (3, 0), (1, 1), (5, 17), (70, 33), (67, 257))
    only = {"dtypes": (torch.float32,), "data": ("normal",), "layouts": ("contiguous",)}
    yield from grid("make_projection_", shapes, **only, each=kinds, some=some)


def count_winners_(draw: Draw) -> Arguments:
    ranks, k, *lead = draw.case.sizes
    indices = torch.rand(*lead, ranks, generator=draw.generator).argsort(-1)[..., :k]
    mask = torch.rand(lead, generator=draw.generator) < 0.7
    return {
        "counts": torch.arange(ranks, device=draw.device),
        "indices": draw.lay(indices),
        "mask": draw.lay(mask) if draw.options["mask"] else None,
    }


def _count_winners_() -> Iterator[Case]:
    shapes = ((5, 2, 0), (1, 1, 1), (7, 0, 3), (8, 3), (31, 7, 2, 3), (64, 64, 5), (100, 13, 70))
    only = {"dtypes": (torch.float32,), "data": ("normal",)}
    yield from grid("count_winners_", shapes, **only, each={"mask": lambda _: (False, True)})


@dataclass(frozen=True)
class Subject:
    """How the arguments of an operator are drawn, in which cases, and which arguments have a gradient."""

    build: Callable[[Draw], Arguments]
    cases: Callable[[], Iterator[Case]]
    differentiable: tuple[str, ...] = ()


SUBJECTS = {
    "project": Subject(project, _project, ("x",)),
    "winner_take_all": Subject(winner_take_all, _winner_take_all, ("y",)),
    "project_topk": Subject(project_topk, _project_topk, ("x",)),
    "fly_lora": Subject(fly_lora, _fly_lora, ("x", "base", "B")),
    "gram_": Subject(gram_, _gram_),
    "expand_gram_": Subject(expand_gram_, _expand_gram_),
    "ridge_solve": Subject(ridge_solve, _ridge_solve, ("G", "Q")),
    "ema_": Subject(ema_, _ema_),
    "ensemble": Subject(ensemble, _ensemble, ("h", "online_weight", "online_bias", "bank_weight", "bank_bias")),
    "masked_cross_entropy": Subject(masked_cross_entropy, _masked_cross_entropy, ("logits",)),
    "make_projection_": Subject(make_projection_, _make_projection_),
    "count_winners_": Subject(count_winners_, _count_winners_),
}
QUICK = 7  # every seventh case: a number that divides no size of a grid


def cases_of(operator: str, *, quick: bool = False) -> list[Case]:
    return list(SUBJECTS[operator].cases())[:: QUICK if quick else 1]


def arguments_of(case: Case, device: torch.device | str = "cpu") -> Arguments:
    """The arguments of a case by name, drawn anew: the same numbers each time."""
    return SUBJECTS[case.operator].build(Draw(case, torch.device(device)))
