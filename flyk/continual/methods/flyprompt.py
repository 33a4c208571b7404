"""FlyPrompt: prompts and averaged heads for each expert, chosen by an analytic router."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from flyk.continual.aggregate import AGGREGATIONS, aggregate
from flyk.continual.batch import Batch
from flyk.continual.experts import ByDrift, BySamples, mean_miss
from flyk.continual.methods.base import Prediction, Setting
from flyk.continual.methods.prompted import PromptedMethod, make_pool
from flyk.continual.routers import make_router
from flyk.nn import REAR, TE2Head

BEGINNINGS = ("task", "samples", "drift", "one")
ROWS = 128  # prompted at a time


class FlyPrompt(PromptedMethod):
    """FlyPrompt (arXiv 2602.01976) from its parts: `PromptPool`, `TE2Head` and `REAR`.

    Each batch is `online_iter` steps on the current expert's prompts and the shared online head, each followed by one
    of the expert's averages (Eq. 7), and one update of the router with the batch's unprompted features under the
    evaluation transform. A test sample is routed by its unprompted features, and classified from its features under
    the prompts of its expert by the largest probability over the heads (Eq. 10).

    Args:
        prompt_length: tokens for each prompted block; 0 for none, and then the features are the unprompted ones.
        prompt_layers: how many of the first blocks are prompted.
        router: "ridge" (REAR), "prototype", "naive-bayes", "k-means", "mlp" or "k-nn".
        expansion, ridge, sparse, winners, keep_factor: of REAR; see ridge_router.
        decays: of the averages; none for the online head alone.
        aggregation: see aggregate.
        warm_start: an expert's prompts start at the mean of the earlier ones (Eq. 5); else where they were drawn.
        experts: an expert begins with each "task", after `budget` "samples" or when the router's scores show a
            "drift"; or there is "one" for all, which needs no router.
        num_experts: at most so many, where the task does not tell; the last goes on once they are used up.
        budget: samples an expert.
        threshold, settle, patience: of the drift; see ByDrift.

    Raises:
        ValueError: a choice that there is not, drift without ridge, or prompts without a backbone for them.
    """

    def __init__(
        self,
        setting: Setting,
        *,
        prompt_length: int = 20,
        prompt_layers: int = 5,
        router: str = "ridge",
        expansion: int = 10000,
        ridge: float = 1e4,
        sparse: int | None = None,
        winners: int | None = None,
        keep_factor: bool = False,
        decays: Sequence[float] = (0.9, 0.99),
        aggregation: str = "softmax-max",
        warm_start: bool = True,
        experts: str = "task",
        num_experts: int = 10,
        budget: int = 1000,
        threshold: float = 4.0,
        settle: int = 4,
        patience: int = 1,
    ):
        super().__init__(setting)
        for name, value, choices in (("aggregation", aggregation, AGGREGATIONS), ("experts", experts, BEGINNINGS)):
            if value not in choices:
                raise ValueError(f"{name} must be one of {', '.join(choices)}, got {value!r}")
        if experts == "drift" and router != "ridge":
            raise ValueError(f"router must be ridge where experts begin by drift of its scores, got {router!r}")
        count = {"task": setting.num_tasks, "one": 1}.get(experts, num_experts)
        self.aggregation, self.warm_start, self.experts = aggregation, warm_start, experts
        self.heads = TE2Head(setting.num_features, setting.num_classes, count, tuple(decays))
        torch.nn.init.zeros_(self.heads.online.weight)
        torch.nn.init.zeros_(self.heads.online.bias)
        self.router = make_router(
            router,
            setting.num_features,
            count,
            expansion=expansion if count > 1 else 1,
            ridge=ridge,
            sparse=sparse if count > 1 else None,
            winners=winners if count > 1 else None,
            keep_factor=keep_factor,
            seed=setting.seed,
        )
        self.trigger = {"samples": BySamples(budget), "drift": ByDrift(threshold, settle, patience)}.get(experts)
        prompts = []
        if prompt_length:
            self.attach(make_pool(setting, prompt_length, tuple(range(prompt_layers)), count))
            prompts = list(self.pool.prompts)
        self.start_training(self.heads.parameters(), prompts)

    @property
    def expert(self) -> int | None:  # type: ignore[override]
        """The expert that learns now."""
        return self.heads.current

    def start_task(self, task: int) -> None:
        if self.experts == "task":
            self._start(task)

    def observe(self, batch: Batch) -> None:
        self._begin_if_due(batch)
        super().observe(batch)
        if self.heads.num_experts > 1 and self.expert is not None:
            self.router.update(batch.features, self.expert)

    def logits(self, batch: Batch) -> Tensor:
        return self.heads(self.expert_features(batch, self.heads.current))

    def after_step(self) -> None:
        self.heads.ema_step()

    @torch.no_grad()
    def predict(self, batch: Batch, seen: Tensor, home: Tensor | None = None) -> Prediction:
        routes, alone = self.route(batch), self.heads.num_experts == 1
        ways = {"routed": routes} if home is None or alone else {"routed": routes, "oracle router": home}
        features = self.routed_features(batch, list(ways.values()))
        classes = [self.scores(h, ids, seen).argmax(1) for h, ids in zip(features, ways.values(), strict=True)]
        also = dict(zip(list(ways)[1:], classes[1:], strict=True))
        heads = self.head_logits(features[0], routes, seen).argmax(2)
        return Prediction(classes[0], None if alone else routes, heads, also)

    def route(self, batch: Batch) -> Tensor:
        """(N,) the expert of each row, by its unprompted features."""
        if self.heads.num_experts == 1:
            return torch.zeros(len(batch), dtype=torch.int64)
        return self.router.route(batch.features)

    def scores(self, h: Tensor, experts: Tensor, seen: Tensor) -> Tensor:
        """(N, C) what the online head and the averages of each row's expert make of features h together."""
        if self.aggregation == "softmax-max":
            return self.heads.predict(h, experts, seen)
        return aggregate(self.aggregation, self.head_logits(h, experts, seen))

    def head_logits(self, h: Tensor, experts: Tensor, seen: Tensor) -> Tensor:
        """(1 + n, N, C) of the online head and of the averages, -inf for unseen classes."""
        out = torch.empty(1 + len(self.heads.decays), len(h), len(seen))
        out[0] = self.heads(h)
        for e in experts.unique().tolist():
            rows = experts == e
            weight, bias = self.heads.bank_weight[e], self.heads.bank_bias[e]
            out[1:, rows] = h[rows] @ weight.transpose(1, 2) + bias[:, None]
        return out.masked_fill(~seen, -torch.inf)

    def expert_features(self, batch: Batch, expert: int | Tensor | None) -> Tensor:
        """(N, d) features under the prompts of one expert or of each row's."""
        if not hasattr(self, "pool"):
            return batch.features
        assert expert is not None, "an expert has been started"
        return self.prompted(batch, expert)

    def routed_features(self, batch: Batch, ways: Sequence[Tensor]) -> list[Tensor]:
        """The features under several choices of experts (N,); what two choices share is computed once."""
        if not hasattr(self, "pool"):
            return [batch.features] * len(ways)
        rows = torch.arange(len(batch)).repeat(len(ways))
        pairs, place = torch.stack([rows, torch.cat(list(ways))]).unique(dim=1, return_inverse=True)
        parts = []
        for row, expert in zip(pairs[0].split(ROWS), pairs[1].split(ROWS), strict=True):
            some = Batch(batch.part, batch.rows[row])
            some.inputs = batch.inputs[row]
            parts.append(self.prompted(some, expert))
        return list(torch.cat(parts)[place].split(len(batch)))

    def _begin_if_due(self, batch: Batch) -> None:
        """Starts the first expert, or the next where the trigger says so."""
        current = self.heads.current
        if self.trigger is None:
            if current is None:
                self._start(0)
            return
        miss = 0.0
        if isinstance(self.trigger, ByDrift) and isinstance(self.router, REAR) and current is not None:
            miss = mean_miss(self.router, batch.features, current)
        if self.trigger.starts(len(batch), miss):
            self._start(min(0 if current is None else current + 1, self.heads.num_experts - 1))

    def _start(self, expert: int) -> None:
        if expert == self.heads.current:
            return
        self.heads.start_expert(expert)
        if hasattr(self, "pool"):
            drawn = self.pool.prompts[expert].detach().clone()
            self.pool.start_expert(expert)
            if not self.warm_start:
                with torch.no_grad():
                    self.pool.prompts[expert].copy_(drawn)
