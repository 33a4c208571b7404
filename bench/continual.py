"""Every run behind docs/results/continual.md, one process each, those that are done left out; then the page itself.

    FLYK_DATA=... python bench/continual.py [PREFIX...]

PREFIX is put before each run's command, as in `nice -n 5`. A run that was cut goes on where it was, so the script can
be stopped and started at will. `--page` makes the page alone.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

from flyk._files import write_whole
from flyk.continual import ablate, compare

CONFIGS = Path("examples/continual")
RUNS = Path("runs")
RESULTS = Path("docs/results/continual")
PAGE = Path("docs/results/continual.md")
SEEDS = (1, 2, 3)
LAST = ("codaprompt", "dualprompt", "l2p", "mvp", "misa", "joint-prompt")  # minutes each; the others take seconds


def commands() -> list[list[str]]:
    """The command of each run, a seed after the other: what is quick, FlyPrompt and its ablation, then its rivals."""
    out = []
    for seed in SEEDS:
        for folder in sorted(path for path in CONFIGS.iterdir() if path.is_dir()):
            where = ["--seed", str(seed), "--out", str(RUNS / folder.name)]
            paths = sorted(folder.glob("*.toml"), key=lambda path: (path.stem == "flyprompt", path.stem))
            out += [["run", str(path), *where] for path in paths if path.stem not in LAST]
            out += [["ablate", str(path), *where] for path in paths if path.stem == "flyprompt"]
            out += [["run", str(path), *where] for path in paths if path.stem in LAST]
    return out


def keep() -> None:
    """Copies finished results to docs/results/continual, without what a page has no use for."""
    for path in sorted(RUNS.glob("**/seed-*/result.json")):
        target = (RESULTS / path.parent.relative_to(RUNS)).with_suffix(".json")
        if not target.exists() or target.stat().st_mtime < path.stat().st_mtime:
            with write_whole(target) as part:
                shutil.copyfile(path, part)


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
    return "\n".join(lines) + "\n"


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
    prefix = sys.argv[1:]
    if prefix != ["--page"]:
        for command in commands():
            print(json.dumps(command), flush=True)
            subprocess.run([*prefix, sys.executable, "-m", "flyk", "continual", *command], check=True)
            keep()
    keep()
    with write_whole(PAGE) as part:
        part.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
