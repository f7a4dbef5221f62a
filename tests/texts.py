"""Documents, and a small tokenizer to feed them to."""

from __future__ import annotations

import json
import random
import struct
from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

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


def write_llama2c_tokenizer(path: Path, pieces: list[str], *, bytes_as: str = "<0x{:02X}>") -> Path:
    """A tokenizer.bin of the special tokens, all bytes and these pieces, each with a better score than the one before."""
    words = ["<unk>", "\n<s>\n", "\n</s>\n", *(bytes_as.format(byte) for byte in range(256)), *pieces]
    rows = [struct.pack("<fi", number, len(word.encode())) + word.encode() for number, word in enumerate(words)]
    path.write_bytes(struct.pack("<i", 10) + b"".join(rows))
    return path
