"""Every run behind docs/results/continual.md, those that are done left out; then the page itself.

    FLYK_DATA=... python bench/continual.py

A run that was cut goes on where it was, so the script can be stopped and started at will. `--tune caltech-whole`
compares rates for the configs of that folder on a seed of its own, `--page` makes the page alone, of the results that
are there, and `--share 0/2` and `--share 1/2` are for two processes at once, each with half of the runs.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

from continual_page import page

from flyk._files import write_whole
from flyk.continual import ablate
from flyk.continual.bench import run_config
from flyk.continual.config import load_config
from flyk.continual.material import Material, load_material
from flyk.continual.run import run

CONFIGS = Path("examples/continual")
RUNS = Path("runs")
RESULTS = Path("docs/results/continual")
PAGE = Path("docs/results/continual.md")
SEEDS = (1, 2, 3)
SHARED = ("data", "backbone", "repair", "resolution", "train_per_class", "test_per_class", "augment")  # by samples
IMAGES = ("caltech", "caltech-whole")
PROMPTED = ("flyprompt", "codaprompt", "dualprompt", "l2p", "mvp", "misa", "joint-prompt")
ABLATED = CONFIGS / "caltech-whole" / "flyprompt.toml"
TUNING = RESULTS / "tuning.json"
TUNING_SEED = 100
TUNED = ("seed", "learning_rate", "prompt_rate")
TRAINED = ("sequential-masked", "sequential", "joint-head", *PROMPTED)
RATES = (1e-1, 3e-2, 1e-2, 3e-3, 1e-3, 3e-4, 1e-4, 3e-5)  # of prompts beside the config's rate of the head, or of it


def runs() -> list[tuple[Path, int, bool]]:
    """(config, seed, whether it is ablated): what takes seconds, then prompts, then FlyPrompt in parts."""
    each = [(path, seed, False) for seed in SEEDS for path in sorted(CONFIGS.glob("*/*.toml"))]
    prompts = [run for run in each if run[0].parent.name in IMAGES and run[0].stem in PROMPTED]
    prompts += [run for run in each if run[0].stem == "flyprompt-prompts"]
    return [run for run in each if run not in prompts] + prompts + [(ABLATED, seed, True) for seed in SEEDS]


def restore() -> None:
    """Puts the results kept back into the folder of runs, which a fresh clone does not have."""
    for path in RESULTS.glob("*/**/seed-*.json"):
        folder = (RUNS / path.relative_to(RESULTS)).with_suffix("")
        if not (folder / "result.json").exists():
            config = json.loads(path.read_text())["config"]
            with write_whole(folder / "config.json") as part:
                part.write_text(json.dumps(config, indent=1) + "\n")
            with write_whole(folder / "result.json") as part:  # whole: another share may look for it
                shutil.copyfile(path, part)


def make(share: slice) -> None:
    """Makes what is not there yet; samples and backbone are shared by the runs that name the same."""
    restore()
    materials: dict[tuple, Material] = {}
    for path, seed, ablated in runs()[share]:
        print(path, seed, "ablation" if ablated else "", flush=True)
        config = load_config(path, seed=seed)
        key = tuple(getattr(config, name) for name in SHARED)
        if key not in materials:
            materials[key] = load_material(config, progress=True)
        out = RUNS / path.parent.name
        if ablated:
            ablate.ablate(path, out, [seed], material=materials[key])
        else:
            run_config(path, out, {"seed": seed}, material=materials[key])
        keep()


def tuning(folder: str, share: slice) -> None:
    """Runs each method that trains under lower and lower rates, until it gets worse: of its prompts, or of its head."""
    material = None
    paths = [path for name in TRAINED if (path := CONFIGS / folder / f"{name}.toml").exists()]
    for path in paths[share]:
        key = "learning_rate" if load_config(path).prompt_rate is None else "prompt_rate"
        best = 0.0
        for rate in RATES:
            config = load_config(path, **{key: rate, "seed": TUNING_SEED})
            material = material or load_material(config, progress=True)
            folder_of_run = RUNS / "tuning" / folder / f"{rate:g}" / path.stem / f"seed-{TUNING_SEED}"
            measures = run(config, folder_of_run, material)["measures"]
            reached = measures["a_auc"] + measures["a_last"]
            print(path, key, rate, reached, flush=True)
            if reached < best:
                break
            best = reached


def keep_tuning() -> None:
    """Keeps the accuracies under each pair of rates, beside those already kept."""
    rows = json.loads(TUNING.read_text()) if TUNING.exists() else []
    for path in sorted((RUNS / "tuning").glob("*/*/*/*/result.json")):
        result = json.loads(path.read_text())
        stream, _, method, *_ = path.relative_to(RUNS / "tuning").parts
        row = {"stream": stream, "method": method} | {key: result["config"][key] for key in TUNED}
        rows = [one for one in rows if any(one[key] != value for key, value in row.items())]
        rows.append(row | {key: result["measures"][key] for key in ("a_auc", "a_last")})
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
            part.write_text(page(RESULTS), encoding="utf-8")


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--tune", metavar="FOLDER")
    options.add_argument("--page", action="store_true")
    options.add_argument("--share", default="0/1")
    given = options.parse_args()
    first, step = map(int, given.share.split("/"))
    share = slice(first, None, step)
    if given.tune:
        tuning(given.tune, share)
    elif not given.page:
        make(share)
    keep()


if __name__ == "__main__":
    main()
