"""The result as tables of plain text: those of the paper's form, its claims beside what was seen, costs, settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flyk.adapters.demo.cost import PUBLISHED
from flyk.adapters.demo.methods import METHODS

R8, R32, FA, FLY = (method.name for method in METHODS)
CONCAT = f"{FLY}, concat"


@dataclass(frozen=True)
class Table:
    """A heading, column names, rows of text, a sentence above, and the columns that are words and not figures."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""
    words: Sequence[int] = (0,)


def tables(result: dict[str, Any]) -> list[Table]:
    return [make(result) for make in (alone, merged, claims, costs, rates, setting)]


def alone(result: dict[str, Any]) -> Table:
    """As the paper's Table 1."""
    names, size = [task["name"] for task in result["tasks"]], result["model"]["parameters"]
    frozen = (points(value) for value in (*result["frozen"], np.mean(result["frozen"])))
    rows: list[tuple[str, ...]] = [("no adapter", *frozen, "–", "–")]
    for name, found in result["alone"].items():
        count = result["cost"]["parameters"][name]
        shares = (f"{count[key]:,} ({100 * count[key] / size:.3f} %)" for key in ("trained", "used"))
        rows.append((name, *(spread(values) for values in columns(found)), *shares))
    return Table(
        "Each task alone",
        ("", *names, "mean", "trained", "of them used by a token"),
        rows,
        "Accuracy in %, mean ± standard deviation over seeds; in brackets the share of the whole model's parameters. "
        "The paper counts for FlyLoRA what a token uses; Adam's states cover what is trained.",
    )


def merged(result: dict[str, Any]) -> Table:
    """As the paper's Table 2."""
    names = [task["name"] for task in result["tasks"]]
    pairs = {**{name: (name, found) for name, found in result["merged"].items()}, CONCAT: (FLY, result["concat"])}
    rows = []
    for label, (name, after) in pairs.items():
        both = zip(columns(after), columns(result["alone"][name]), strict=True)
        rows.append((label, *(f"{spread(a)} [{signed(np.mean(a - b))}]" for a, b in both)))
    return Table(
        "All four tasks merged by averaging",
        ("", *names, "mean"),
        rows,
        "Accuracy in % with one adapter for all tasks, and in brackets the change from each task alone, in points. The "
        "updates are averaged as weights, W + Σ 1/4 · alpha/r · B A (Eq. 12); for FlyLoRA every rank then serves every "
        "token. concat keeps each task's winners instead, and is exactly the average of what the four adapters add.",
    )


def claims(result: dict[str, Any]) -> Table:
    """The paper's claims beside what was seen here."""
    return Table(
        "The paper's claims",
        ("claim of arXiv 2510.08396", "there", "here", "verdict"),
        [*_accuracy_claims(result), *_cost_claims(result["cost"])],
        "A difference counts where it is larger than its standard deviation over seeds. The paper trains models of 7 "
        "to 14 thousand million parameters on other sets; agreement is not owed.",
        words=(0, 1, 2, 3),
    )


def _accuracy_claims(result: dict[str, Any]) -> list[tuple[str, ...]]:
    found = {name: np.array(values) for name, values in result["alone"].items()}
    change = {name: np.array(result["merged"][name]) - found[name] for name in found}
    best = max((R8, R32), key=lambda name: found[name].mean())
    mildest = max((R8, R32), key=lambda name: change[name].mean())
    return [
        (
            "FlyLoRA alone is more accurate than LoRA r8 and r32",
            "40.88 against 36.53 and 38.93 (Llama-3.1-8B, MMLU); so on all four sets",
            f"{listed(found, FLY, R8, R32)}, mean of the tasks",
            verdict(found[FLY] - found[best]),
        ),
        (
            "It loses less by merging than LoRA r8 and r32",
            "−2.02 against −6.48 and −4.91 points (MMLU); −43.05 against −60.34 and −59.66 (ScienceQA)",
            f"{listed(change, FLY, R8, R32, sign='+')} points, mean of the tasks",
            verdict(change[FLY] - change[mildest]),
        ),
        (
            "Frozen A costs nothing alone",
            "40.88 frozen, 40.64 ± 1.35 trained",
            f"{listed(found, FA, R32)} (LoRA-FA against LoRA, r 32)",
            verdict(found[FA] - found[R32]),
        ),
        (
            "Frozen A helps merging",
            "38.86 frozen, 34.43 trained, after merging",
            f"{listed(change, FA, R32, sign='+')} points (LoRA-FA against LoRA, r 32)",
            verdict(change[FA] - change[R32]),
        ),
        (
            "Choosing k ranks for each token helps",
            "40.88 for k 8, 39.40 ± 1.14 for all ranks: within about one standard deviation",
            f"{listed(found, FLY, FA)} (FlyLoRA against LoRA-FA, which uses all)",
            verdict(found[FLY] - found[FA]),
        ),
    ]


def _cost_claims(cost: dict[str, Any]) -> list[tuple[str, ...]]:
    used = {name: count["used"] for name, count in cost["parameters"].items()}
    speed, peak, kept = cost["tokens a second"], cost["peak"], cost["kept"]
    return [
        (
            "A token uses fewer trained parameters",
            "0.13 % of the model against 0.26 % for LoRA r8; trained are 0.55 %",
            f"{used[FLY]:,} against {used[R8]:,}; trained are {cost['parameters'][FLY]['trained']:,}",
            "seen" if used[FLY] < used[R8] else "not seen",
        ),
        (
            "Training takes less time",
            "1 % less than LoRA r8, 7 to 8 % less than r32",
            f"{less(1 / speed[FLY], 1 / speed[R8])} than LoRA r8, {less(1 / speed[FLY], 1 / speed[R32])} than r32",
            "seen" if speed[FLY] > speed[R8] else "not seen",
        ),
        (
            "and less memory",
            "15 to 46 % less than LoRA r8, of all memory",
            f"{less(kept[FLY], kept[R8])} than LoRA r8 kept for the backward"
            + (f", {less(peak[FLY], peak[R8])} at the peak of a step" if peak else ""),
            "seen" if kept[FLY] < kept[R8] else "not seen",
        ),
    ]


