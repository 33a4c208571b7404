"""ensemble: the published loop over rows and heads, one product for each expert present, flyk."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from flyk.bench._case import FLOAT, INT64, Case, Floor, Inputs, Result, normal
from flyk.bench._scaling import Curve


def published(
    h: Tensor,
    online_weight: Tensor,
    online_bias: Tensor,
    bank_weight: Tensor,
    bank_bias: Tensor,
    expert_ids: Tensor,
    mask: Tensor,
) -> Result:
    online = F.linear(h, online_weight, online_bias) + mask
    rows = []
    for i, expert in enumerate(expert_ids.tolist()):
        heads = [online[i].softmax(-1)]
        for weight, bias in zip(bank_weight[expert], bank_bias[expert], strict=True):
            heads.append((F.linear(h[i], weight, bias) + mask).softmax(-1))
        rows.append(torch.stack(heads).amax(0))
    return torch.stack(rows)


def eager(
    h: Tensor,
    online_weight: Tensor,
    online_bias: Tensor,
    bank_weight: Tensor,
    bank_bias: Tensor,
    expert_ids: Tensor,
    mask: Tensor,
) -> Result:
    experts, heads, classes, d = bank_weight.shape
    order = expert_ids.argsort()
    ends = expert_ids.bincount(minlength=experts).cumsum(0).tolist()
    grouped = h[order]
    logits = h.new_empty(len(h), heads * classes)
    begin = 0
    for expert, end in enumerate(ends):
        if end > begin:
            weight = bank_weight[expert].view(-1, d).t()
            torch.addmm(bank_bias[expert].view(-1), grouped[begin:end], weight, out=logits[begin:end])
        begin = end
    bank = logits.view(-1, heads, classes).add_(mask).softmax(-1).amax(1)
    online = F.linear(grouped, online_weight, online_bias).add_(mask).softmax(-1)
    return torch.empty_like(bank).index_copy_(0, order, torch.maximum(bank, online, out=bank))


def ours(
    ops,
    h: Tensor,
    online_weight: Tensor,
    online_bias: Tensor,
    bank_weight: Tensor,
    bank_bias: Tensor,
    expert_ids: Tensor,
    seen: Tensor,
) -> Result:
    return ops.ensemble(h, online_weight, online_bias, bank_weight, bank_bias, expert_ids, seen)


def floor(rows: int, d: int, experts: int, heads: int, classes: int, seen: int) -> Floor:
    """h and the heads of the experts present read once, but for the classes not seen, p written once; (heads + 1) d
    multiplications and additions a row and class seen.
    """
    weights = (1 + min(experts, rows) * heads) * seen * (d + 1)
    return Floor((rows * (d + classes) + weights) * FLOAT + rows * INT64 + classes, 2 * rows * (heads + 1) * seen * d)


def case(rows: int, d: int, experts: int, classes: int, heads: int = 2, *, quick: bool = False) -> Case:
    seen = torch.arange(classes) % 5 < 4

    def inputs(generator: torch.Generator) -> Inputs:
        return {
            "h": normal(generator, rows, d),
            "online_weight": normal(generator, classes, d) / d**0.5,
            "online_bias": normal(generator, classes),
            "bank_weight": normal(generator, experts, heads, classes, d) / d**0.5,
            "bank_bias": normal(generator, experts, heads, classes),
            # As even as it goes, so that the weights that must be read are known.
            "expert_ids": (torch.arange(rows) % experts)[torch.randperm(rows, generator=generator)],
            "seen": seen,
            "mask": torch.zeros(classes).masked_fill(~seen, -torch.inf),
        }

    return Case(
        op="ensemble",
        what="all heads",
        sizes=f"{rows} rows of {d}, {experts} experts, {classes} classes",
        inputs=inputs,
        published=published,
        eager=eager,
        ours=ours,
        floor=floor(rows, d, experts, heads, classes, int(seen.sum())),
    )


CASES = (case(256, 768, 10, 200), case(256, 768, 100, 200))
QUICK = CASES[:1]
SCALING = (
    Curve("experts", (1, 4, 16, 64), {"rows": 256, "d": 768, "classes": 200}),
    Curve("rows", (1, 16, 256, 2048), {"experts": 10, "d": 768, "classes": 200}),
)
