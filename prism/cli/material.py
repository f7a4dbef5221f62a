"""What a model is to learn from, as a user names it: a folder of tokens, or rows of them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from prism.data.shards import Corpus
from prism.data.text import end_of_text, load_tokenizer, vocabulary_size, with_mask
from prism.data.windows import TextWindows
from prism.data.writing import load_rows
from prism.losses.masking import Batch
from prism.training import Examples, Shuffled

DEFAULT_LENGTH = 1024


@dataclass(frozen=True, kw_only=True)
class WithData:
    """What to learn from."""

    data: str
    """A folder of prism tokenize, or a .npy file of token ids, one sequence a row."""
    held_out: int = 256
    """Sequences held out to measure the loss on; for text, taken from the validation documents."""
    length: int | None = None
    """Text and conversations: tokens per sequence (default: 1024, or the model's own length if that is less)."""
    ends: bool = False
    """Text: put every sequence between two end-of-text tokens, as MDLM's checkpoints were trained."""

    def tokens_of(self, own: int | None) -> int:
        """Of a sequence, for a model that was trained for `own` of them, if it was trained and says so."""
        length = min(own or DEFAULT_LENGTH, DEFAULT_LENGTH) if self.length is None else self.length
        if length < 1:
            raise ValueError(f"--length {length}: a sequence has at least 1 token.")
        return length

    def read(self, seed: int, vocab_size: int | None = None, own: int | None = None) -> Material:
        """`vocab_size` and `own`, the length it was trained for, are those of the model, if there is one."""
        if self.held_out < 1:
            raise ValueError(f"--held_out {self.held_out}: keep at least 1 sequence apart to measure the loss on.")
        return self.found(seed, vocab_size, own)

    def found(self, seed: int, vocab_size: int | None, own: int | None) -> Material:
        if Path(self.data).is_dir():
            return self._text(seed, vocab_size, self.tokens_of(own))
        return self._rows(seed, vocab_size)

    def _rows(self, seed: int, vocab_size: int | None) -> Material:
        stored = np.ascontiguousarray(load_rows(Path(self.data), vocab_size or 1 << 31))
        rows, content = torch.from_numpy(stored.astype("int64")), hashlib.sha256(stored.data).hexdigest()
        self.check_rows(rows.shape[1], f"a row of {self.data}")
        if len(rows) <= self.held_out:
            raise ValueError(
                f"{self.data} has {len(rows)} sequences; --held_out {self.held_out} leaves none to learn from."
            )
        learn, aside = rows[: -self.held_out], rows[-self.held_out :]
        vocab_size = vocab_size or int(rows.max()) + 2
        return Material(Shuffled(learn, seed=seed), Batch(aside), len(learn), vocab_size, vocab_size - 1, content)

    def check_rows(self, tokens: int, what: str) -> None:
        """Of sequences that are never cut."""
        if self.length not in (None, tokens):
            raise ValueError(
                f"--length {self.length}: {what} has {tokens} tokens; give --length {tokens}, or leave it out."
            )

    def _text(self, seed: int, vocab_size: int | None, length: int) -> Material:
        corpus = Corpus.load(Path(self.data))
        if vocab_size is not None and corpus.recipe.vocab_size > vocab_size:
            raise ValueError(
                f"{self.data} has {corpus.recipe.vocab_size:,} token ids; the model knows 0..{vocab_size - 1}."
            )
        tokenizer = load_tokenizer(corpus.folder / "tokenizer")
        corpus.require_tokenizer(tokenizer, "the one beside it")
        end = end_of_text(tokenizer) if self.ends else None
        if self.ends and length < 3:
            raise ValueError(f"--length {length} leaves no room between two ends; take at least 3.")
        there = len(corpus.validation) // (length - 2 * self.ends)
        if there < self.held_out:
            raise ValueError(
                f"{self.data} has {there} sequences of --length {length} to validate on, less than --held_out "
                f"{self.held_out}; lower either, or tokenize with a larger --validation."
            )
        examples = TextWindows(corpus.train, length, seed, end=end)
        held_out = TextWindows(corpus.validation, length, end=end).read(range(self.held_out))
        tokenizer = with_mask(tokenizer)
        vocab_size = vocab_size or vocabulary_size(tokenizer)
        text, mask_id = Tokenized(corpus, tokenizer), tokenizer.mask_token_id
        return Material(examples, Batch(held_out), examples.count, vocab_size, mask_id, corpus.digest(), text)


@dataclass(frozen=True)
class Tokenized:
    corpus: Corpus
    tokenizer: Any
    """With a mask."""


@dataclass(frozen=True)
class Material:
    """What there is to learn from, and what a model of it must know."""

    examples: Examples
    held_out: Batch
    count: int
    """Sequences to learn from."""
    vocab_size: int
    mask_id: int
    content: str
    """A digest of all there is to learn from, in its own order."""
    text: Tokenized | None = None

    @property
    def length(self) -> int:
        return self.held_out.tokens.shape[1]

    def digest(self) -> str:
        """Tells this material from any other: what it holds, the first sequences as they are learned, and those held out."""
        digest = hashlib.sha256(f"{self.count} {self.vocab_size} {self.mask_id} {self.content}".encode())
        for batch in (self.examples.batch(range(8), torch.device("cpu")), self.held_out):
            for part in (batch.tokens, batch.maskable, batch.attend):
                digest.update(b"-" if part is None else f"{tuple(part.shape)}".encode() + part.cpu().numpy().tobytes())
        return digest.hexdigest()[:16]
