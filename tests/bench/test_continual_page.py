"""The page of results, from runs of the bench on made data."""

import importlib.util
import shutil
from pathlib import Path

import numpy as np
import pytest

from flyk.continual import ablate
from flyk.continual.config import load_config

HERE = Path(__file__).parents[2]


@pytest.fixture
def script(tmp_path, monkeypatch):
    """bench/continual.py with two small configs of its own, in an empty folder."""
    monkeypatch.syspath_prepend(HERE / "bench")
    spec = importlib.util.spec_from_file_location("continual_bench", HERE / "bench" / "continual.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    draws, labels = np.random.default_rng(0), np.repeat(np.arange(4), 20)
    x = 4 * draws.normal(size=(4, 8))[labels] + draws.normal(size=(80, 8))
    np.savez(tmp_path / "blobs.npz", x=x, y=labels, split=np.tile([0, 0, 0, 1], 20))
    folder = tmp_path / "examples" / "continual" / "caltech-whole"
    folder.mkdir(parents=True)
    base = 'data = "blobs.npz"\nbackbone = "none"\naugment = "none"\ntasks = 2\nbatch_size = 10\neval_every = 20\n'
    (folder / "ncm.toml").write_text(f'method = "ncm"\n{base}')
    (folder / "sequential-masked.toml").write_text(f'method = "sequential"\n{base}learning_rate = 0.01\n')
    options = "[options]\nprompt_length = 0\nexpansion = 32\nridge = 1.0\n"
    (folder / "flyprompt.toml").write_text(
        f'method = "flyprompt"\n{base}learning_rate = 0.01\nprompt_rate = 0.1\n{options}'
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(ablate, "EXPANSIONS", (16, 32))
    monkeypatch.setattr(ablate, "TRAINED", {"all": {}})
    return module


def test_all_runs_make_a_page_once(script, monkeypatch):
    for share in (slice(0, None, 2), slice(1, None, 2)):
        script.make(share)
    page = script.PAGE.read_text()
    rows = [line for line in page.splitlines() if line.startswith("| ncm |") or line.startswith("| flyprompt |")]
    assert len(rows) == 2
    assert all(row.endswith("| 3 |") for row in rows)
    assert "| all | online, averaged |" in page
    assert "| router k-nn |" in page
    assert sorted(path.name for path in (script.RESULTS / "caltech-whole" / "ncm").iterdir()) == [
        f"seed-{seed}.json" for seed in script.SEEDS
    ]
    monkeypatch.setattr("flyk.continual.run._play", lambda *_: pytest.fail("a run was made again"))
    script.make(slice(None))
    assert script.PAGE.read_text() == page
    shutil.rmtree(script.RUNS)
    script.make(slice(None))  # from the results kept alone
    assert script.PAGE.read_text() == page


def test_rates_are_compared_on_a_seed_of_their_own(script, monkeypatch):
    monkeypatch.setattr(script, "RATES", (0.1, 0.05))
    for share in (slice(0, None, 2), slice(1, None, 2)):
        script.tuning("caltech-whole", share)
        script.keep()
    page = script.PAGE.read_text()
    assert "## caltech-whole: rates, on seed 100" in page
    assert "| | head 0.05 | head 0.1 |" in page
    assert "| | head 0.01, prompts 0.05 | head 0.01, prompts 0.1 |" in page
    table = page.split("## caltech-whole: rates")[1].splitlines()
    (head,) = (line for line in table if line.startswith("| sequential-masked |"))
    assert head.count(" / ") == 2
    (method,) = (line for line in table if line.startswith("| flyprompt |"))
    assert method.count(" / ") == 2
    shutil.rmtree(script.RUNS)
    script.keep()  # what a clone has without its runs
    assert script.PAGE.read_text() == page


def test_a_method_is_not_tried_at_lower_rates_once_it_got_worse(script, monkeypatch):
    monkeypatch.setattr(script, "TRAINED", ("flyprompt",))
    reached = iter((0.5, 0.4))
    monkeypatch.setattr(script, "run", lambda *_: {"measures": {"a_auc": next(reached), "a_last": 0.0}})
    script.tuning("caltech-whole", slice(None))
    assert next(reached, None) is None


def test_every_config_of_the_examples_is_sound(monkeypatch):
    paths = sorted((HERE / "examples" / "continual").glob("*/*.toml"))
    assert len(paths) == 46
    for path in paths:
        load_config(path)
        assert f"flyk continual run {path.relative_to(HERE).as_posix()} --seed 1" in path.read_text()
