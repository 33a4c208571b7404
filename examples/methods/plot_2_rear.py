"""
REAR: learn a stream in one pass, and forget nothing
====================================================

REAR expands features at random, ``φ = relu(x Rᵀ)``, and keeps two sums: ``G = Σ φᵀφ``, and ``Q``, the sum of φ for each
class. The readout is ridge regression in closed form, ``U = (G + λ I)⁻¹ Q``. A sum knows no order: what a stream shows
late cannot push out what it showed early.
"""

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from sklearn.linear_model import SGDClassifier

from flyk.nn import REAR

X, y = load_digits(return_X_y=True)
x, y = torch.tensor(X / 16, dtype=torch.float32), torch.tensor(y)
order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
train, test = order[:1200], order[1200:]

# %%
# One digit after another
# -----------------------
# The stream shows all zeros, then all ones, and so on, each image once. Beside REAR, a linear classifier that goes down
# the gradient in the same one pass. Both are tested on the digits shown so far.

by_digit = train[y[train].argsort(stable=True)]
rear = REAR(64, num_experts=10, expansion=1000, ridge=100.0)
descent = SGDClassifier(loss="log_loss", random_state=0)
seen, accuracy = [], {"REAR": [], "gradient descent": []}
for end in range(40, 1201, 40):
    rows = by_digit[end - 40 : end]
    rear.update(x[rows], y[rows])
    descent.partial_fit(x[rows], y[rows], classes=range(10))
    known = test[y[test] <= y[rows].max()]
    seen.append(end)
    accuracy["REAR"].append((rear.route(x[known]) == y[known]).double().mean())
    accuracy["gradient descent"].append(descent.score(x[known], y[known]))

figure, axes = plt.subplots(figsize=(8, 3.2), layout="constrained")
for name, values in accuracy.items():
    axes.plot(seen, [100 * float(value) for value in values], label=name)
for digit in range(1, 10):
    axes.axvline(int((y[train] < digit).sum()), color="0.8", linewidth=0.8)
axes.set(xlabel="images seen, one digit after another", ylabel="accuracy on digits seen, %", ylim=(0, 102))
axes.legend()
plt.show()

# %%
# Any order gives the same
# ------------------------
# The same images shuffled, to a second REAR. The sums differ by float32's rounding.

shuffled = REAR(64, num_experts=10, expansion=1000, ridge=100.0)
for rows in train.split(64):
    shuffled.update(x[rows], y[rows])
a, b = rear(x[test]), shuffled(x[test])
print(f"largest score {a.abs().max():.2f}, largest difference {(a - b).abs().max():.1e}")
print(f"{(a.argmax(1) == b.argmax(1)).double().mean():.1%} of predictions agree")

# %%
# Two streams merge
# -----------------
# Two machines that each saw half the digits: their sums add.

halves = []
for digits in (range(5), range(5, 10)):
    part = REAR(64, num_experts=10, expansion=1000, ridge=100.0)
    rows = train[torch.isin(y[train], torch.tensor(list(digits)))]
    part.update(x[rows], y[rows])
    halves.append(part)


def score(router):
    return float((router.route(x[test]) == y[test]).double().mean())


alone = [score(part) for part in halves]
together = score(halves[0].merge_(halves[1]))
print(f"alone {alone[0]:.1%} and {alone[1]:.1%}, together {together:.1%}")

# %%
# How wide, and how many winners
# ------------------------------
# More random features help, with less and less to gain. Winners, as in the fly: of each φ only the k largest are kept,
# which makes G cheaper to sum where they are few.

figure, axes = plt.subplots(figsize=(8, 3.2), layout="constrained")
widths = [50, 100, 200, 400, 800, 1600]
for name, share in {"all active": None, "one in five wins": 0.2, "one in twenty": 0.05}.items():
    values = []
    for width in widths:
        k = None if share is None else max(1, round(share * width))
        router = REAR(64, num_experts=10, expansion=width, ridge=10.0, k=k)
        router.update(x[train], y[train])
        values.append(100 * score(router))
    axes.semilogx(widths, values, "o-", label=name)
axes.set(xlabel="random features", ylabel="accuracy, %", xticks=widths)
axes.set_xticks(widths, [str(width) for width in widths])
axes.minorticks_off()
axes.legend()
plt.show()
