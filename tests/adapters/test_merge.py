"""Merging: tasks into one adapter, adapters into their base, and clients of unequal rank."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

from flyk.adapters import (
    adapters,
    apply,
    average_adapters,
    merge,
    merge_adapters,
    place,
    rank_by_norm,
    resize,
)
from flyk.nn import FlyLoRALinear, TaskGatedFlyLoRALinear

X = torch.linspace(-1, 1, 240, dtype=torch.float64).view(10, 24)


def task(seed: int, *, r: int = 8, k: int = 2, base: nn.Module | None = None, **options) -> dict[str, FlyLoRALinear]:
    """A trained adapter of one layer."""
    torch.manual_seed(seed)
    base = nn.Linear(24, 12, dtype=torch.float64) if base is None else base
    layer = FlyLoRALinear(24, 12, r, k, base=base, nnz=6, seed=seed, **options)
    nn.init.normal_(layer.B)
    nn.init.normal_(layer.routing_bias, std=0.01)
    return {"q": layer}


def update(layer: nn.Module) -> torch.Tensor:
    """What a layer adds to its base."""
    return layer(X) - layer.base(X)


BASE = nn.Linear(24, 12, dtype=torch.float64)
TWO = [task(1, base=BASE), task(2, base=BASE, r=4, alpha=3.0, selection="signed")]


def test_concat_is_the_exact_sum_of_outputs() -> None:
    merged = merge_adapters(TWO, [0.3, -2.0])["q"]
    right = BASE(X) + 0.3 * update(TWO[0]["q"]) - 2.0 * update(TWO[1]["q"])
    torch.testing.assert_close(merged(X), right, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(merge_adapters(TWO)["q"](X), BASE(X) + sum(update(t["q"]) for t in TWO) / 2)


def test_dense_is_equation_12() -> None:
    merged = merge_adapters(TWO, method="dense")["q"]
    assert type(merged) is nn.Linear
    delta = sum(t["q"].dense_delta() for t in TWO) / 2
    torch.testing.assert_close(merged.weight, BASE.weight + delta)
    torch.testing.assert_close(merged.bias, BASE.bias)


def test_linear_is_exact_where_A_is_the_same() -> None:
    two = [task(3, base=BASE), task(3, base=BASE)]
    nn.init.normal_(two[1]["q"].B)
    two[1]["q"].routing_bias.copy_(two[0]["q"].routing_bias)
    merged = merge_adapters(two, [0.5, 2.0], method="linear")["q"]
    right = BASE(X) + 0.5 * update(two[0]["q"]) + 2 * update(two[1]["q"])
    torch.testing.assert_close(merged(X), right)


def test_linear_is_refused_where_A_differs() -> None:
    with pytest.raises(ValueError, match=r"must not be 'linear' for adapters of different A.* at 'q'"):
        merge_adapters(TWO, method="linear")


def test_equal_seeds_are_reported() -> None:
    with pytest.warns(UserWarning, match="share A at 'q'"):
        merge_adapters([task(1, base=BASE), task(1, base=BASE)], method="dense")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        merge_adapters(TWO, method="dense")


def test_ties_by_hand() -> None:
    """Of two updates the entries that agree in sign with the sum are averaged, the smaller half having been cut."""
    a, b = (
        {"q": FlyLoRALinear(4, 1, 1, 1, base=nn.Linear(4, 1, bias=False), nnz=4, alpha=1.0, seed=s)} for s in (1, 2)
    )
    weight = a["q"].base.weight.detach().clone()
    deltas = [torch.tensor([[4.0, -3.0, 1.0, 0.5]]), torch.tensor([[-1.0, -5.0, 2.0, 0.1]])]
    for layer, delta in zip((a["q"], b["q"]), deltas, strict=True):
        layer._delta = lambda B, delta=delta: delta
    merged = merge_adapters([a, b], method="ties", density=0.5)["q"]
    # kept: [4, -3, 0, 0] and [0, -5, 2, 0]
    torch.testing.assert_close(merged.weight - weight, torch.tensor([[4.0, -4.0, 2.0, 0.0]]))


@pytest.mark.parametrize("method", ["ties", "dare"])
def test_keeping_all_of_one_adapter_is_dense(method: str) -> None:
    alone = [TWO[0]]
    merged = merge_adapters(alone, method=method, density=1.0)["q"]
    torch.testing.assert_close(merged.weight, merge_adapters(alone, method="dense")["q"].weight)


def test_dare_drops_its_share_and_keeps_the_mean() -> None:
    layer = FlyLoRALinear(400, 300, 2, 2, base=nn.Linear(400, 300, bias=False), nnz=400, seed=1)
    nn.init.normal_(layer.B)
    delta = layer.dense_delta()
    merged = merge_adapters([{"q": layer}], method="dare", density=0.25, seed=3)["q"]
    kept = merged.weight - layer.base.weight
    share = (kept.abs() > 1e-6).float().mean()
    assert float(share) == pytest.approx(0.25, abs=0.01)
    assert float((kept * delta).sum() / delta.square().sum()) == pytest.approx(1, abs=0.03)
    again = merge_adapters([{"q": layer}], method="dare", density=0.25, seed=3)["q"]
    assert torch.equal(again.weight, merged.weight)
    assert not torch.equal(merge_adapters([{"q": layer}], method="dare", density=0.25)["q"].weight, merged.weight)


def test_place_puts_merged_layers_into_the_model() -> None:
    model = nn.Sequential(nn.Linear(24, 12, dtype=torch.float64), nn.Tanh())
    tasks = [adapters(apply(model, "0", r=4, k=2, seed=1))]
    for layer in tasks[0].values():
        nn.init.normal_(layer.B)
    out = model(X)
    assert place(model, merge_adapters(tasks, [1.0])) is model
    torch.testing.assert_close(model(X), out)
    with pytest.raises(ValueError, match="model must have a linear layer 'nothing'"):
        place(model, {"nothing": nn.Linear(1, 1)})


def whole(k: int) -> nn.Module:
    torch.manual_seed(0)
    model = apply(nn.Sequential(nn.Linear(24, 12), nn.Tanh(), nn.Linear(12, 5)), ["0", "2"], r=4, k=k).double()
    for layer in adapters(model).values():
        nn.init.normal_(layer.B)
    return model


@pytest.mark.parametrize(
    ("arguments", "error", "sentence"),
    [
        (([],), ValueError, "adapters must be at least one, got none"),
        (([whole(4)],), TypeError, "adapters must be what flyk.adapters.adapters gives for each, got a Sequential"),
        ((TWO[0],), TypeError, "adapters must be what flyk.adapters.adapters gives for each, got a str"),
        ((TWO, [1.0]), ValueError, "weights must be one for each of 2 adapters, got 1"),
        ((TWO, [1.0, float("inf")]), ValueError, "weights must be finite"),
        ((TWO, None, "svd"), ValueError, "method must be one of 'concat', 'linear', 'dense', 'ties', 'dare'"),
        (([TWO[0], {"v": TWO[0]["q"]}],), ValueError, "must be of the same layers, got 'q' not in both 0 and 1"),
        (([TWO[0], {"q": FlyLoRALinear(24, 11)}],), ValueError, r"same sizes, got \(24, 12\) and \(24, 11\) at 'q'"),
        (([{"q": TaskGatedFlyLoRALinear(4, 4)}],), TypeError, "must be of FlyLoRALinear, got a TaskGated"),
    ],
)
def test_refuses(arguments, error, sentence) -> None:
    with pytest.raises(error, match=sentence):
        merge_adapters(*arguments)


def test_density_must_be_above_zero() -> None:
    with pytest.raises(ValueError, match="density must be above 0, got 0"):
        merge_adapters(TWO, method="ties", density=0)


def test_merging_into_the_base_measures_the_change() -> None:
    exact = whole(4)
    assert merge(exact, inputs=[X, (X,), {"input": X}]) == pytest.approx(0, abs=1e-12)
    assert [type(m) for m in exact] == [nn.Linear, nn.Tanh, nn.Linear]
    rough, kept = whole(2), whole(2)
    change = merge(rough, approximate=True, inputs=[X])
    out = kept(X)
    assert change == pytest.approx(float((rough(X) - out).norm() / out.norm()))
    assert change > 0.01
    assert merge(whole(4)) is None
    with pytest.raises(ValueError, match="inputs must be at least one batch, got none"):
        merge(whole(4), inputs=[])


def test_a_merge_that_is_not_exact_must_be_asked_for() -> None:
    model = whole(2)
    with pytest.raises(ValueError, match="approximate must be True"):
        merge(model)
    assert len(adapters(model)) == 2


@pytest.mark.parametrize("r", [1, 3, 8, 13])
def test_resize_keeps_what_fits(r: int) -> None:
    layer = task(1, base=BASE, k=8)["q"]
    resized = resize(layer, r)
    assert (resized.r, resized.k, resized.scale) == (r, r, layer.scale)
    if r >= layer.r:
        torch.testing.assert_close(resized(X), layer(X))
        torch.testing.assert_close(resize(resized, layer.r).B, layer.B)
    cut = layer.B.detach().clone()
    cut[:, r:] = 0
    kept = task(1, base=BASE, k=8)["q"]
    kept.B.data = cut
    torch.testing.assert_close(resized.dense_delta(), kept.dense_delta())


def test_resize_keeps_the_winners_among_the_ranks_it_keeps() -> None:
    layer = task(1, base=BASE, k=2)["q"]
    torch.testing.assert_close(resize(resize(layer, 12), 8)(X), layer(X))


def test_rank_by_norm() -> None:
    layer = FlyLoRALinear(8, 2, 4, 4)
    with torch.no_grad():
        layer.B.copy_(torch.tensor([[3.0, 1.0, 0.1, 0.0], [0.0, 0.0, 0.0, 0.0]]))
    assert [rank_by_norm(layer, share) for share in (0.0, 0.89, 0.9, 0.99, 1.0)] == [1, 1, 2, 2, 3]
    assert rank_by_norm(FlyLoRALinear(8, 2, 4, 4)) == 1


def test_averaging_equal_clients_changes_nothing() -> None:
    clients = [task(5, base=BASE) for _ in range(3)]
    averaged = average_adapters(clients)["q"]
    torch.testing.assert_close(averaged(X), clients[0]["q"](X))
    assert averaged.settings() == clients[0]["q"].settings()


def test_averaging_unequal_ranks_is_the_mean_of_their_updates() -> None:
    clients = [task(5, base=BASE, r=r, k=r) for r in (2, 8, 5)]
    shares = [0.5, 0.3, 0.2]
    averaged = average_adapters(clients, shares)["q"]
    right = sum(w * c["q"].dense_delta() for w, c in zip(shares, clients, strict=True))
    assert averaged.r == 8
    torch.testing.assert_close(averaged.dense_delta(), right)
    assert average_adapters(clients, r=3)["q"].r == 3
    with pytest.raises(ValueError, match=r"must share \(nnz, seed, selection\)"):
        average_adapters([task(5), task(6)])
