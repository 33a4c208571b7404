"""Analysis, comparison and ablation: identities, hand-made tables, and everything through once."""

import copy
import dataclasses
import json
import math

import numpy as np
import pytest
import torch
from made_material import blobs, pictures
from typer.testing import CliRunner

from flyk.cli import app
from flyk.continual import ablate, compare
from flyk.continual.analysis import analyse, confusion, expert_means, mean_cosine, minibatch_cka
from flyk.continual.config import make_config
from flyk.continual.methods import Method, Prediction, Setting
from flyk.continual.run import evaluate, run


def test_cka_of_itself_turned_and_scaled_is_one():
    X = torch.randn(200, 10, generator=torch.Generator().manual_seed(0))
    Q = torch.linalg.qr(torch.randn(10, 10, generator=torch.Generator().manual_seed(1))).Q
    assert minibatch_cka(X, X) == pytest.approx(1)
    assert minibatch_cka(X, 3 * X @ Q + 7) == pytest.approx(1, abs=1e-4)


def test_cka_of_unrelated_features_is_near_nothing_where_the_biased_one_is_not():
    generator = torch.Generator().manual_seed(0)
    X, Y = torch.randn(256, 100, generator=generator), torch.randn(256, 100, generator=generator)
    assert abs(minibatch_cka(X, Y)) < 0.05
    K, L = ((x - x.mean(0)) @ (x - x.mean(0)).T for x in (X[:64], Y[:64]))
    assert (K * L).sum() / ((K * K).sum() * (L * L).sum()).sqrt() > 0.4


def test_a_run_with_three_test_samples_ends_and_has_no_cka(tmp_path):
    material = blobs(classes=3)
    few = dataclasses.replace(material.test, labels=torch.arange(3), features=material.test.features[:, :3])
    options = {"prompt_length": 0, "expansion": 32, "ridge": 10.0}
    settings = {"method": "flyprompt", "data": "made", "tasks": 2, "augment": "none", "options": options}
    result = run(make_config(settings, "test"), tmp_path, dataclasses.replace(material, test=few))
    assert set(result["analysis"]) == {"confusion", "mean_cosine"}


class Told(Method):
    """Says what it is told: class 3 goes to expert 1 and all others to 0; the heads say other than the method."""

    expert = 0

    def predict(self, batch, seen, home=None):
        y = batch.labels
        first = (y + 1) % 4
        second = torch.where(y == 3, 3, first)
        return Prediction(y, (y == 3).long(), torch.stack([first, second, y]), {"none right": first})

    def expert_features(self, batch, expert):
        return batch.features


def test_what_is_said_of_routes_and_heads():
    material, counts = blobs(classes=4), np.array([[9, 9, 1, 0], [0, 0, 8, 9]])  # classes 2 and 3 are at home in 1
    method = Told(Setting(16, 4, num_tasks=2))
    told = evaluate(method, material, counts, True)
    assert (told["accuracy"], told["also"], told["exposed"]) == (1.0, {"none right": 0.0}, 4)
    assert told["classes"] == [1.0] * 4
    assert told["routing"] == 0.75
    assert told["heads"] == [0.0, 0.25, 1.0]
    assert told["agreement"] == [0.75, 0.0], "with the first head"
    assert analyse(method, material, counts)["confusion"] == [[1.0, 0.0], [0.5, 0.5]], "home in rows, routes in columns"


def test_cka_of_one_part_is_that_of_the_formula():
    generator = torch.Generator().manual_seed(0)
    X, Y = torch.randn(6, 3, generator=generator).double(), torch.randn(6, 4, generator=generator).double()

    def u_statistic(K, L):
        """The mean of k_ij l_ij + k_ij l_qr - 2 k_ij l_iq over distinct i, j, q, r."""
        total, count = 0.0, 0
        for i in range(6):
            for j in range(6):
                for q in range(6):
                    for r in range(6):
                        if len({i, j, q, r}) == 4:
                            total += K[i, j] * L[i, j] + K[i, j] * L[q, r] - 2 * K[i, j] * L[i, q]
                            count += 1
        return total / count

    K, L = X @ X.T, Y @ Y.T
    want = u_statistic(K, L) / math.sqrt(u_statistic(K, K) * u_statistic(L, L))
    assert minibatch_cka(X, Y) == pytest.approx(float(want))


