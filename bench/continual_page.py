"""The page docs/results/continual.md, from the results of bench/continual.py, beside the papers' figures."""

from __future__ import annotations

import json
from pathlib import Path

from flyk.continual import ablate, compare

# A_auc and A_last in %, of arXiv 2602.01976: CIFAR-100, ViT-B/16 of ImageNet-21K, 5 tasks.
METHODS = {
    "flyprompt": (83.24, 86.76),
    "codaprompt": (79.13, 80.91),
    "dualprompt": (76.04, 76.62),
    "l2p": (76.23, 79.11),
    "mvp": (67.74, 63.22),
    "misa": (80.35, 80.75),
    "ranpac": (69.91, 79.92),
}
ONLINE, BOTH, ORACLE = "bank ", "bank 0.9 0.99", "oracle router"
HEADS = {ONLINE: "online", BOTH: "online, averaged", ORACLE: "online, averaged; oracle router"}
PARTS = {
    ("no-prompt-one-expert", ONLINE): (71.33, 73.22),
    ("no-prompt-one-expert", BOTH): (71.69, 73.30),
    ("prompt-one-expert", ONLINE): (80.75, 83.65),
    ("prompt-one-expert", BOTH): (82.17, 83.75),
    ("all", ONLINE): (81.90, 84.23),
    ("all", "bank 0.9"): (82.81, 86.36),
    ("all", "bank 0.99"): (82.84, 86.41),
    ("all", "bank 0.999"): (81.80, 84.39),
    ("all", BOTH): (83.24, 86.76),
    ("all", "bank 0.9 0.99 0.999"): (82.99, 86.24),
    ("all", "aggregation mean"): (81.34, 85.11),
    ("all", "aggregation max"): (82.29, 84.95),
    ("all", "aggregation min-entropy"): (83.11, 86.50),  # there "softmax-min-entropy"
    ("all", "aggregation softmax-mean"): (82.30, 85.98),
    ("all", "aggregation softmax-max"): (83.24, 86.76),
    ("all", "router prototype"): (80.67, 83.80),
    ("all", "router naive-bayes"): (82.73, 85.51),
    ("all", "router mlp"): (81.75, 82.76),
    ("all", "router k-means"): (82.22, 85.27),
    ("mask-none", BOTH): (78.73, 83.62),
    ("mask-random", BOTH): (78.32, 81.88),
    ("mask-seen", BOTH): (78.75, 82.87),
}


def page(folder: Path) -> str:
    """The page, from the results kept in a folder."""
    lines = [
        "# Continual learning: measured",
        "",
        f"Made by `bench/continual.py` from the files under `docs/results/{folder.name}`. A method's row is a config",
        "under `examples/continual`, which holds its command; the tables in parts are `flyk continual ablate` of",
        "FlyPrompt's, those of rates `bench/continual.py --tune`. Mean ± standard deviation over seeds, in %.",
        "*Paper* is A_auc / A_last of arXiv 2602.01976 on CIFAR-100 with a ViT-B/16 of ImageNet-21K, in five",
        "tasks, presumably of unequal size, where here are ten equal ones: compare the order of rows and not",
        "their height. There RanPAC has a fixed ridge and the training augmentation; here it chooses its ridge",
        "and is without its first phase. MISA is here without its pretraining. *joint* rows see all classes from",
        "the start, so that only their A_last compares: what the same head or prompt reaches without a stream, at",
        "its rate and number of passes. Rates were chosen on another seed, which decides the stream and the",
        "start; the test samples are the same. *bank B* is the online head together with averages of the decays",
        "B. [How the bench works, and what was seen](../continual.md).",
    ]
    for part in sorted(path for path in folder.iterdir() if path.is_dir()):
        results = compare.read_results([part])
        plain = {name: runs for name, runs in results.items() if "-ablation/" not in name}
        ablation = {name: runs for name, runs in results.items() if "-ablation/" in name}
        lines += ["", f"## {part.name}", "", *methods(plain)]
        if ablation:
            lines += ["", f"### {part.name}: FlyPrompt in parts", "", *parts(ablation)]
    tuning = folder / "tuning.json"
    if tuning.exists():
        rows = json.loads(tuning.read_text())
        for stream in sorted({row["stream"] for row in rows}):
            lines += ["", *rates(stream, [row for row in rows if row["stream"] == stream])]
    return "\n".join(lines) + "\n"


