"""
FlyLoRA: each token uses k of r ranks
=====================================

A LoRA layer adds ``B A x`` to a frozen layer. FlyLoRA freezes A too: it is sparse and random, a pure function of its
seed. Of the r entries of ``A x`` each token keeps the k that are largest in size, so A chooses which columns of B a
token uses: the ranks are experts, and A routes without being trained.
"""

import copy

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits

from flyk import ops
from flyk.nn import FlyLoRALinear

X, y = load_digits(return_X_y=True)
x, y = torch.tensor(X / 16, dtype=torch.float32), torch.tensor(y)
torch.manual_seed(0)

# %%
# The frozen matrix, and who wins
# -------------------------------
# Left, A: 32 rows of 16 entries each, at random places of 64. Right, the winners of 40 images, in the order of their
# digits: images of one digit use much the same ranks, although nothing has been learned.

layer = FlyLoRALinear(64, 64, r=32, k=8, seed=0)
A = torch.zeros(32, 64).scatter_(1, layer.projection.indices.long(), layer.projection.values)
some = torch.cat([(y == digit).nonzero()[:4, 0] for digit in range(10)])
_, winners = ops.winner_take_all(layer.projection(x[some]), 8)
used = torch.zeros(len(some), 32).scatter_(1, winners, 1.0)

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
left.imshow(A, cmap="RdBu", vmin=-0.1, vmax=0.1)
left.set(title="A, frozen", xlabel="input", ylabel="rank")
right.imshow(used.T, cmap="Greys", aspect="auto")
right.set(title="winners of four images of each digit", xlabel="digit", ylabel="rank")
right.set_xticks(range(2, 40, 4), [str(digit) for digit in range(10)])
plt.show()

# %%
# The same ranks, used evenly
# ---------------------------
# Some ranks win more than their share. A bias added to the score, not to the result, moves that: after each step of
# the optimizer a rank that won less than its share gets a little more (Eq. 9 of the paper). It needs no auxiliary loss.

before = torch.zeros(32).scatter_add_(
    0, ops.winner_take_all(layer.projection(x), 8)[1].flatten(), torch.ones(1).expand(8 * len(x))
)
layer.bias_update_rate = 1e-3
for _ in range(200):
    layer(x)
    layer.update_routing_bias()
layer(x)

figure, axes = plt.subplots(figsize=(8, 3), layout="constrained")
share = 8 * len(x) / 32
axes.bar(range(32), before.sort().values / share, color="0.75", label="before")
axes.plot(range(32), layer.counts.sort().values / share, "o", color="C0", label="after 200 updates")
axes.axhline(1, color="0.4", linewidth=0.8)
axes.set(xlabel="ranks, in order of use", ylabel="wins over an even share")
axes.legend()
plt.show()

# %%
# What is trained
# ---------------
# B alone. A frozen network that knows the first five digits learns all ten through a FlyLoRA layer; beside it LoRA of
# the same r, which trains A too, and which keeps its input for the backward.


def fit(model, parameters, x, y, steps, rate=1e-2, after=lambda: None):
    optimizer, losses = torch.optim.AdamW(parameters, lr=rate), []
    for _ in range(steps):
        loss = torch.nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        after()
        losses.append(loss.item())
    return losses


network = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.Linear(64, 10))
fit(network, list(network.parameters()), x[y < 5], y[y < 5], 100)
network.requires_grad_(False)


class LoRA(torch.nn.Module):
    def __init__(self, base, r, scale):
        super().__init__()
        self.base, self.scale = base, scale
        self.A = torch.nn.Parameter(torch.randn(r, base.in_features) / base.in_features**0.5)
        self.B = torch.nn.Parameter(torch.zeros(base.out_features, r))

    def forward(self, x):
        return self.base(x) + self.scale * x @ self.A.T @ self.B.T


def fly():
    model = copy.deepcopy(network)
    for seed, i in enumerate((0, 2)):
        base = model[i]
        model[i] = FlyLoRALinear(base.in_features, base.out_features, r=32, k=8, base=base, seed=seed)
    return model, lambda: [model[i].update_routing_bias() for i in (0, 2)]


def lora():
    model = copy.deepcopy(network)
    for i in (0, 2):
        model[i] = LoRA(model[i], 32, 2.0)
    return model, lambda: None


figure, axes = plt.subplots(figsize=(8, 3), layout="constrained")
for name, make in {"LoRA, r 32": lora, "FlyLoRA, r 32, k 8": fly}.items():
    runs = []
    for rate in (1e-2, 3e-2, 1e-1):  # the matrices A differ in scale, so each has the best of three
        model, after = make()
        trained = [p for p in model.parameters() if p.requires_grad]
        runs.append(fit(model, trained, x[::3], y[::3], 100, rate, after))
    axes.semilogy(
        min(runs, key=lambda losses: losses[-1]), label=f"{name}: {sum(p.numel() for p in trained):,} trained"
    )
axes.set(xlabel="step", ylabel="loss on all ten digits")
axes.legend()
plt.show()
