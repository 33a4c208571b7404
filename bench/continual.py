"""Every run behind docs/results/continual.md, those that are done left out; then the page itself.

    FLYK_DATA=... python bench/continual.py

A run that was cut goes on where it was, so the script can be stopped and started at will. `--tune` compares rates of
the methods with prompts on a seed of its own, `--page` makes the page alone, of the results that are there. `--share 0/2`
and `--share 1/2` are for two processes at once, each with half of the runs.
"""

from __future__ import annotations

import argparse
import itertools
import json
import shutil
from pathlib import Path

from flyk._files import write_whole
from flyk.continual import ablate, compare
from flyk.continual.bench import run_config
from flyk.continual.config import load_config
from flyk.continual.material import Material, load_material

CONFIGS = Path("examples/continual")
RUNS = Path("runs")
RESULTS = Path("docs/results/continual")
PAGE = Path("docs/results/continual.md")
SEEDS = (1, 2, 3)
PROMPTED = ("flyprompt", "codaprompt", "dualprompt", "l2p", "mvp", "misa", "joint-prompt")  # minutes each on images
ABLATED = CONFIGS / "caltech" / "flyprompt.toml"
TUNING = RESULTS / "tuning.json"
TUNING_SEED = 100
RATES = ((1e-3, 1e-2), (1e-3, 3e-2), (3e-3, 1e-2), (3e-3, 3e-2))  # of the head and of the prompts


def runs() -> list[tuple[Path, int, bool]]:
    """(config, seed, whether it is ablated): what takes seconds first, then FlyPrompt, its ablation, its rivals."""
    quick, fly, ablation, rivals = [], [], [], []
    for seed in SEEDS:
        for path in sorted(CONFIGS.glob("*/*.toml")):
            prompted = path.parent == ABLATED.parent and path.stem in PROMPTED
            (fly if path == ABLATED else rivals if prompted else quick).append((path, seed, False))
        ablation.append((ABLATED, seed, True))
    return [*quick, *fly, *ablation, *rivals]


def make(share: slice) -> None:
    """Makes what is not there yet; samples and backbone are shared by the runs that name the same."""
    materials: dict[tuple, Material] = {}
    for path, seed, ablated in runs()[share]:
        print(path, seed, "ablation" if ablated else "", flush=True)
        config = load_config(path, seed=seed)
        key = (config.data, config.backbone, config.train_per_class, config.test_per_class, config.augment)
        if key not in materials:
            materials[key] = load_material(config, progress=True)
        out = RUNS / path.parent.name
        if ablated:
            ablate.ablate(path, out, [seed], material=materials[key])
        else:
            run_config(path, out, {"seed": seed}, material=materials[key])
        keep()


def tuning(share: slice) -> None:
    """Runs each method with prompts under each pair of rates, on half of the training images."""
    material = None
    for name, rates in list(itertools.product(PROMPTED[:-1], RATES))[share]:
        path, out = ABLATED.with_stem(name), RUNS / "tuning" / "{:g}-{:g}".format(*rates)
        changes = {"seed": TUNING_SEED, "learning_rate": rates[0], "prompt_rate": rates[1], "train_per_class": 10}
        material = material or load_material(load_config(path, **changes))
        print(run_config(path, out, changes, material=material), flush=True)


def keep_tuning() -> None:
    """Keeps the accuracies under each pair of rates."""
    rows = []
    for path in sorted((RUNS / "tuning").glob("**/result.json")):
        result = json.loads(path.read_text())
        settings = {key: result["config"][key] for key in ("method", "seed", "learning_rate", "prompt_rate")}
        rows.append(settings | {key: result["measures"][key] for key in ("a_auc", "a_last")})
    if rows:
        with write_whole(TUNING) as part:
            part.write_text(json.dumps(rows, indent=1) + "\n")


def keep() -> None:
    """Copies finished results to docs/results/continual and makes the page of them."""
    for path in sorted(RUNS.glob("**/seed-*/result.json")):
        if path.is_relative_to(RUNS / "tuning"):
            continue
        target = (RESULTS / path.parent.relative_to(RUNS)).with_suffix(".json")
        if not target.exists() or target.stat().st_mtime < path.stat().st_mtime:
            with write_whole(target) as part:
                shutil.copyfile(path, part)
    keep_tuning()
    if RESULTS.exists():
        with write_whole(PAGE) as part:
            part.write_text(page(), encoding="utf-8")


def page() -> str:
    """The page, from the results kept."""
    lines = [
        "# Continual learning: measured",
        "",
        "Made by `bench/continual.py` from the files under `docs/results/continual`; every row is a config under",
        "`examples/continual`, which holds its command. Mean ± standard deviation over seeds, in %.",
        "[How the bench works](../continual.md).",
    ]
    for folder in sorted(path for path in RESULTS.iterdir() if path.is_dir()):
        results = compare.read_results([folder])
        plain = {name: runs for name, runs in results.items() if "-ablation/" not in name}
        ablation = {name: runs for name, runs in results.items() if "-ablation/" in name}
        first = next(iter(plain.values()))[0]
        config, machine = first["config"], first["machine"]
        lines += [
            "",
            f"## {folder.name}",
            "",
            f"{first['data']['source']}: {first['data']['train']:,} training and {first['data']['test']:,} test "
            f"samples of {len(first['data']['classes'])} classes, batches of {config['batch_size']}; "
            f"{machine['system']}, {machine['threads']} threads, torch {first['versions']['torch']}.",
            "",
            compare.as_text(compare.summarise(plain), markdown=True),
        ]
        if ablation:
            lines += ["", f"### {folder.name}: FlyPrompt in parts", "", *ablation_lines(ablation)]
    if TUNING.exists():
        lines += ["", f"## Rates, on seed {TUNING_SEED}", "", *tuning_lines(json.loads(TUNING.read_text()))]
    return "\n".join(lines) + "\n"


def tuning_lines(rows: list[dict]) -> list[str]:
    """A table of A_auc / A_last, a column for each pair of rates."""
    columns = list(dict.fromkeys((row["learning_rate"], row["prompt_rate"]) for row in rows))
    lines = ["| A_auc / A_last |" + "".join(f" head {head:g}, prompts {prompt:g} |" for head, prompt in columns)]
    lines.append("|---|" + "--:|" * len(columns))
    for name in dict.fromkeys(row["method"] for row in rows):
        cells = [f"{100 * row['a_auc']:.1f} / {100 * row['a_last']:.1f}" for row in rows if row["method"] == name]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def ablation_lines(results: dict[str, list[dict]]) -> list[str]:
    """A table of every reading of every variant."""
    runs = [one | {"variant": name.rpartition("/")[2]} for name, some in results.items() for one in some]
    lines = ["| trained | read | A_auc | A_last | seeds |", "|---|---|--:|--:|--:|"]
    for row in ablate.table(runs):
        seeds = sum(one["variant"] == row["variant"] for one in runs)
        cells = " | ".join(compare.cell(row[key], 100) for key in ("a_auc", "a_last"))
        lines.append(f"| {row['variant']} | {row['reading']} | {cells} | {seeds} |")
    return lines


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--tune", action="store_true")
    options.add_argument("--page", action="store_true")
    options.add_argument("--share", default="0/1")
    given = options.parse_args()
    first, step = map(int, given.share.split("/"))
    if not given.page:
        (tuning if given.tune else make)(slice(first, None, step))
    keep()


if __name__ == "__main__":
    main()
