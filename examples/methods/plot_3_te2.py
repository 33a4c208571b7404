"""
TE2: one head that learns, and averages that remember
=====================================================

A head that trains on a stream knows best what came last. TE2 keeps, for each expert, moving averages of that head at
several time scales, and predicts with the surest of all: the elementwise largest of their softmaxes.
"""

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits

from flyk import ops
from flyk.nn import TE2Head

X, y = load_digits(return_X_y=True)
x, y = torch.tensor(X / 16, dtype=torch.float32), torch.tensor(y)
order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
train, test = order[:1200], order[1200:]

# %%
# Averages at several scales
# --------------------------
# One weight of a head that trains on batches of 8, and its averages. A decay of 0.9 looks back over about ten steps,
# 0.99 over about a hundred: the first follows quickly, the second is smooth.

torch.manual_seed(0)
head = TE2Head(64, 10, num_experts=1, decays=(0.9, 0.99))
head.start_expert(0)
optimizer = torch.optim.SGD(head.parameters(), lr=0.5)
track = []
for rows in train.repeat(3).split(8):
    loss = torch.nn.functional.cross_entropy(head(x[rows]), y[rows])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    head.ema_step()
    track.append([head.online.weight[3, 20].item(), *head.bank_weight[0, :, 3, 20].tolist()])

figure, axes = plt.subplots(figsize=(8, 3.2), layout="constrained")
axes.plot(track, label=["online", "decay 0.9", "decay 0.99"])
axes.set(xlabel="step", ylabel="one weight")
axes.legend()
plt.show()

# %%
# Two tasks, one after the other
# ------------------------------
# Digits 0 to 4, then 5 to 9. The online head is all that trains, and loses the first task while it learns the second.
# The first expert's averages rest when the second starts, and whoever knows which expert a row belongs to (REAR finds
# out) loses less with them; the online head has a say too, so not nothing. In training the loss is over the classes of
# the batch alone, as in the paper (Eq. 6).

torch.manual_seed(0)
head = TE2Head(64, 10, num_experts=2)
optimizer = torch.optim.Adam(head.parameters(), lr=2e-2)
tasks = [train[y[train] < 5], train[y[train] >= 5]]
tests = [test[y[test] < 5], test[y[test] >= 5]]
steps, online, ensembled = [], [], []
for expert, task in enumerate(tasks):
    head.start_expert(expert)
    for rows in task.repeat(3).split(32):
        loss = ops.masked_cross_entropy(head(x[rows]), y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        head.ema_step()
        first = tests[0]
        p = head.predict(x[first], torch.zeros(len(first), dtype=torch.int64))
        steps.append(len(steps))
        online.append(100 * float((head(x[first]).argmax(1) == y[first]).double().mean()))
        ensembled.append(100 * float((p.argmax(1) == y[first]).double().mean()))

figure, axes = plt.subplots(figsize=(8, 3.2), layout="constrained")
axes.plot(steps, online, color="0.6", label="online head")
axes.plot(steps, ensembled, label="with the first expert's averages")
axes.axvline(len(tasks[0].repeat(3).split(32)), color="0.4", linestyle=":", label="the second task begins")
axes.set(xlabel="step", ylabel="accuracy on digits 0 to 4, %", ylim=(0, 102))
axes.legend()
plt.show()
