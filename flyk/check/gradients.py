"""How far rounding may take each gradient, and for which outputs the gradient is well defined to begin with.

Where a choice (a winner, the sign at a ReLU, the largest head) hangs on rounding, the gradient does too; there the
incoming gradient is set to 0, so that everything else can be held to `flyk.check.bounds`' rule.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from flyk.check.bounds import (
    Arguments,
    Rounding,
    activations,
    clear_order,
    clear_winners,
    expansion,
    softmaxes,
    solution_slack,
)
from flyk.ops import _check
from flyk.ops.project import dense
from flyk.ops.winner_take_all import reference as pick
from flyk.ops.winner_take_all import scatter

Slacks = dict[str, Tensor]


def clear(operator: str, a: Arguments, r: Rounding) -> Tensor | bool:
    """The entries of the output, broadcast, whose gradient no rounding of the forward can change."""
    if operator == "ensemble":
        p, slack, _ = softmaxes(a, r)
        if p.shape[1] < 2 or p.numel() == 0:
            return True
        first, second = p.topk(2, 1).values.unbind(1)
        return first - second > 2 * slack.amax(1)
    if r.exact or ("activation" not in a and "selection" not in a):
        return True
    y, slack = activations(a, r) if "values" in a else (a["y"], torch.zeros_like(a["y"]))
    relu = a.get("activation") == "relu"
    signs = (y.abs() > slack) | (not relu)
    if "k" not in a:
        return signs
    if relu:
        y = y.relu()
    chosen = {"bias": a["bias"], "selection": a["selection"]}
    rows = clear_winners(y, slack, a["k"], **chosen, eps=r.eps)[..., None]
    if operator == "fly_lora":
        return rows
    slots = clear_order(y, slack, a["k"], **chosen, eps=r.eps)
    return rows & slots & signs.gather(-1, pick(y, a["k"], **chosen)[1])


def _matrix(a: Arguments, inputs: int) -> Tensor:
    return dense(a["values"], a["indices"], inputs).abs()


def project(a: Arguments, g: Tensor, r: Rounding) -> Slacks:
    R = _matrix(a, a["x"].shape[-1])
    return {"x": r.sums(len(R), g.abs() @ R)}


def winner_take_all(a: Arguments, g: Tensor, r: Rounding) -> Slacks:
    return {"y": torch.zeros_like(a["y"])}


def project_topk(a: Arguments, g: Tensor, r: Rounding) -> Slacks:
    y = expansion(a, r.eps, a["activation"])[0]
    at = pick(y, a["k"], a["bias"], a["selection"])[1]
    return {"x": r.sums(a["k"], scatter(g.abs(), at, y.shape[-1]) @ _matrix(a, a["x"].shape[-1]))}


def fly_lora(a: Arguments, g: Tensor, r: Rounding) -> Slacks:
    y, slack = activations(a, r)
    won, at = pick(y, a["k"], a["bias"], a["selection"])
    size, B, ranks = g.abs(), a["B"].abs() * abs(a["scale"]), y.shape[-1]
    # One sum over the m outputs within one over the k winners; and one over the rows, of winners known within slack.
    grad_y = scatter((size @ B).gather(-1, at), at, ranks)
    by_rank = [_check.rows(scatter(t, at, ranks)) for t in (won.abs(), slack.gather(-1, at))]
    size = abs(a["scale"]) * _check.rows(size).t()
    return {
        "x": r.sums(len(B) + a["k"] + 2, grad_y @ _matrix(a, a["x"].shape[-1])),
        "base": torch.zeros_like(g, dtype=torch.float64),
        "B": r.sums(size.shape[1] + 2, size @ by_rank[0]) + size @ by_rank[1],
    }


def ridge_solve(a: Arguments, g: Tensor, r: Rounding) -> Slacks:
    # dQ solves the same system; an entry of dG is two products of T terms.
    G, ridge = a["G"], a["ridge"]
    S = G.tril() + G.tril(-1).t() + ridge * torch.eye(len(G), dtype=G.dtype, device=G.device)
    U, dQ = (torch.linalg.solve(S, t) for t in (a["Q"], g))
    of_U, of_dQ = (solution_slack(G, ridge, t, r) for t in (U, dQ))
    of_G = of_dQ @ U.abs().t() + dQ.abs() @ of_U.t() + r.sums(U.shape[1] + 2, dQ.abs() @ U.abs().t())
    return {"G": (of_G + of_G.t()).tril(), "Q": of_dQ}


def ensemble(a: Arguments, g: Tensor, r: Rounding) -> Slacks:
    p, off, weight = softmaxes(a, r)
    if p.numel() == 0:
        return {name: torch.zeros_like(a[name]) for name in _HEADS if a[name] is not None}
    grad_p = torch.zeros_like(p).scatter_(1, p.argmax(1, keepdim=True), g.abs().unsqueeze(1))
    # grad l = p (grad p - Σ p grad p), with p off by `off` and a sum of C terms; then sums over C, over rows, over d.
    dot = (grad_p * p).sum(-1, keepdim=True)
    size = p * (grad_p + dot)
    slack = off * (grad_p + dot) + p * (grad_p * off).sum(-1, keepdim=True) + r.sums(p.shape[-1] + 4, size)
    of_h = torch.einsum("nhc,nhcd->nd", slack + r.sums(p[0].numel(), size), weight.abs())
    by_row = slack + r.sums(len(p), size)
    of_weight = torch.einsum("nhc,nd->nhcd", by_row, a["h"].abs())
    experts = torch.nn.functional.one_hot(a["expert_ids"], len(a["bank_weight"])).double()
    return {
        "h": of_h,
        "online_weight": of_weight[:, 0].sum(0),
        "online_bias": by_row[:, 0].sum(0),
        "bank_weight": torch.einsum("ne,nhcd->ehcd", experts, of_weight[:, 1:]),
        "bank_bias": torch.einsum("ne,nhc->ehc", experts, by_row[:, 1:]),
    }


_HEADS = ("h", "online_weight", "online_bias", "bank_weight", "bank_bias")


def masked_cross_entropy(a: Arguments, g: Tensor, r: Rounding) -> Slacks:
    # (p - 1 at the target) g / N, with p as in an ensemble of one head whose logits are given.
    logits, target = a["logits"], a["target"]
    slack = torch.zeros_like(logits)
    classes, place = target.unique(return_inverse=True)
    if logits.numel():
        present = logits[:, classes]
        p, below = present.softmax(1), present.amax(1, keepdim=True) - present
        size = p * (below + len(classes) + 8) + torch.nn.functional.one_hot(place, len(classes)) * 4
        slack[:, classes] = r.sums(1, size) * g.abs() / len(target)
    return {"logits": slack}


def folded(operator: str, gradients: dict[str, Any]) -> dict[str, Any]:
    """Autograd through the Cholesky of a symmetric matrix shares a gradient between both triangles; flyk's G is its
    lower triangle."""
    if operator == "ridge_solve":
        G = gradients["G"]
        gradients["G"] = G.tril() + G.triu(1).t()
    return gradients