def test_cka_wants_the_same_samples():
    with pytest.raises(ValueError, match="same samples, at least 4"):
        minibatch_cka(torch.randn(3, 2), torch.randn(3, 2))


def test_confusion_by_hand():
    table = confusion(np.array([0, 1, 1, 1]), np.array([0, 0, 1, 1]), 3)
    np.testing.assert_array_equal(table, [[0.5, 0.5, 0], [0, 1, 0], [np.nan] * 3])


def test_means_of_experts_and_their_cosines():
    material = blobs(per_class=10, classes=2)
    x, y = material.train.features[0].double(), material.train.labels
    want = torch.stack([x[y == 0].mean(0), 0.5 * x[y == 0].mean(0) + 0.5 * x[y == 1].mean(0)])
    torch.testing.assert_close(expert_means(material, np.array([[10, 0], [5, 5]])), want)
    cosines = mean_cosine(want)
    torch.testing.assert_close(cosines, torch.tensor([[1.0, -1.0], [-1.0, 1.0]], dtype=torch.float64))


def result(seed, last, name="flyprompt", **measures):
    return {
        "config": {"method": name, "seed": seed},
        "measures": {"a_auc": None, "a_avg": 0.5, "a_last": last, "forgetting": 0.1, "bwt": -0.1, "also": {}}
        | measures,
        "seconds": {"training": 60.0, "testing": 0.0},
    }


def save(folder, name, *results):
    for one in results:
        path = folder / name / f"seed-{one['config']['seed']}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(one))


def test_compare_gives_mean_and_spread(tmp_path):
    save(tmp_path, "a", result(1, 0.5), result(2, 0.7))
    save(tmp_path, "b", result(1, 0.8, routing=0.9))
    rows = compare.summarise(compare.read_results([tmp_path]))
    assert [row["name"] for row in rows] == ["b", "a"]
    assert rows[1]["a_last"] == {"mean": pytest.approx(0.6), "sd": pytest.approx(math.sqrt(0.02))}
    assert rows[0]["a_last"]["sd"] is None
    assert rows[1]["a_auc"] is None
    assert rows[0]["routing"]["mean"] == 0.9
    assert rows[1]["minutes"]["mean"] == 1

    def printed(*more):
        done = CliRunner().invoke(app, ["continual", "compare", str(tmp_path), *more], catch_exceptions=False)
        assert done.exit_code == 0
        return done.output

    assert "60.0 ± 14.1" in printed()
    assert json.loads(printed("--json")) == json.loads(json.dumps(rows))
    markdown = printed("--markdown").splitlines()
    assert markdown[1].startswith("|---|")
    assert markdown[3].startswith("| a | – | 50.0 ± 0.0 | 60.0 ± 14.1 |")


@pytest.mark.parametrize(
    ("results", "words"),
    [
        ([], "none was found"),
        ([result(1, 0.5), result(2, 0.5, name="ncm")], "those of a have different settings"),
    ],
)
def test_runs_that_are_no_row_are_refused(tmp_path, results, words):
    save(tmp_path, "a", *results)
    with pytest.raises(ValueError, match=words):
        compare.read_results([tmp_path])


def test_a_file_that_is_no_result_is_named(tmp_path):
    (tmp_path / "seed-1.json").write_text("{}")
    with pytest.raises(ValueError, match=r"seed-1\.json can't be read as the result of a run"):
        compare.read_results([tmp_path])


CONFIG = """
method = "flyprompt"
data = "made"
tasks = 3
batch_size = 8
eval_every = 20
learning_rate = 0.02
[options]
prompt_length = 2
prompt_layers = 2
expansion = 64
ridge = 10.0
"""


