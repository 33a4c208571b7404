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
IMAGES = ("caltech", "caltech-whole")
PROMPTED = ("flyprompt", "codaprompt", "dualprompt", "l2p", "mvp", "misa", "joint-prompt")
ABLATED = CONFIGS / "caltech-whole" / "flyprompt.toml"
TUNING = RESULTS / "tuning.json"
TUNING_SEED = 100
TUNED = ("method", "seed", "learning_rate", "prompt_rate")
HEAD_RATES = (3e-4, 1e-3, 3e-3, 1e-2)  # of the head alone, on features
PROMPT_RATES = (1e-2, 3e-3, 1e-3, 3e-4, 1e-4)  # beside the config's rate of the head; a lower one while it gets better


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
        key = (config.data, config.backbone, config.train_per_class, config.test_per_class, config.augment)
        if key not in materials:
            materials[key] = load_material(config, progress=True)
        out = RUNS / path.parent.name
        if ablated:
            ablate.ablate(path, out, [seed], material=materials[key])
        else:
            run_config(path, out, {"seed": seed}, material=materials[key])
        keep()


def tuning(folder: str, share: slice) -> None:
    """Runs the head alone under each rate, and methods with prompts under each rate of theirs until it gets worse."""
    trials = {"sequential-masked": [{"learning_rate": rate} for rate in HEAD_RATES]}
    trials |= {name: [{"prompt_rate": rate} for rate in PROMPT_RATES] for name in PROMPTED[:-1]}
    material = None
    for name in list(trials)[share]:
        path, best = CONFIGS / folder / f"{name}.toml", 0.0
        for changes in trials[name]:
            out = RUNS / "tuning" / folder / "-".join(f"{rate:g}" for rate in changes.values())
            config = load_config(path, **changes, seed=TUNING_SEED)
            material = material or load_material(config, progress=True)
            measures = run(config, out / name / f"seed-{TUNING_SEED}", material)["measures"]
            reached = measures["a_auc"] + measures["a_last"]
            print(name, changes, reached, flush=True)
            if name in PROMPTED and reached < best:
                break
            best = reached


def keep_tuning() -> None:
    """Keeps the accuracies under each pair of rates, beside those already kept."""
    rows = json.loads(TUNING.read_text()) if TUNING.exists() else []
    for path in sorted((RUNS / "tuning").glob("*/*/*/*/result.json")):
        result = json.loads(path.read_text())
        row = {"stream": path.relative_to(RUNS / "tuning").parts[0]} | {key: result["config"][key] for key in TUNED}
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
