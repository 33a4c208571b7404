"""How far rounding may take each operator from the float64 result: its error analysis.

A sum of n terms, taken in any order in arithmetic of unit roundoff u, is off by at most n u / (1 - n u) times the sum
of the absolute values of its terms (Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., Eq. 3.5).
`Rounding.sums` takes 2 n u, which leaves room for the error of the float64 side where both are float64. Storing in a
narrower dtype adds u of that dtype times the result; where numbers underflow, its smallest one. Nothing else
is allowed for: each function below says how many terms there are and what their absolute values sum to.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from flyk.ops import _check
from flyk.ops.project import reference as project_reference
from flyk.ops.winner_take_all import scatter, score

Arguments = dict[str, Any]


class Fault(Exception):
    """What a kernel gave cannot be right, whatever rounding did."""


@dataclass
class Claim:
    """`name` of the result is off by `off`, of which `slack` is allowed."""

    name: str
    off: Tensor
    slack: Tensor

    def share(self) -> float:
        """The largest part of what is allowed that was used: above 1 is a fault."""
        share = torch.where(self.off == 0, 0.0, self.off / self.slack)
        return float(share.nan_to_num(nan=torch.inf, posinf=torch.inf).max()) if share.numel() else 0.0


def equal(name: str, got: Tensor, want: Tensor) -> Claim:
    """Bit for bit, but that any NaN is as good as another."""
    if got.shape != want.shape or got.dtype != want.dtype:
        raise Fault(f"{name} is {got.dtype} {tuple(got.shape)}, not {want.dtype} {tuple(want.shape)}")
    same = (got == want) | (got.isnan() & want.isnan()) if got.is_floating_point() else got == want
    return Claim(name, (~same).double(), torch.zeros(()))


class Rounding:
    """The allowance of results of `dtype`, whose sums are taken in the accumulator of that dtype or are `exact`."""

    def __init__(self, dtype: torch.dtype, *, exact: bool = False) -> None:
        self.dtype, self.accumulator, self.exact = dtype, _check.accumulator(dtype), exact
        self.eps = torch.finfo(self.accumulator).eps

    def sums(self, terms: float, magnitude: Tensor) -> Tensor:
        if self.exact:
            return torch.zeros_like(magnitude)
        return terms * (magnitude * self.eps + torch.finfo(self.accumulator).tiny)

    def stored(self, value: Tensor, slack: Tensor) -> Tensor:
        """`slack` of `value`, once it is stored in the dtype of the results."""
        if self.dtype == self.accumulator:
            return slack
        kind = torch.finfo(self.dtype)
        return slack + kind.eps / 2 * (value.abs() + slack + kind.tiny)

    def claim(self, name: str, got: Tensor, want: Tensor, slack: Tensor) -> Claim:
        """`got` is `want` within `slack` and its own rounding; the same bits where sums are exact."""
        if got.shape != want.shape or got.dtype != self.dtype:
            raise Fault(f"{name} is {got.dtype} {tuple(got.shape)}, not {self.dtype} {tuple(want.shape)}")
        slack = self.stored(want, slack)
        if self.exact:
            want, slack = want.to(self.dtype).double(), torch.zeros_like(want)
        got = got.detach().double()
        same = (got == want) | (got.isnan() & want.isnan())
        return Claim(name, torch.where(same, 0.0, (got - want).abs()), slack)


def expansion(a: Arguments, eps: float, activation: str = "none", precision: str = "float32") -> tuple[Tensor, Tensor]:
    """act(x Rᵀ) in float64, and how far a sum of d terms in arithmetic of `eps` may be from it."""
    x = a["x"] if "x" in a else a["h"]
    y = project_reference(x, a["values"], a["indices"], activation, precision)
    magnitude = project_reference(x.abs(), a["values"].abs(), a["indices"])
    terms = a["values"].shape[1] * (3 if precision == "bf16x3" else 1)
    return y, magnitude * (terms * eps)


def _margin(y: Tensor, slack: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    """How far the scores of a row may be off; adding a bias rounds once more."""
    if bias is not None:
        slack = slack + eps * (y.abs() + bias.abs())
    return slack.amax(-1) if y.shape[-1] else y.new_zeros(y.shape[:-1])


def clear_winners(
    y: Tensor, slack: Tensor, k: int, *, bias: Tensor | None = None, selection: str = "magnitude", eps: float = 0.0
) -> Tensor:
    """(...) bool: the rows whose k winners no rounding within `slack` can change."""
    if not 0 < k < y.shape[-1]:
        return torch.ones(y.shape[:-1], dtype=torch.bool, device=y.device)
    best = score(y, bias, selection).sort(dim=-1, descending=True).values
    return best[..., k - 1] - best[..., k] > 2 * _margin(y, slack, bias, eps)


def clear_order(
    y: Tensor, slack: Tensor, k: int, *, bias: Tensor | None = None, selection: str = "magnitude", eps: float = 0.0
) -> Tensor:
    """(..., k) bool: the places among the winners whose holder no rounding within `slack` can exchange for another."""
    best = score(y, bias, selection).sort(dim=-1, descending=True).values[..., :k]
    margin = _margin(y, slack, bias, eps)[..., None]
    apart = (best[..., :-1] - best[..., 1:] > 2 * margin) | (margin == 0)  # equal scores stand in the indices' order
    ends = torch.ones_like(best[..., :1], dtype=torch.bool)
    return torch.cat((ends, apart), -1) & torch.cat((apart, ends), -1) if k else ends


def winners(a: Arguments, y: Tensor, slack: Tensor, got: Tensor, at: Tensor, r: Rounding) -> Iterable[Claim]:
    """Valid winners of activations that are `y` within `slack`."""
    k, bias = a["k"], a["bias"]
    if at.dtype != torch.int64 or at.shape != (*y.shape[:-1], k):
        raise Fault(f"indices are {at.dtype} {tuple(at.shape)}, not int64 {(*y.shape[:-1], k)}")
    if at.numel() and (at.min() < 0 or at.max() >= y.shape[-1] or (at.sort(-1).values.diff() == 0).any()):
        raise Fault("indices are out of range or not distinct")
    scores = score(y, bias, a["selection"])
    best, order = scores.sort(dim=-1, descending=True, stable=True)
    if r.exact:
        yield equal("indices", at, order[..., :k])
    else:
        won, margin = scores.gather(-1, at), 2 * _margin(y, slack, bias, r.eps)[..., None].expand(at.shape)
        yield Claim("selection", (best[..., k - 1 : k] - won).clamp(min=0), margin)
        yield Claim("order", won.diff().clamp(min=0), margin[..., 1:])
    yield r.claim("winners", got, y.gather(-1, at), slack.gather(-1, at))


def project(a: Arguments, got: Sequence[Tensor], want: Sequence[Tensor], r: Rounding) -> Iterable[Claim]:
    yield r.claim("y", got[0], want[0], expansion(a, r.eps, a["activation"], a["precision"])[1])


def activations(a: Arguments, r: Rounding, activation: str = "none") -> tuple[Tensor, Tensor]:
    """What winners are picked from, in float64, and its slack; a kernel may store it in the case's dtype on the way."""
    y, slack = expansion(a, r.eps, activation)
    return y, r.stored(y, slack)


