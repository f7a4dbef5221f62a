"""Functions as tokens: files small enough to send anywhere, and examples for training.

    train-00.safetensors …   `tokens`: all functions one after another, each ended by the end-of-text token, uint16 or int32;
                             `ends`: where each ends; `prompts`: how many tokens of it are the prompt
    rows.json                counts, and what they were made with
    tokenizer/

Prompt and body are turned into tokens one by one: a prompt has the same tokens in training and when a body is asked for.
A row is a function padded to one length with end-of-text tokens. They are to be predicted like all others: a model that is
given room for a body says by them where it ends, as LLaDA does.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int, Int32
from torch import Tensor

from prism.data.function_corpus import FunctionCorpus, FunctionsError
from prism.data.functions import Function
from prism.data.text import end_of_text, fingerprint, vocabulary_size
from prism.data.tokenizing import Encoder
from prism.losses.masking import Batch
from prism.models.folder import Folder, write_tensors, write_whole
from prism.state import Mask
from prism.training.examples import Examples, shuffled

INDEX = "rows.json"
PART = 25_000_000  # tokens in a file: 50 MB
AT_ONCE = 10_000  # functions turned into tokens, or rows padded, in one go


def write_rows(corpus: FunctionCorpus, tokenizer: Any, folder: Path, part: int = PART) -> dict[str, dict[str, Any]]:
    """The functions as tokens, about `part` of them in a file; counts by split. What the folder holds already is kept if it
    was made with the same tokenizer from the same functions."""
    end = end_of_text(tokenizer)
    made_with = {
        "tokenizer": fingerprint(tokenizer),
        "vocab_size": vocabulary_size(tokenizer),
        "end_of_text": end,
        "functions": {name: split["sha256"] for name, split in corpus.manifest["splits"].items()},
    }
    if (folder / INDEX).exists():
        before = Folder(folder, FunctionsError).json(INDEX)
        splits: dict[str, dict[str, Any]] = before.pop("splits")
        if before != made_with:
            raise FunctionsError(f"{folder} was made from other functions or with another tokenizer; remove it first.")
        return splits
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save_pretrained(folder / "tokenizer")
    encoder = Encoder(tokenizer.backend_tokenizer.to_str(), end)
    splits = {}
    for name in corpus.manifest["splits"]:
        files, functions, tokens = [], 0, 0
        for number, table in enumerate(_parts(corpus.functions(name), encoder, part)):
            files.append(f"{name}-{number:02}.safetensors")
            write_tensors(folder / files[-1], table)
            functions, tokens = functions + len(table["ends"]), tokens + len(table["tokens"])
        splits[name] = {"functions": functions, "tokens": tokens, "files": files}
    write_whole(folder / INDEX, json.dumps({**made_with, "splits": splits}, indent=1) + "\n")
    return splits


def _parts(functions: Iterator[Function], encoder: Encoder, part: int) -> Iterator[dict[str, Tensor]]:
    tokens: list[np.ndarray] = []
    prompts: list[int] = []
    size = 0
    while some := list(islice(functions, AT_ONCE)):
        heads, bodies = encoder([f.prompt for f in some]), encoder([f.body for f in some])
        for head, body in zip(heads, bodies, strict=True):
            tokens.append(np.concatenate([head[:-1], body]))
            prompts.append(len(head) - 1)
            size += len(tokens[-1])
            if size >= part:
                yield _table(tokens, prompts)
                tokens, prompts, size = [], [], 0
    if tokens:
        yield _table(tokens, prompts)


def _table(tokens: list[np.ndarray], prompts: list[int]) -> dict[str, Tensor]:
    flat = np.concatenate(tokens)
    return {
        "tokens": torch.from_numpy(flat.astype(np.uint16 if flat.max() < 1 << 16 else np.int32)),
        "ends": torch.from_numpy(np.cumsum([len(row) for row in tokens]).astype(np.int32)),
        "prompts": torch.tensor(prompts, dtype=torch.int32),
    }


@dataclass(frozen=True)
class FunctionRows:
    """Functions that fit into one length, padded to it."""

    tokens: Int32[Tensor, "n l"]
    prompts: Int32[Tensor, " n"]
    """Tokens of each that are the prompt."""
    numbers: Int[Tensor, " n"]
    """Which function of its split each is."""
    end: int
    """The end-of-text token, which pads."""

    @staticmethod
    def load(folder: Path, split: str, length: int) -> FunctionRows:
        """Those functions of a split that have at most `length` tokens, the end of text among them."""
        index = Folder(folder, FunctionsError).json(INDEX)
        if split not in index["splits"]:
            raise FunctionsError(f"{folder} has no {split!r} functions; it has {', '.join(index['splits'])}.")
        end, first = int(index["end_of_text"]), 0
        tokens, prompts, numbers = [], [], []
        for name in index["splits"][split]["files"]:
            table = {key: tensor.numpy() for key, tensor in Folder(folder, FunctionsError).tensors(name).items()}
            ends = table["ends"].astype(np.int64)
            lengths = np.diff(ends, prepend=0)
            fitting = np.flatnonzero(lengths <= length)
            flat = np.append(table["tokens"].astype(np.int32), np.int32(end))
            for some in np.split(fitting, range(AT_ONCE, len(fitting), AT_ONCE)):
                places = (ends - lengths)[some, None] + np.arange(length)
                inside = np.arange(length) < lengths[some, None]
                tokens.append(torch.from_numpy(flat[np.where(inside, places, -1)]))  # the last one is the end of text
            prompts.append(torch.from_numpy(table["prompts"][fitting]))
            numbers.append(torch.from_numpy(first + fitting))
            first += len(ends)
        if not sum(map(len, tokens)):
            raise FunctionsError(
                f"{folder} has no {split!r} function of at most {length} tokens; take a longer length."
            )
        return FunctionRows(torch.cat(tokens), torch.cat(prompts), torch.cat(numbers), end)

    @staticmethod
    def asking(prompts: list[str], tokenizer: Any, length: int) -> FunctionRows:
        """Prompts and nothing behind them, but for those that leave no room at all: `numbers` says which are there."""
        end = end_of_text(tokenizer)
        encoded = Encoder(tokenizer.backend_tokenizer.to_str(), end)(prompts)
        fitting = [number for number, ids in enumerate(encoded) if len(ids) <= length]
        rows = torch.full((len(fitting), length), end, dtype=torch.int32)
        for row, number in zip(rows, fitting, strict=True):
            row[: len(encoded[number])] = torch.from_numpy(encoded[number].astype(np.int32))
        lengths = torch.tensor([len(encoded[number]) - 1 for number in fitting], dtype=torch.int32)
        return FunctionRows(rows, lengths, torch.tensor(fitting, dtype=torch.long), end)

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, chosen: Int[Tensor, " m"] | slice) -> FunctionRows:
        return FunctionRows(self.tokens[chosen], self.prompts[chosen], self.numbers[chosen], self.end)

    def to(self, device: torch.device) -> FunctionRows:
        return FunctionRows(self.tokens.to(device), self.prompts.to(device), self.numbers.to(device), self.end)

    @property
    def bodies(self) -> Mask:
        """What is not the prompt: the body, its end, and the padding."""
        places = torch.arange(self.tokens.shape[1], device=self.tokens.device)
        return places >= self.prompts[:, None]


@dataclass(frozen=True)
class WholeFunctions(Examples):
    """Functions in a fresh order every epoch, of which every token may be masked: to learn the language."""

    rows: FunctionRows
    seed: int = 0

    def batch(self, rows: range, device: torch.device) -> Batch:
        chosen = self.rows[shuffled(rows, len(self.rows), self.seed, self.rows.tokens.device)]
        return Batch(chosen.tokens.to(device).long())


@dataclass(frozen=True)
class FunctionBodies(Examples):
    """The same, of which the prompt is always given: to learn to write bodies."""

    rows: FunctionRows
    seed: int = 0

    def batch(self, rows: range, device: torch.device) -> Batch:
        chosen = self.rows[shuffled(rows, len(self.rows), self.seed, self.rows.tokens.device)]
        return Batch(chosen.tokens.to(device).long(), chosen.bodies.to(device))