def costs(result: dict[str, Any]) -> Table:
    cost = result["cost"]
    own = cost["kept"][""]
    rows = []
    for name in (*result["alone"], PUBLISHED):
        known = name in result["alone"]
        count = cost["parameters"].get(name, {})
        rows.append(
            (
                name,
                f"{count['drawn']:,}" if known else "–",
                f"{cost['tokens a second'][name]:,.0f}" if known else "–",
                mebi(cost["peak"][name]) if known and cost["peak"] else "–",
                mebi(cost["kept"][name]) if known else "–",
                mebi(cost["kept"][name] - own) if known else "–",
                f"{cost['adapter ms'][name]:.2f}",
            )
        )
    return Table(
        "Cost",
        (
            "",
            "entries of A, frozen",
            "tokens/s in training",
            "peak of a step, MiB",
            "kept for the backward, MiB",
            "of it by the adapters",
            "adapters of a block, ms",
        ),
        rows,
        f"A step is forward, backward and AdamW of the adapted layers on {cost['batch']} rows of {cost['tokens']} "
        "tokens, median of interleaved steps; its peak is beyond what network and adapters hold. The last column is "
        "forward and backward of one block's adapters alone, on as many rows, in turns with the published FlyLoRA in "
        "eager PyTorch.",
    )


def rates(result: dict[str, Any]) -> Table:
    grid = list(next(iter(result["search"].values())))
    rows = [
        (name, *(points(value) for value in found.values()), f"{result['rates'][name]:g}")
        for name, found in result["search"].items()
    ]
    return Table(
        "Learning rates",
        ("", *(f"{float(rate):g}" for rate in grid), "chosen"),
        rows,
        f"Mean accuracy in % on validation examples of {' and '.join(result['searched'])} after training "
        "with a seed of its own; – where there was one rate and no search. The best serves all runs.",
    )


def setting(result: dict[str, Any]) -> Table:
    own, model, machine, spent = (result[key] for key in ("settings", "model", "machine", "seconds"))
    rows = [
        ("command", result["command"]),
        ("model", f"{model['name']}: {model['parameters']:,} parameters, {model['layers']} layers, float32"),
        ("adapted", f"{', '.join(model['targets'])} of the last {own['layers']} layers; the others computed once"),
        *(
            (
                task["name"],
                f"{task['train']} examples to train, {task['test']} to test, {task['length']:.0f} tokens on average; "
                f"{task['skipped']} drawn were too long; "
                + (f"{task['labels']} labels" if task["labels"] else "the likeliest of each example's own answers"),
            )
            for task in result["tasks"]
        ),
        (
            "training",
            f"one pass in batches of {own['batch']}, AdamW, rate falling to zero, no weight decay, alpha = 2r",
        ),
        (
            "seeds",
            f"{own['seeds']}; A and the order of examples differ with the seed and with the task, for all methods",
        ),
        ("machine", f"{machine['processor']}, {machine['threads']} threads, kernels {machine['kernels']}"),
        ("versions", ", ".join(f"{name} {version}" for name, version in result["versions"].items())),
        (
            "time",
            f"{spent['units']:,.0f} seconds for all units, {spent['processor']:,.0f} of them the processor's, "
            "summed over its cores",
        ),
        ("date", machine["date"]),
    ]
    return Table("This run", ("", ""), rows, words=(0, 1))


def columns(found: Sequence[Sequence[float]]) -> list[NDArray[np.float64]]:
    """Values over seeds for each task, and at the end for their mean."""
    values = np.array(found)
    return [*values.T, values.mean(1)]


def listed(values: dict[str, NDArray[np.float64]], *names: str, sign: str = "") -> str:
    """Means of the tasks, with `sign` before those above zero."""
    means = [values[name].mean(1) for name in names]
    first, *others = (sign * int(mean.mean() > 0) + spread(mean) for mean in means)
    return f"{first} against {' and '.join(others)}"


def verdict(difference: NDArray[np.float64]) -> str:
    """Of a difference (seeds, tasks) that a claim says is above zero."""
    by_seed = difference.mean(1)
    if len(by_seed) < 2:
        return "one seed only"
    if abs(by_seed.mean()) <= by_seed.std(ddof=1):
        return "no clear difference"
    return "seen" if by_seed.mean() > 0 else "not seen: the other way"


def spread(values: NDArray[np.float64]) -> str:
    deviation = f" ± {100 * np.std(values, ddof=1):.1f}" if len(values) > 1 else ""
    return points(float(np.mean(values))) + deviation


def points(value: Any) -> str:
    return "–" if value is None else f"{100 * value:.1f}".replace("-", "−")


def signed(value: Any) -> str:
    return f"{100 * value:+.1f}".replace("-", "−")


def less(one: float, other: float) -> str:
    share = 100 * (1 - one / other)
    return f"{abs(share):.1f} % {'less' if share >= 0 else 'more'}"


def mebi(size: float) -> str:
    return f"{size / 2**20:,.1f}"
