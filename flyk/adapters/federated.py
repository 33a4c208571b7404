"""Adapters of unequal rank: cut, pad and average them, as rounds of federated learning do.

Row i of A is a function of the seed and i alone, but for its size 1 / r. So an adapter of fewer ranks is one of more
ranks whose other columns of B are zero, once B makes up for the size of A's rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import nn

from flyk.adapters.merge_adapters import by_name, weights_of
from flyk.nn import FlyLoRALinear, _check
from flyk.nn._adapter import Adapter


def resize(layer: FlyLoRALinear, r: int) -> FlyLoRALinear:
    """The layer with r ranks and the same base: padded by columns of B that are zero, or cut to its first r.

    Padding keeps `dense_delta`; it keeps the output too where k = r before and after. k is kept as far as r goes, and
    is r again where it was.
    """
    r = _check.integer("r", r, 1)
    settings = layer.settings()
    k = r if layer.k == layer.r else min(layer.k, r)
    settings |= {"r": r, "k": k, "alpha": layer.alpha * r / layer.r}
    resized = FlyLoRALinear(layer.in_features, layer.out_features, base=layer.base, **settings).to(layer.B)
    kept = min(r, layer.r)
    with torch.no_grad():
        # A's rows have size 1 / r, so B and the bias of the scores make up for the change.
        resized.B[:, :kept] = layer.B[:, :kept] * (r / layer.r)
        resized.routing_bias[:kept] = layer.routing_bias[:kept] * (layer.r / r)
    return resized.train(layer.training)


def rank_by_norm(layer: FlyLoRALinear, share: float = 0.99) -> int:
    """The fewest ranks whose first columns hold `share` of the squared norm of B; `resize` cuts to it."""
    share = _check.number("share", share, 0, 1)
    held = layer.B.detach().double().square().sum(0).cumsum(0)
    return max(1, int((held < share * held[-1]).sum()) + 1) if held[-1] > 0 else 1


def average_adapters(
    adapters: Sequence[Mapping[str, Adapter]], weights: Sequence[float] | None = None, r: int | None = None
) -> dict[str, FlyLoRALinear]:
    """One adapter out of those of several clients, whose ranks may differ: the weighted mean of their updates.

    Args:
        adapters: what `flyk.adapters.adapters` gives for each client, made with the same seed and nnz.
        weights: of the clients, such as their shares of the data; 1 / number of clients where None.
        r: ranks of the result; the most that a client has where None.

    Returns:
        name to layer, with the first client's base; `place` puts them into a model.

    Raises:
        ValueError, TypeError: adapters that differ in names, sizes, seed, nnz or selection, or weights that do not fit.
    """
    shares = weights_of(weights, len(adapters))
    averaged = {}
    for name, layers in by_name(adapters).items():
        made_by = [(a.projection.nnz, int(a.projection.seed), a.selection) for a in layers]
        if len(set(made_by)) > 1:
            raise ValueError(f"adapters must share (nnz, seed, selection) to be averaged, got {made_by} at {name!r}")
        ranks = max(layer.r for layer in layers)
        parts = [resize(layer, ranks) for layer in layers]
        mean = max(parts, key=lambda part: part.k)
        B = sum(w * part.scale / mean.scale * part.B.detach() for part, w in zip(parts, shares, strict=True))
        bias = sum(w * part.routing_bias for part, w in zip(parts, shares, strict=True))
        mean.B = nn.Parameter(torch.as_tensor(B))
        mean.routing_bias = torch.as_tensor(bias)
        mean.base = layers[0].base
        averaged[name] = mean if r is None else resize(mean, r)
    return averaged
