"""Runs from end to end: resumed exactly, skipped when done, refused in a folder of other settings, reported whole."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import torch
from made_material import OPTIONS, blobs, pictures

from flyk._machine import RESET, peak_memory_mib
from flyk.continual import run as runner
from flyk.continual.config import make_config
from flyk.continual.methods import METHODS, make_method
from flyk.continual.run import run
from flyk.continual.run_report import write_run_report


def config(method="flyprompt", **changes):
    quick = {"data": "made", "tasks": 3, "batch_size": 8, "eval_every": 20, "learning_rate": 0.02}
    return make_config(quick | {"method": method, "options": OPTIONS.get(method, {})} | changes, "test")


@pytest.fixture(scope="module")
def images():
    return pictures()


@pytest.fixture(scope="module")
def features():
    return blobs()


def numbers(result):
    return {key: value for key, value in result.items() if key not in ("seconds", "peak_memory_mib", "machine")}


class CutError(Exception):
    pass


def cut_at(step, monkeypatch):
    """Makes a run end when it comes to its training batch of this number."""
    steps = 0

    class Cutting(runner.Batch):
        def __init__(self, part, rows, *augment):
            nonlocal steps
            steps += bool(augment)
            if augment and steps == step:
                raise CutError
            super().__init__(part, rows, *augment)

    monkeypatch.setattr(runner, "Batch", Cutting)


@pytest.mark.parametrize(("method", "mask"), [*((method, "batch") for method in METHODS), ("sequential", "random")])
def test_a_run_that_was_cut_ends_with_the_same_numbers_and_state(method, mask, images, tmp_path, monkeypatch):
    settings, made = config(method, mask=mask), []

    def make(setting):
        made.append(make_method(method, setting, settings.options))
        return made[-1]

    whole = run(settings, tmp_path / "whole", images, make=make)
    with monkeypatch.context() as patch:
        cut_at(6, patch)
        with pytest.raises(CutError):
            run(settings, tmp_path / "cut", images, make=make)
    assert (tmp_path / "cut" / "checkpoint.pt").exists()
    torch.manual_seed(7)  # what others draw between is without effect
    assert numbers(run(settings, tmp_path / "cut", images, make=make)) == numbers(whole)
    torch.testing.assert_close(made[2].state_dict(), made[0].state_dict(), rtol=0, atol=0, equal_nan=True)
    assert not (tmp_path / "cut" / "checkpoint.pt").exists()


@pytest.mark.parametrize("method", METHODS)
def test_every_method_learns_what_it_is_shown_often(method, images, tmp_path):
    result = run(config(method, stream="joint", passes=6, augment="none"), tmp_path, images)
    assert result["measures"]["a_last"] > 0.5


def kept_bytes(state):
    """What a state holds, at any depth."""
    if isinstance(state, torch.Tensor):
        return state.nbytes
    inner = state.values() if isinstance(state, dict) else state if isinstance(state, (list, tuple)) else ()
    return sum(map(kept_bytes, inner))


@pytest.mark.parametrize("method", [name for name in METHODS if name != "ranpac"])  # it keeps a fifth, see its docs
def test_a_longer_stream_takes_no_more_memory(method, images, tmp_path, monkeypatch):
    sizes, save = [], runner._save

    def weigh(folder, step, record, data, learner, draws):
        sizes.append(kept_bytes(learner.state_dict()))
        save(folder, step, record, data, learner, draws)

    monkeypatch.setattr(runner, "_save", weigh)
    run(config(method, stream="joint", passes=2, augment="none"), tmp_path, images)
    assert len(sizes) > 2
    assert sizes == [sizes[0]] * len(sizes)
    assert sizes[0] > 0


KILLED = """
import os, signal, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from flyk.continual import run as runner
from test_run import blobs, config
batches = 0
class Killing(runner.Batch):
    def __init__(self, part, rows, *augment):
        global batches
        batches += bool(augment)
        if batches == 8:
            os.kill(os.getpid(), signal.SIGKILL)
        super().__init__(part, rows, *augment)
runner.Batch = Killing
runner.run(config("sequential", augment="none"), Path(sys.argv[2]), blobs())
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="the system has no SIGKILL")
def test_a_process_that_was_killed_is_resumed(features, tmp_path):
    here = str(Path(__file__).parent)
    done = subprocess.run([sys.executable, "-c", KILLED, here, str(tmp_path / "cut")], check=False)
    assert done.returncode == -signal.SIGKILL
    log = (tmp_path / "cut" / "log.jsonl").read_text().splitlines()
    assert 0 < len(log) < 5
    settings = config("sequential", augment="none")
    whole = run(settings, tmp_path / "whole", features)
    assert numbers(run(settings, tmp_path / "cut", features))["tests"] == whole["tests"]
    assert whole["tests"][: len(log)] == [json.loads(line) for line in log]


