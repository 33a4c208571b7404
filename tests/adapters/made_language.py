"""A tiny language model and four tiny tasks, made on the spot: no package, no network."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path

WORDS = [f"w{i}" for i in range(60)]
LABELS = {"sst2": ["negative", "positive"], "trec6": ["human", "number"], "tweet_emotion": ["anger", "joy"]}


def make_data(folder: Path, count: int = 40) -> Path:
    """Each label goes with words of its own; the right answer to a question repeats a word of it."""
    folder.mkdir(parents=True, exist_ok=True)
    draw = random.Random(0)
    for name, labels in LABELS.items():
        rows = []
        for i in range(2 * count):
            own = WORDS[10 * (i % 2) : 10 * (i % 2) + 10]
            rows.append([" ".join(draw.choices(own, k=draw.randint(3, 6))), labels[i % 2]])
        write(folder / f"{name}.json.gz", {"labels": labels, "train": rows[:count], "test": rows[count:]})
    questions = []
    for _ in range(2 * count):
        choices, answer = draw.sample(WORDS, 3), draw.randrange(3)
        text = " ".join([choices[answer], *draw.choices(WORDS, k=3)])
        questions.append({"question": text, "choices": choices, "answer": answer})
    write(folder / "arc_easy.json.gz", {"train": questions[:count], "test": questions[count:]})
    return folder


def write(path: Path, stored: object) -> None:
    path.write_bytes(gzip.compress(json.dumps(stored).encode()))


def make_model(folder: Path) -> Path:
    """A Llama of 3 layers, 64 wide, of random weights, with a tokenizer of words."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    labels = [word for each in LABELS.values() for word in each]
    words = ["?", ":", "Review", "Sentiment", "Question", "Type", "of", "answer", "Tweet", "Emotion", "Answer"]
    vocabulary = {word: i for i, word in enumerate(["[UNK]", *words, *labels, *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]").save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(vocabulary),
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        bos_token_id=0,
        eos_token_id=0,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder
