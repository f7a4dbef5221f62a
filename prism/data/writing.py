"""How the tokens of a model are read and written: as text, as a board, or as plain numbers."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.format import MAGIC_PREFIX

from prism.data import sudoku
from prism.data.text import load_tokenizer

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "added_tokens.json",
    "chat_template.jinja",
)
TEXT_ENDS = ("<|endoftext|>", "<|eot_id|>", "<|im_end|>", "<|role_end|>")
"""What ends a text or a turn of LLaDA and Dream beside the one token their tokenizers call eos."""

NEAR = 8
"""Tokens before one that decide how it reads: more than a character has bytes."""

Messages = Sequence[Mapping[str, str]]
"""A conversation: role and content of every turn."""


class Writing(ABC):
    ends: tuple[int, ...] = ()
    """Ids that end a text; none for a board."""

    @abstractmethod
    def read(self, text: str) -> list[int]:
        """A whole text as the model was trained to see it."""

    def prompt(self, text: str) -> list[int]:
        """A part of a text, to be continued or filled in."""
        return self.read(text)

    @abstractmethod
    def pieces(self, tokens: list[int]) -> list[str]:
        """One piece of text per token; joined they are what a person reads."""

    def text(self, tokens: list[int]) -> str:
        """All of it."""
        return "".join(self.pieces(tokens))

    def continuation(self, prompt: list[int], tokens: list[int]) -> str:
        """What `tokens` add to the text of the prompt."""
        return "".join(self.pieces(tokens))

    def chat(self, messages: Messages) -> list[int]:
        """A conversation up to where the model answers, in the form it was taught."""
        raise ValueError("This model has no tokenizer, so it cannot be chatted with; leave the chat out.")


class Board(Writing):
    """A Sudoku board: 81 characters, row ends understood."""

    def read(self, text: str) -> list[int]:
        return [int(token) for token in sudoku.to_tokens(sudoku.parse_puzzle(text)[None])[0]]

    def pieces(self, tokens: list[int]) -> list[str]:
        return ["\n" if token == sudoku.SEPARATOR else f" {token or '·'}" for token in tokens]


class Numbers(Writing):
    """Token ids, separated by spaces or commas."""

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size

    def read(self, text: str) -> list[int]:
        words = re.split(r"[\s,]+", text.strip())
        for place, word in enumerate(words):
            if not word.isascii() or not word.isdigit() or int(word) >= self.vocab_size:
                raise ValueError(f"Token {place + 1} is {word!r}; expected an id in 0..{self.vocab_size - 1}.")
        return [int(word) for word in words]

    def pieces(self, tokens: list[int]) -> list[str]:
        return [f"{token} " for token in tokens]


class Text(Writing):
    """Text through the tokenizer that came with the model."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        eos = tokenizer.eos_token_id
        known = {tokenizer.convert_tokens_to_ids(name) for name in TEXT_ENDS} - {None, tokenizer.unk_token_id}
        self.ends = tuple(sorted(known | ({eos} - {None})))

    def read(self, text: str) -> list[int]:
        return list(self.tokenizer(text)["input_ids"])

    def prompt(self, text: str) -> list[int]:
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def text(self, tokens: list[int]) -> str:
        return self.tokenizer.decode(tokens)

    def chat(self, messages: Messages) -> list[int]:
        if not self.tokenizer.chat_template:
            raise ValueError("This model's tokenizer has no chat template; give the prompt as plain text instead.")
        return self.prompt(self.tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False))

    def continuation(self, prompt: list[int], tokens: list[int]) -> str:
        """Without special tokens; with the space before its first word, which no tokenizer gives of the word alone."""
        parts = (prompt, prompt + tokens, tokens)
        before, whole, alone = (self.tokenizer.decode(part, skip_special_tokens=True) for part in parts)
        return whole.removeprefix(before) if whole.startswith(before) else alone

    def pieces(self, tokens: list[int]) -> list[str]:
        return [self._last(tokens[max(0, place - NEAR) : place + 1]) for place in range(len(tokens))]

    def _last(self, tokens: list[int]) -> str:
        """What the last of them adds to the text of the others: tokenizers glue spaces to one side or the other. A character of
        several bytes belongs to the last of its tokens."""
        before, after = (self.tokenizer.decode(part).rstrip("\ufffd") for part in (tokens[:-1], tokens))
        return after[len(before) :] if after.startswith(before) else f" {self.tokenizer.decode(tokens[-1:])}"


def has_tokenizer(folder: Path) -> bool:
    return any((folder / name).exists() for name in TOKENIZER_FILES)


def writing_for(folder: Path | None, vocab_size: int, length: int | None) -> Writing:
    """The tokenizer lying beside the weights if there is one, a board for Sudoku models, ids otherwise."""
    if folder is not None and has_tokenizer(folder):
        return Text(load_tokenizer(folder))
    if vocab_size == 11 and length == 89:
        return Board()
    return Numbers(vocab_size)


def may_be_npy(path: Path) -> bool:
    """By how it begins; a file with nothing in it may be becoming one."""
    with path.open("rb") as file:
        return file.read(len(MAGIC_PREFIX)) in (MAGIC_PREFIX, b"")


def load_rows(path: Path, vocab_size: int) -> np.ndarray:
    """A .npy file of token ids, one sequence a row."""
    if not path.exists():
        expected = "a .npy array of token ids, one sequence a row, or a folder written by prism tokenize"
        raise ValueError(f"{path}: no such file; expected {expected}.")
    if path.is_dir():
        raise ValueError(f"{path}: a folder, and not of prism tokenize; name one, or a .npy array of token ids.")
    if not may_be_npy(path):
        raise ValueError(
            f"{path}: not a .npy array of numbers; write one with numpy.save, or, of text, make a folder with prism tokenize "
            "first and name that."
        )
    try:
        rows = np.load(path, allow_pickle=False)
    except (ValueError, EOFError) as error:
        if path.with_name(f"{path.name}.settings.json").is_file():
            raise ValueError(f"{path} is unfinished; repeat the prism corpus that began it.") from error
        raise ValueError(f"{path}: not a .npy array of numbers ({error}); write one with numpy.save.") from error
    if rows.ndim != 2 or not np.issubdtype(rows.dtype, np.integer):
        raise ValueError(
            f"{path}: expected integers of shape (sequences, length), got {rows.dtype} of shape {rows.shape}."
        )
    if rows.size == 0:
        raise ValueError(f"{path}: the array is empty.")
    if rows.min() < 0 or rows.max() >= vocab_size:
        raise ValueError(
            f"{path}: token ids run from {rows.min()} to {rows.max()}; the model knows 0..{vocab_size - 1}."
        )
    return rows