@pytest.mark.parametrize("change", [{"router": "mlp"}, {"router": "k-nn"}, {"experts": "samples", "budget": 17}])
def test_what_grows_and_what_trains_beside_the_heads_is_resumed(change, features, tmp_path, monkeypatch):
    options = {"prompt_length": 0, "expansion": 64} | change
    settings = config(options=options, augment="none")
    whole = run(settings, tmp_path / "whole", features)
    cut(settings, tmp_path / "cut", features, monkeypatch)
    assert numbers(run(settings, tmp_path / "cut", features)) == numbers(whole)


def test_a_run_that_is_done_is_not_made_again(features, tmp_path, monkeypatch):
    first = run(config("ncm", augment="none"), tmp_path, features)
    monkeypatch.setattr(runner, "make_stream", lambda *_: pytest.fail("the run was made again"))
    assert run(config("ncm", augment="none"), tmp_path, features) == json.loads(json.dumps(first))


def test_a_folder_holds_one_run(features, tmp_path):
    run(config("ncm", augment="none"), tmp_path, features)
    with pytest.raises(ValueError, match="eval_every is 20 and here 30"):
        run(config("ncm", augment="none", eval_every=30), tmp_path, features)


def test_a_setting_that_was_refused_leaves_nothing_and_can_be_mended(features, tmp_path):
    with pytest.raises(ValueError, match="winners must be from 1 to 64, got 65"):
        run(config("ranpac", augment="none", options={"expansion": 64, "winners": 65}), tmp_path, features)
    assert list(tmp_path.iterdir()) == []
    result = run(config("ranpac", augment="none", options={"expansion": 64, "winners": 6}), tmp_path, features)
    assert json.loads((tmp_path / "config.json").read_text()) == result["config"]


def test_a_test_before_any_class_that_has_test_samples_is_empty(images, tmp_path):
    labels = images.test.labels
    last = torch.nonzero(labels == labels.max()).flatten()
    test = dataclasses.replace(
        images.test,
        labels=labels[last],
        features=images.test.features[:, last],
        inputs=lambda rows: torch.stack([images.test.inputs(last[i]) for i in rows]),  # of no rows there is no stack
    )
    settings = config("flyprompt", stream="class", seed=1)
    result = run(settings, tmp_path, dataclasses.replace(images, test=test))
    assert result["tests"][0]["accuracy"] is None
    assert result["tests"][-1]["accuracy"] is not None
    write_run_report(result, "few", tmp_path)


def cut(settings, folder, material, monkeypatch, step=8):
    with monkeypatch.context() as patch:
        cut_at(step, patch)
        with pytest.raises(CutError):
            run(settings, folder, material)


def test_a_damaged_checkpoint_is_named(features, tmp_path, monkeypatch):
    (tmp_path / "checkpoint.pt").write_bytes(b"nothing")
    with pytest.raises(ValueError, match=r"checkpoint\.pt can't be read; delete it"):
        run(config("ncm", augment="none"), tmp_path, features)
    (tmp_path / "checkpoint.pt").unlink()
    cut(config("ncm", augment="none"), tmp_path, features, monkeypatch)
    state = torch.load(tmp_path / "checkpoint.pt")
    for key in state:
        torch.save({name: value for name, value in state.items() if name != key}, tmp_path / "checkpoint.pt")
        with pytest.raises(ValueError, match=r"checkpoint\.pt can't be read; delete it"):
            run(config("ncm", augment="none"), tmp_path, features)


def test_other_samples_do_not_go_on_where_a_run_was_cut(features, tmp_path, monkeypatch):
    cut(config("ncm", augment="none"), tmp_path, features, monkeypatch)
    train = dataclasses.replace(features.train, features=-features.train.features)
    with pytest.raises(ValueError, match="data must give the samples that the run began with"):
        run(config("ncm", augment="none"), tmp_path, dataclasses.replace(features, train=train))


def test_what_a_killed_process_left_half_written_goes_with_the_checkpoint(features, tmp_path):
    (tmp_path / ".checkpoint-0123.pt").write_bytes(b"half")
    os.utime(tmp_path / ".checkpoint-0123.pt", (0, 0))
    run(config("ncm", augment="none"), tmp_path, features)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "log.jsonl", "result.json"]


