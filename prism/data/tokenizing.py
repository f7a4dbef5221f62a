"""From documents to shards: duplicates dropped, sides chosen, ids made in several processes, everything kept in order.

A document's side is decided by a hash of its text, so the same text never stands on both, in this run or another. Texts that
differ in case or white space alone are the same. Only ids are made in parallel; which documents, where and in what order is
decided in one place, so the number of processes leaves no trace.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from prism.data.processes import helpers
from prism.data.shards import MANIFEST, SPLITS, Corpus, CorpusWriter, Ids, Recipe, finished
from prism.data.text import Source, TextError, end_of_text, fingerprint, vocabulary_size
from prism.models.folder import alone

if TYPE_CHECKING:
    import tokenizers

CHUNK = 1 << 20  # characters a process is given at once
COMMIT = 1.0  # seconds of work that may be lost
ALONE = {
    "TOKENIZERS_PARALLELISM": "false"
}  # or each process would start a thread per core, whatever number of workers was asked for


def tokenize(
    source: Source,
    tokenizer: Any,
    folder: Path,
    *,
    validation: float = 0.01,
    shard_tokens: int = 1 << 26,
    workers: int = 1,
    report: Callable[[CorpusWriter], None] = lambda writer: None,
) -> Corpus:
    """Every distinct document of `source`, the end-of-text token after each, as a folder of tokens.

    Killed at any moment, the same call goes on where it was. `report` is called from time to time with the counts so far.
    """
    if not 0 <= validation < 1:
        raise ValueError(f"validation={validation}: the share of documents held out must lie in [0, 1).")
    if shard_tokens < 1 or workers < 1:
        raise ValueError(f"shard_tokens={shard_tokens} and workers={workers} must both be at least 1.")
    recipe = Recipe(
        source.describe(),
        fingerprint(tokenizer),
        vocabulary_size(tokenizer),
        end_of_text(tokenizer),
        validation,
        shard_tokens,
    )
    if (folder / MANIFEST).exists():
        return finished(folder, recipe)
    if next(source.documents(), None) is None:  # tells of bad input, too, before there is a folder
        raise TextError("There is no document to tokenize; name files or a dataset that hold text.")
    folder.mkdir(parents=True, exist_ok=True)
    with alone(folder, "choose another folder"):
        if (folder / MANIFEST).exists():  # another process has just finished it
            return finished(folder, recipe)
        writer = CorpusWriter(folder, recipe)
        if not writer.complete:
            encoder = Encoder(tokenizer.backend_tokenizer.to_str(), recipe.end_of_text)
            _write_all(writer, source, encoder, workers, report)
        tokenizer.save_pretrained(folder / "tokenizer")
        return writer.finish()


def _write_all(
    writer: CorpusWriter, source: Source, encoder: Encoder, workers: int, report: Callable[[CorpusWriter], None]
) -> None:
    chunks = _chunks(source.documents(writer.taken), set(writer.seen().tolist()))
    committed = time.monotonic()
    for chunk, ids in _in_order(chunks, encoder, workers):
        _store(writer, chunk, ids)
        if time.monotonic() - committed >= COMMIT:
            writer.commit()
            committed = time.monotonic()
        report(writer)
    writer.commit()


@dataclass
class Chunk:
    """What some consecutive documents of the source come to."""

    texts: list[str] = field(default_factory=list)
    """Those to keep."""
    hashes: list[int] = field(default_factory=list)
    characters: int = 0
    duplicates: int = 0
    empty: int = 0


def _chunks(documents: Iterable[str], seen: set[int]) -> Iterator[Chunk]:
    chunk = Chunk()
    for document in documents:
        # JSON may escape halves of characters, which no tokenizer takes.
        text = document.encode("utf-8", "replace").decode()
        key = _hash(text)
        chunk.characters += len(document)
        if not document.strip():
            chunk.empty += 1
        elif key in seen:
            chunk.duplicates += 1
        else:
            seen.add(key)
            chunk.texts.append(text)
            chunk.hashes.append(key)
        if chunk.characters >= CHUNK:
            yield chunk
            chunk = Chunk()
    yield chunk


def _hash(text: str) -> int:
    """The same for texts that differ in case or white space alone."""
    plain = " ".join(text.casefold().split())
    return int.from_bytes(hashlib.blake2b(plain.encode(), digest_size=8).digest(), "little")


def _store(writer: CorpusWriter, chunk: Chunk, ids: list[Ids]) -> None:
    threshold = int(writer.recipe.validation * (1 << 64))
    sides = {name: [] for name in SPLITS}  # type: dict[str, list[tuple[int, Ids]]]
    for key, tokens in zip(chunk.hashes, ids, strict=True):
        sides["validation" if key < threshold else "train"].append((key, tokens))
    for name, documents in sides.items():
        if documents:
            writer.append(name, documents)
    writer.duplicates += chunk.duplicates
    writer.empty += chunk.empty


# ── processes ───────────────────────────────────────────────────────────────────────────────────────────────────────


class Encoder:
    """Text to ids. Special tokens that a text spells out are text: only the end of a document is an end of text."""

    def __init__(self, state: str, end: int) -> None:
        """`state` is the tokenizer, serialised."""
        from tokenizers import Tokenizer

        self.tokenizer: tokenizers.Tokenizer = Tokenizer.from_str(state)
        self.tokenizer.encode_special_tokens = True
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()
        self.end = end

    def __call__(self, texts: list[str]) -> list[Ids]:
        encoded = self.tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        return [np.array([*encoding.ids, self.end], dtype=np.uint32) for encoding in encoded]

    def __reduce__(self) -> tuple[type[Encoder], tuple[str, int]]:
        return Encoder, (self.tokenizer.to_str(), self.end)


def _in_order(chunks: Iterator[Chunk], encode: Encoder, workers: int) -> Iterator[tuple[Chunk, list[Ids]]]:
    if workers == 1:
        from accelerate.utils import patch_environment

        with patch_environment(**ALONE):
            yield from ((chunk, encode(chunk.texts)) for chunk in chunks)
        return
    with helpers(workers, __name__, _start, (encode,)) as pool:
        waiting = deque()  # type: deque[tuple[Chunk, Any]]
        for chunk in chunks:
            waiting.append((chunk, pool.submit(_encode, chunk.texts)))
            if len(waiting) > 2 * workers:  # enough for nobody to wait, few enough to hold in memory
                done, ids = waiting.popleft()
                yield done, ids.result()
        for done, ids in waiting:
            yield done, ids.result()


def _start(encode: Encoder) -> None:
    global _encode_here
    _encode_here = encode
    os.environ.update(ALONE)


def _encode(texts: list[str]) -> list[Ids]:
    return _encode_here(texts)


_encode_here: Encoder