def project_topk(a: Arguments, got: Sequence[Tensor], want: Sequence[Tensor], r: Rounding) -> Iterable[Claim]:
    y, slack = activations(a, r, a["activation"])
    yield from winners(a, y, slack, got[0], got[1], r)


def fly_lora(a: Arguments, got: Sequence[Tensor], want: Sequence[Tensor], r: Rounding) -> Iterable[Claim]:
    # The output is held against the winners that were found: k + 2 terms, and winners may be stored on the way.
    out, won, at = got
    yield from winners(a, *activations(a, r), won, at, r)
    won, B = won.double(), a["B"] * a["scale"]
    base = torch.zeros_like(want[0]) if a["base"] is None else a["base"]

    def update(w: Tensor, b: Tensor) -> Tensor:
        return scatter(w, at, b.shape[1]) @ b.t()

    slack = r.sums(a["k"] + 2, base.abs() + update(won.abs(), B.abs()))
    slack = slack + update(r.stored(won, torch.zeros_like(won)), B.abs())
    yield r.claim("out", out, base + update(won, B), slack)


def gram_(a: Arguments, got: Sequence[Tensor], want: Sequence[Tensor], r: Rounding) -> Iterable[Claim]:
    yield from _statistics(a, a["phi"], torch.zeros_like(a["phi"]), got, want, r)


def _statistics(
    a: Arguments, phi: Tensor, slack: Tensor, got: Sequence[Tensor], want: Sequence[Tensor], r: Rounding
) -> Iterable[Claim]:
    """G and Q for phi known within `slack`: sums of N + 1 terms; of G only the lower triangle counts."""
    size, terms = phi.abs(), len(phi) + 1
    one_hot = (a["labels"][:, None] == torch.arange(a["Q"].shape[1], device=phi.device)).double()
    cross, products, split = slack.t() @ size, size.t() @ size, a["precision"] == "bf16x3"
    of_G = cross + cross.t() + r.sums(3 * terms if split else terms, a["G"].abs() + products)
    if split:  # a kernel may leave out the product of the low parts, each at most 2^-8 of its number, or not
        of_G = of_G + 2.0**-16 * products
    of_Q = slack.t() @ one_hot + r.sums(terms, a["Q"].abs() + size.t() @ one_hot)
    yield r.claim("G", got[0].tril(), want[0].tril(), of_G.tril())
    yield r.claim("Q", got[1], want[1], of_Q)


