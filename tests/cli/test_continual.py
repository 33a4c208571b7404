"""flyk continual from the command line, on a file of features."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from flyk.cli import app


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    folder = tmp_path_factory.mktemp("continual")
    draws = np.random.default_rng(0)
    labels = np.repeat(np.arange(4), 20)
    x = 4 * draws.normal(size=(4, 8))[labels] + draws.normal(size=(80, 8))
    np.savez(folder / "blobs.npz", x=x, y=labels, split=np.tile([0, 0, 0, 1], 20))
    path = folder / "heads.toml"
    path.write_text(
        f'method = "flyprompt"\ndata = "{folder / "blobs.npz"}"\nbackbone = "none"\naugment = "none"\ntasks = 2\n'
        "batch_size = 10\neval_every = 20\nlearning_rate = 0.05\n"
        "[options]\nprompt_length = 0\nexpansion = 32\nridge = 1.0\n"
    )
    return path


def flyk(*arguments):
    return CliRunner().invoke(app, ["continual", *map(str, arguments)], catch_exceptions=False)


def test_runs_of_two_seeds_are_compared(config, tmp_path):
    done = flyk("run", config, "--seed", 1, "--seed", 2, "--out", tmp_path)
    assert done.exit_code == 0, done.output
    reports = [tmp_path / "heads" / f"seed-{seed}" / "report.html" for seed in (1, 2)]
    assert done.stdout.split() == [str(path) for path in reports]
    assert all(path.exists() for path in reports)
    again = json.loads(flyk("run", config, "--seed", 2, "--out", tmp_path, "--json").stdout)  # it is done
    assert [result["config"]["seed"] for result in again] == [2]
    rows = json.loads(flyk("compare", tmp_path, "--json").stdout)
    assert [(row["name"], row["runs"]) for row in rows] == [("heads", 2)]
    assert rows[0]["a_last"]["mean"] > 0.8
    assert "heads" in flyk("compare", tmp_path / "heads").stdout


def test_ablation_prints_a_row_for_each_reading(config, tmp_path, monkeypatch):
    monkeypatch.setattr("flyk.continual.ablate.EXPANSIONS", (16, 32))
    monkeypatch.setattr("flyk.continual.ablate.TRAINED", {"all": {}, "mask seen": {"mask": "seen"}})
    done = flyk("ablate", config, "--out", tmp_path)
    assert done.exit_code == 0, done.output
    assert any(line.startswith("all") and "router k-means" in line for line in done.stdout.splitlines())
    assert any(line.startswith("mask seen") and "bank 0.9 0.99 0.999" in line for line in done.stdout.splitlines())
    rows = json.loads(flyk("ablate", config, "--out", tmp_path, "--json").stdout)
    assert {row["variant"] for row in rows} == {"all", "mask seen"}


@pytest.mark.parametrize("command", ["run", "ablate"])
@pytest.mark.parametrize(("seeds", "words"), [((3, 3), "seed must be given once"), ((3, -1), "seed must be a whole")])
def test_all_seeds_are_looked_at_before_the_first_begins(command, seeds, words, config, tmp_path):
    done = flyk(command, config, "--seed", seeds[0], "--seed", seeds[1], "--out", tmp_path)
    assert done.exit_code == 2
    assert words in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("run", "no.toml"), "no.toml can't be read as TOML"),
        (("compare", "no-such-folder"), "none was found"),
        (("ablate", "no.toml"), "no.toml can't be read as TOML"),
    ],
)
def test_what_is_wrong_is_one_sentence(arguments, words):
    done = flyk(*arguments)
    assert done.exit_code == 2
    assert words in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_missing_matplotlib_is_said_before_the_work(config, tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    done = flyk("run", config, "--out", tmp_path)
    assert done.exit_code == 2
    assert "pip install" in done.stderr
    assert not list(tmp_path.iterdir())
