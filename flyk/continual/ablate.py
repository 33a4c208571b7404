"""The ablation of FlyPrompt: what is trained otherwise is a run of its own, what is read otherwise shares a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from flyk.continual.aggregate import AGGREGATIONS, aggregate
from flyk.continual.batch import Batch
from flyk.continual.compare import cell, spread
from flyk.continual.config import Config, load_config, make_config
from flyk.continual.material import Material, load_material
from flyk.continual.methods import has_prompts
from flyk.continual.methods.base import Prediction, Setting
from flyk.continual.methods.flyprompt import FlyPrompt
from flyk.continual.routers import ROUTERS, Router, make_router, ridge_router, solution
from flyk.continual.run import run
from flyk.nn import REAR

DECAYS = (0.9, 0.99, 0.999)
BANKS = {"": (), "0.9": (1,), "0.99": (2,), "0.999": (3,), "0.9 0.99": (1, 2), "0.9 0.99 0.999": (1, 2, 3)}
MAIN = BANKS["0.9 0.99"]
EXPANSIONS = (500, 1000, 2000, 5000, 10000)
RIDGES = (1e2, 1e3, 1e4, 1e5, 1e6, 1e7)

# Runs of their own: changes of the config's keys, and under "options" of the method's.
TRAINED: dict[str, dict[str, Any]] = {
    "all": {},
    "prompt, one expert": {"options": {"experts": "one"}},
    "no prompt, one expert": {"options": {"experts": "one", "prompt_length": 0}},
    "no prompt": {"options": {"prompt_length": 0}},
    "cold start": {"options": {"warm_start": False}},
    "mask none": {"mask": "none"},
    "mask random": {"mask": "random"},
    "mask seen": {"mask": "seen"},
}
OF_PROMPTS = ("no prompt", "prompt, one expert", "cold start")  # no variants where the config itself has none


class Ablated(FlyPrompt):
    """FlyPrompt that also predicts under other banks, aggregations and routers, from the same training.

    A prediction's `also` has "bank B", "aggregation A" and, with `routers`, "router R", "expansion M" and "ridge λ".
    """

    def __init__(self, setting: Setting, *, routers: bool = False, **options: Any):
        options = options | {"decays": DECAYS}
        super().__init__(setting, **options)
        self.sweep = routers and isinstance(self.router, REAR) and self.heads.num_experts > 1
        self.others: dict[str, REAR | Router] = {}
        self._solutions: tuple[int, dict[float, Tensor | None]] = (0, {})  # of how many rows, and for each ridge
        if self.sweep:
            with torch.random.fork_rng(devices=[]):  # so that the rest starts as in the method itself
                self.others = self._make_others()
        self._kept = nn.ModuleList(self.others.values())  # so that the state has them

    def _make_others(self) -> dict[str, REAR | Router]:
        router, count, d = self.router, self.heads.num_experts, self.setting.num_features
        noise = torch.randn(256, d)
        assert isinstance(router, REAR)

        def length(rear: REAR) -> float:
            return rear._expand(noise).square().sum(1).mean().item()

        own = length(router)

        def rear(expansion: int, **shape: Any) -> REAR:
            made = ridge_router(d, count, expansion=expansion, seed=self.setting.seed, **shape)
            made.ridge = router.ridge * length(made) / own  # the same share of an expanded row
            return made

        M = router.expansion
        others: dict[str, REAR | Router] = {f"router {kind}": make_router(kind, d, count) for kind in ROUTERS}
        others |= {
            "router ridge, sparse signs": rear(M, sparse=min(16, d)),
            "router ridge, winners": rear(M, winners=max(1, M // 20)),
        }
        return others | {f"expansion {size}": rear(size) for size in EXPANSIONS if size != M}

    def observe(self, batch: Batch) -> None:
        super().observe(batch)
        for router in self.others.values():
            router.update(batch.features, self.expert or 0)

    @torch.no_grad()
    def predict(self, batch: Batch, seen: Tensor, home: Tensor | None = None) -> Prediction:
        routes = {"": self.route(batch)}
        routes |= {name: router.route(batch.features) for name, router in self.others.items()}
        if self.sweep:
            routes |= self._ridges(batch)
        alone = self.heads.num_experts == 1
        if home is not None and not alone:
            routes["oracle router"] = home
        features = self.routed_features(batch, list(routes.values()))
        heads = [self.head_logits(h, ids, seen) for h, ids in zip(features, routes.values(), strict=True)]
        also = {
            name: self._read(logits, MAIN, "softmax-max") for name, logits in zip(routes, heads, strict=True) if name
        }
        also |= {f"bank {name}": self._read(heads[0], bank, "softmax-max") for name, bank in BANKS.items()}
        also |= {f"aggregation {kind}": self._read(heads[0], MAIN, kind) for kind in AGGREGATIONS}
        return Prediction(also["bank 0.9 0.99"], None if alone else routes[""], heads[0].argmax(2), also)

    def _read(self, logits: Tensor, bank: tuple[int, ...], kind: str) -> Tensor:
        return aggregate(kind, logits[[0, *bank]]).argmax(1)

    def _ridges(self, batch: Batch) -> dict[str, Tensor]:
        """The routes of the same statistics under other ridges, but for those too small for float32."""
        router = self.router
        assert isinstance(router, REAR)
        router.flush()
        phi = router._expand(batch.features)
        known = router.counts > 0
        rows = int(router.counts.sum())
        if self._solutions[0] != rows:  # once for all batches of a test
            self._solutions = rows, {ridge: solution(router.G, router.Q, ridge) for ridge in RIDGES}
        return {
            f"ridge {ridge:g}": (phi @ U).masked_fill(~known, -torch.inf).argmax(1)
            for ridge, U in self._solutions[1].items()
            if U is not None
        }


def ablate(
    path: Path, out: Path, seeds: list[int], *, progress: bool = True, material: Material | None = None
) -> list[dict[str, Any]]:
    """Runs the variants of a FlyPrompt config for each seed into <out>/<config>-ablation/<variant>/seed-<seed>.

    Returns:
        the results, each with the name of its variant under "variant".

    Raises:
        ValueError: the config is of another method, or chooses what is read in all ways.
    """
    base = load_config(path)
    if base.method != "flyprompt":
        raise ValueError(f"config: {path} must be of the method flyprompt to be ablated, got {base.method}")
    if chosen := {"decays", "aggregation"} & base.options.keys():
        raise ValueError(f"config: {path} must leave {' and '.join(sorted(chosen))} to the ablation, which reads all")
    configs = [(name, variant(base, path, name, seed)) for name in variants(base) for seed in seeds]
    results = []
    for name, config in configs:
        material = material or load_material(config, progress)

        def make(setting: Setting, config: Config = config, routers: bool = name == "all") -> Ablated:
            return Ablated(setting, routers=routers, **config.options)

        folder = out / f"{path.stem}-ablation" / name.replace(", ", "-").replace(" ", "-") / f"seed-{config.seed}"
        results.append(run(config, folder, material, progress=progress, make=make) | {"variant": name})
    return results


def variants(base: Config) -> list[str]:
    """Of TRAINED, those that a config can be varied by."""
    prompted = has_prompts(base.method, base.options)
    return [name for name in TRAINED if prompted or name not in OF_PROMPTS]


def variant(base: Config, path: Path, name: str, seed: int) -> Config:
    """The config of `path` under the changes of that name."""
    changes = TRAINED[name]
    settings = {key: getattr(base, key) for key in base.__dataclass_fields__} | changes | {"seed": seed}
    return make_config(settings | {"options": {**base.options, **changes.get("options", {})}}, str(path))


def table(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row for each reading of each variant: `variant`, `reading`, `a_auc` and `a_last`, mean and sd over seeds.

    A measure that one of the seeds lacks, such as a ridge too small for its rows, is None.
    """
    rows = []
    for variant in dict.fromkeys(one["variant"] for one in results):
        runs = [one["measures"]["also"] for one in results if one["variant"] == variant]
        for reading in dict.fromkeys(reading for one in runs for reading in one):
            measures = {key: [one.get(reading, {}).get(key) for one in runs] for key in ("a_auc", "a_last")}
            rows.append(
                {"variant": variant, "reading": reading}
                | {key: None if None in values else spread(values) for key, values in measures.items()}
            )
    return rows


def as_text(results: list[dict[str, Any]]) -> str:
    """The rows of `table` as lines, in %."""
    lines = [f"{'trained':24} {'read':36} {'A_auc':>13} {'A_last':>13}"]
    for row in table(results):
        cells = " ".join(f"{cell(row[key], 100):>13}" for key in ("a_auc", "a_last"))
        lines.append(f"{row['variant']:24} {row['reading']:36} {cells}")
    return "\n".join(lines)