def expand_gram_(a: Arguments, got: Sequence[Tensor], want: Sequence[Tensor], r: Rounding) -> Iterable[Claim]:
    phi, slack = expansion(a, r.eps, a["activation"], a["precision"])
    # A phi rounded the other way to bfloat16 is off by its eps; of the two parts of "bf16x3" only the product of the
    # low ones is lost.
    slack = slack + {"float32": 0.0, "bf16": 2.0**-7, "bf16x3": 2.0**-14}[a["precision"]] * phi.abs()
    if a["k"] is not None:
        at = phi.abs().sort(dim=-1, descending=True, stable=True).indices[:, : a["k"]]
        kept = scatter(torch.ones_like(at, dtype=phi.dtype), at, phi.shape[1])
        phi, slack = phi * kept, slack * kept
    yield from _statistics(a, phi, slack, got, want, r)


def solution_slack(G: Tensor, ridge: float, U: Tensor, r: Rounding) -> Tensor:
    """Solving by Cholesky gives the solution of a system off by (3 M + 1) u |L||Lᵀ| (Higham, Theorem 10.4), where
    |L||Lᵀ| is at most sqrt(s_ii s_jj) by Cauchy and Schwarz; S itself is off by one rounding of its diagonal."""
    S = G.tril() + G.tril(-1).t() + ridge * torch.eye(len(G), dtype=G.dtype, device=G.device)
    root = S.diagonal().sqrt()
    return r.sums(3 * len(S) + 2, torch.linalg.inv(S).abs() @ torch.outer(root, root) @ U.abs())


def ridge_solve(a: Arguments, got: Sequence[Tensor], want: Sequence[Tensor], r: Rounding) -> Iterable[Claim]:
    yield r.claim("U", got[0], want[0], solution_slack(a["G"], a["ridge"], want[0], r))


def ema_(a: Arguments, got: Sequence[Tensor], want: Sequence[Tensor], r: Rounding) -> Iterable[Claim]:
    # Two terms, each a product with a decay that was itself rounded.
    decay = torch.tensor(a["decays"], dtype=torch.float64, device=got[0].device).view(-1, *[1] * a["online"].dim())
    size = decay * a["bank"].abs() + (1 - decay) * a["online"].abs()
    yield r.claim("bank", got[0], want[0], r.sums(4, size))


def softmaxes(a: Arguments, r: Rounding) -> tuple[Tensor, Tensor, Tensor]:
    """The softmax of each head of each row, (N, n + 1, C), how far it may be off, and its heads' weights.

    log p = l - logsumexp(l): off by the logit's own slack (d + 1 terms), by the largest slack among the logits, and
    by the roundings of l - max(l), of exp, of the sum of C terms and of the division.
    """
    E, classes = len(a["bank_weight"]), a["online_weight"].shape[0]
    weight = torch.cat((a["online_weight"].expand(E, 1, -1, -1), a["bank_weight"]), 1)[a["expert_ids"]]
    none = torch.zeros((), dtype=weight.dtype, device=weight.device)
    online = none if a["online_bias"] is None else a["online_bias"]
    bank = none if a["bank_bias"] is None else a["bank_bias"]
    bias = torch.cat((online.expand(E, 1, classes), bank.expand(*a["bank_weight"].shape[:3])), 1)[a["expert_ids"]]
    logits = torch.einsum("nd,nhcd->nhc", a["h"], weight) + bias
    slack = r.sums(a["h"].shape[1] + 1, torch.einsum("nd,nhcd->nhc", a["h"].abs(), weight.abs()) + bias.abs())
    if a["seen"] is not None:
        logits = logits.masked_fill(~a["seen"], -torch.inf)
        slack = slack * a["seen"]
    if logits.numel() == 0:
        return logits, slack, weight
    p, below = logits.softmax(-1), logits.amax(-1, keepdim=True) - logits
    relative = slack + slack.amax(-1, keepdim=True) + r.sums(1, below + classes + 8)
    return p, torch.where(p == 0, 0.0, p * relative), weight


def ensemble(a: Arguments, got: Sequence[Tensor], want: Sequence[Tensor], r: Rounding) -> Iterable[Claim]:
    slack = softmaxes(a, r)[1]  # a maximum is off by no more than the entry that is off most
    yield r.claim("p", got[0], want[0], slack.amax(1) if slack.numel() else torch.zeros_like(want[0]))


def masked_cross_entropy(a: Arguments, got: Sequence[Tensor], want: Sequence[Tensor], r: Rounding) -> Iterable[Claim]:
    # The mean of N terms logsumexp(l) - l_target, each of C exponentials and a few roundings of numbers up to max(l).
    present = a["logits"][:, a["target"].unique()].abs()
    size = 3 * present.amax(1).mean() + math.log(max(2, present.shape[1])) if present.numel() else want[0]
    yield r.claim("loss", got[0], want[0], r.sums(len(present) + present.shape[1] + 8, size))