@pytest.fixture(scope="module")
def ablated(tmp_path_factory):
    path = tmp_path_factory.mktemp("ablation") / "fly.toml"
    path.write_text(CONFIG)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ablate, "EXPANSIONS", (16, 32))
        return path, ablate.ablate(path, path.parent, [1, 2], progress=False, material=pictures())


def test_ablation_reads_what_is_asked_for(ablated):
    _, results = ablated
    rows = {(row["variant"], row["reading"]): row for row in ablate.table(results)}
    assert {variant for variant, _ in rows} == set(ablate.TRAINED)
    readings = {reading for variant, reading in rows if variant == "all"}
    for wanted in ("bank ", "bank 0.9 0.99", "aggregation mean", "router k-nn", "router ridge, winners", "ridge 1e+06"):
        assert wanted in readings
    assert {"expansion 16", "expansion 32"} <= readings
    assert all(row["a_last"]["sd"] is not None for row in rows.values())
    assert "router k-nn" in ablate.as_text(results)


def test_ablation_leaves_the_method_as_it_is(ablated, tmp_path):
    """The variant "all", read as FlyPrompt is, has FlyPrompt's numbers, and the same readings agree."""
    from flyk.continual.config import load_config

    path, results = ablated
    plain = run(load_config(path, seed=1), tmp_path, pictures())
    whole = next(one for one in results if one["variant"] == "all" and one["config"]["seed"] == 1)
    assert [test["accuracy"] for test in whole["tests"]] == [test["accuracy"] for test in plain["tests"]]
    assert whole["measures"]["oracle router"] == plain["measures"]["oracle router"]
    also = whole["measures"]["also"]
    assert also["bank 0.9 0.99"] == also["aggregation softmax-max"]
    assert also["bank 0.9 0.99"]["a_last"] == plain["measures"]["a_last"]


def test_a_reading_that_a_seed_lacks_has_no_mean(ablated):
    _, results = ablated
    lacking = copy.deepcopy(results)
    del next(one for one in lacking if one["variant"] == "all")["measures"]["also"]["ridge 1e+06"]
    rows = {(row["variant"], row["reading"]): row for row in ablate.table(lacking)}
    assert rows["all", "ridge 1e+06"]["a_last"] is None
    assert rows["all", "ridge 1e+07"]["a_last"] is not None
    assert "ridge 1e+06" in ablate.as_text(lacking)


def test_without_prompts_no_variant_of_them_is_made(tmp_path, monkeypatch):
    path = tmp_path / "fly.toml"
    path.write_text(CONFIG.replace("prompt_length = 2", "prompt_length = 0"))
    monkeypatch.setattr(ablate, "EXPANSIONS", ())
    results = ablate.ablate(path, tmp_path, [1], progress=False, material=pictures())
    assert {one["variant"] for one in results} == set(ablate.TRAINED) - set(ablate.OF_PROMPTS)


def test_what_is_read_in_all_ways_is_not_chosen(tmp_path):
    path = tmp_path / "fly.toml"
    path.write_text(CONFIG + 'aggregation = "mean"\n')
    with pytest.raises(ValueError, match="must leave aggregation to the ablation, which reads all"):
        ablate.ablate(path, tmp_path, [1])


def test_routers_of_other_expansions_have_the_same_share_of_ridge():
    method = ablate.Ablated(Setting(384, 6, num_tasks=3), routers=True, expansion=256, ridge=10.0, prompt_length=0)
    x = torch.randn(100, 384)

    def share(rear):
        return rear.ridge / rear._expand(x).square().sum(1).mean().item()

    for name in ("router ridge, sparse signs", "router ridge, winners", "expansion 1000"):
        assert share(method.others[name]) == pytest.approx(share(method.router), rel=0.1)


def test_only_flyprompt_is_ablated(tmp_path):
    path = tmp_path / "ncm.toml"
    path.write_text('method = "ncm"\ndata = "made"\n')
    with pytest.raises(ValueError, match="must be of the method flyprompt"):
        ablate.ablate(path, tmp_path, [1])
