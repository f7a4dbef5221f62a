"""Documents, and a small tokenizer to feed them to."""

from __future__ import annotations

import json
import random
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

WORDS = [
    "the",
    "a",
    "cat",
    "dog",
    "sat",
    "ran",
    "on",
    "mat",
    "quick",
    "brown",
    "über",
    "naïve",
    "猫",
    "🙂",
    "1234",
    ".",
]


def essays(count: int, seed: int = 0) -> list[str]:
    """Distinct documents of different lengths."""
    draw = random.Random(seed)
    return [f"{number} " + " ".join(draw.choices(WORDS, k=draw.randint(1, 60))) for number in range(count)]


def write_lines(path: Path, documents: list[str]) -> Path:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in documents))
    return path


def write_tokenizer(folder: Path) -> Path:
    """A byte-level BPE of 320 ids in the two files GPT-2's comes in."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(essays(100), trainer)
    folder.mkdir(exist_ok=True)
    tokenizer.model.save(str(folder), "tiny")
    return folder


LETTERS = {"<|endoftext|>": 0, "<|im_end|>": 1, "<|user|>": 2, "<|mask|>": 3}
LETTERS |= {letter: place for place, letter in enumerate("abcdefghijklmnopqrstuvwxyz", start=4)}


def write_letters(folder: Path) -> Path:
    """A tokenizer of 30 ids with a chat template, in the hub's format: a token a letter, the mask is 3, 0 and 1 end a text."""
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE(vocab=LETTERS, merges=[]))
    tokenizer.decoder = decoders.ByteLevel()
    hub = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|endoftext|>",
        mask_token="<|mask|>",
        additional_special_tokens=["<|im_end|>", "<|user|>"],
    )
    hub.chat_template = (
        "{% for message in messages %}{{ '<|user|>' if message.role == 'user' else '' }}{{ message.content }}"
        "<|im_end|>{% endfor %}"
    )
    hub.save_pretrained(folder)
    return folder
