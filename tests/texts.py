"""Documents, and a small tokenizer to feed them to."""

from __future__ import annotations

import json
import random
import struct
from pathlib import Path
from typing import Any

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
    folder.mkdir(exist_ok=True)
    _bytes("<|endoftext|>").model.save(str(folder), "tiny")
    return folder


def _bytes(*special: str) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=list(special),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(essays(100), trainer)
    return tokenizer


LLADA_SPECIAL = (
    "<|startoftext|>",
    "<|endoftext|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
    "<|mdm_mask|>",
)
LLADA_TEMPLATE = (
    "{% for message in messages %}{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' + "
    "message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}"
    "{{ content }}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)


def chat_tokenizer(template: str | None = LLADA_TEMPLATE) -> Any:
    """320 ids, the special tokens and the chat template of LLaDA."""
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=_bytes(*LLADA_SPECIAL), bos_token="<|startoftext|>", eos_token="<|endoftext|>"
    )
    tokenizer.chat_template = template
    return tokenizer


def write_conversations(path: Path, count: int, seed: int = 0) -> Path:
    """Questions and short answers, half of them as messages."""
    draw = random.Random(seed)
    lines = []
    for number in range(count):
        asked, told = (" ".join(draw.choices(WORDS, k=draw.randint(1, 6))) for _ in range(2))
        pair = {"prompt": f"{number} {asked}?", "completion": told}
        messages = [{"role": "user", "content": pair["prompt"]}, {"role": "assistant", "content": told}]
        lines.append(json.dumps(pair if number % 2 else {"messages": messages}) + "\n")
    path.write_text("".join(lines))
    return path


def write_llama2c_tokenizer(path: Path, pieces: list[str], *, bytes_as: str = "<0x{:02X}>") -> Path:
    """A tokenizer.bin of the special tokens, all bytes and these pieces, each with a better score than the one before."""
    words = ["<unk>", "\n<s>\n", "\n</s>\n", *(bytes_as.format(byte) for byte in range(256)), *pieces]
    rows = [struct.pack("<fi", number, len(word.encode())) + word.encode() for number, word in enumerate(words)]
    path.write_bytes(struct.pack("<i", 10) + b"".join(rows))
    return path


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