@pytest.mark.parametrize("name", ["config.json", "result.json"])
@pytest.mark.parametrize("text", ["", "[1]", '{"config": '])
def test_a_damaged_file_of_a_run_is_named(name, text, features, tmp_path):
    settings = config("ncm", augment="none")
    run(settings, tmp_path, features)
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=rf"{name} is damaged; delete the folder"):
        run(settings, tmp_path, features)


def test_one_expert_has_no_routes_to_measure(features, tmp_path):
    options = {"prompt_length": 0, "experts": "one"}
    result = run(config(options=options, augment="none"), tmp_path, features)
    assert "routing" not in result["measures"]
    assert "oracle router" not in result["measures"]
    assert result["analysis"] == {}
    write_run_report(result, "one", tmp_path)


def test_a_run_has_its_own_peak_of_memory(features, tmp_path):
    """Not that of what the process did before."""
    if not RESET.exists():
        pytest.skip("the system can't forget a peak of memory")
    large = torch.ones(300 << 18)  # 300 MiB
    before = peak_memory_mib()
    del large
    result = run(config("ncm", augment="none"), tmp_path, features)
    assert result["peak_memory_mib"] < before - 250


def test_tests_come_at_intervals_and_task_ends_and_are_logged(features, tmp_path):
    result = run(config("ncm", augment="none"), tmp_path, features)
    tests, total = result["tests"], len(features.train.labels)
    assert sum(test["at_interval"] for test in tests) == total // 20
    assert sum(test["at_task_end"] for test in tests) == 3
    assert tests[-1]["samples"] == total
    assert [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()] == tests
    assert np.sum(result["counts"]) == total
    auc = np.mean([test["accuracy"] for test in tests if test["at_interval"]])
    assert result["measures"]["a_auc"] == pytest.approx(auc)


def test_an_interval_longer_than_the_stream_leaves_a_auc_null_and_the_rest_whole(features, tmp_path):
    """Published fault: evaluation settings that never fire turn all measures into NaN."""
    measures = run(config("ncm", augment="none", eval_every=10**6), tmp_path, features)["measures"]
    assert measures["a_auc"] is None
    assert all(measures[key] is not None for key in ("a_avg", "a_last", "forgetting", "bwt"))


def test_joint_training_shows_everything_in_one_task(features, tmp_path):
    result = run(config("sequential", augment="none", stream="joint", passes=3), tmp_path, features)
    assert np.sum(result["counts"]) == 3 * len(features.train.labels)
    assert result["data"]["task_samples"] == [3 * len(features.train.labels)]
    assert result["measures"]["a_last"] > 0.9


def test_domains_are_wanted_where_the_stream_is_of_domains(features, tmp_path):
    with pytest.raises(ValueError, match="stream must be another than domain"):
        run(config("ncm", augment="none", stream="domain"), tmp_path, features)


def test_prompts_want_a_backbone(features, tmp_path):
    with pytest.raises(ValueError, match="backbone must be vit-s or minilm for a method with prompts, got None"):
        run(config("misa", augment="none"), tmp_path, features)


def test_hooks_are_gone_after_a_run(images, tmp_path):
    run(config("misa"), tmp_path, images)
    assert not any(block._forward_hooks or block._forward_pre_hooks for block in images.backbone.model.encoder.layer)


def test_checkpointing_and_crops_and_bf16_go_through(images, tmp_path):
    result = run(config("misa", checkpointing=True, augment="crop", precision="bf16"), tmp_path, images)
    assert result["measures"]["a_last"] > 1 / 6


def test_recomputed_activations_give_the_same_numbers(images, tmp_path):
    kept = run(config("misa"), tmp_path / "kept", images)
    again = run(config("misa", checkpointing=True), tmp_path / "again", images)
    assert kept["tests"] == again["tests"]


class Page(HTMLParser):
    """Checks that tags close in order and gathers addresses and the script."""

    def __init__(self, text):
        super().__init__()
        self.open, self.links, self.script = [], [], ""
        self.feed(text)

    def handle_starttag(self, tag, attributes):
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


def test_the_report_is_one_whole_page(images, tmp_path):
    result = run(config(), tmp_path, images)
    text = write_run_report(result, "a <name>", tmp_path).read_text()
    page = Page(text)
    assert page.open == []
    assert all(link.startswith("#") for link in page.links), "nothing is loaded from elsewhere"
    assert json.loads(page.script) == json.loads((tmp_path / "result.json").read_text())
    assert text.count("<svg") == 7, "accuracy, heads, agreement, classes, confusion, CKA, cosines"
    assert "&lt;name&gt;" in text