def methods(results: dict[str, list[dict]]) -> list[str]:
    """What the stream is, and a row for each method."""
    first = next(iter(results.values()))[0]
    data, config, threads = first["data"], first["config"], first["machine"]["threads"]
    machines = [one["machine"] for runs in results.values() for one in runs]
    where = " and ".join(sorted({machine.get("processor", machine["system"]) for machine in machines}))
    said = (
        f"{data['source']}: {data['train']:,} training and {data['test']:,} test samples of {len(data['classes'])} "
        f"classes, batches of {config['batch_size']}; {where}, runs of {threads} thread(s), "
        f"torch {first['versions']['torch']}."
    )
    table = compare.as_text(compare.summarise(results), markdown=True).splitlines()
    if not any(name in METHODS for name in results) or config["backbone"] != "vit-s":
        return [said, "", *table]
    lines = [said, "", f"{table[0]} paper |", f"{table[1]}--:|"]
    for row in table[2:]:
        lines.append(f"{row} {both(METHODS.get(row.split('|')[1].strip()))} |")
    return lines


def parts(results: dict[str, list[dict]]) -> list[str]:
    """Two tables: what was trained otherwise, under three readings; what else FlyPrompt's own training reads."""
    runs = [one | {"variant": name.rpartition("/")[2]} for name, some in results.items() for one in some]
    rows = ablate.table(runs)
    trained = [row for reading in HEADS for row in rows if row["reading"] == reading]
    read = [row for row in rows if row["variant"] == "all" and row["reading"] not in HEADS]
    seeds = {row["variant"]: sum(one["variant"] == row["variant"] for one in runs) for row in rows}
    lines = ["| trained | heads | A_auc | A_last | paper | seeds |", "|---|---|--:|--:|--:|--:|"]
    for row in trained:
        lines.append(f"| {row['variant']} | {HEADS[row['reading']]} | {reached(row)} | {seeds[row['variant']]} |")
    if read:
        lines += ["", "| all, read otherwise | A_auc | A_last | paper | seeds |", "|---|--:|--:|--:|--:|"]
        lines += [f"| {row['reading']} | {reached(row)} | {seeds['all']} |" for row in read]
    return lines


def reached(row: dict) -> str:
    """A_auc, A_last, and what the paper has of both, as cells."""
    cells = [compare.cell(row[key], 100) for key in ("a_auc", "a_last")]
    return " | ".join([*cells, both(PARTS.get((row["variant"], row["reading"])))])


def rates(stream: str, rows: list[dict]) -> list[str]:
    """What was compared to choose the rates: A_auc / A_last, a table of heads alone and one of heads and prompts."""
    lines = [f"## {stream}: rates, on seed {rows[0]['seed']}", "", "A_auc / A_last in %."]
    for prompted in (False, True):
        if some := [row for row in rows if (row["prompt_rate"] is not None) == prompted]:
            lines += ["", *rates_table(some)]
    return lines


def rates_table(rows: list[dict]) -> list[str]:
    """A row for each method, a column for each pair of rates."""
    pairs = sorted({(row["learning_rate"], row["prompt_rate"]) for row in rows}, key=lambda pair: (pair[1] or 0, pair))
    found = {(row["method"], row["learning_rate"], row["prompt_rate"]): row for row in rows}
    lines = [f"| | {' | '.join(map(pair_name, pairs))} |", "|---|" + "--:|" * len(pairs)]
    for name in sorted({row["method"] for row in rows}):
        cells = [found.get((name, *pair)) for pair in pairs]
        told = [both(None if one is None else (100 * one["a_auc"], 100 * one["a_last"])) for one in cells]
        lines.append(f"| {name} | {' | '.join(told)} |")
    return lines


def pair_name(pair: tuple[float, float | None]) -> str:
    """The rates of a head and of prompts, None where there are none."""
    head, prompts = pair
    return f"head {head:g}" if prompts is None else f"head {head:g}, prompts {prompts:g}"


def both(pair: tuple[float, float] | None) -> str:
    """A_auc / A_last."""
    return "–" if pair is None else f"{pair[0]:.1f} / {pair[1]:.1f}"
