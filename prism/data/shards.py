"""Tokens on disk: raw little-endian files of equal size, and a manifest that says what they are.

    train-00000.bin … validation-00000.bin …   uint16 or uint32 ids, document after document, without gaps
    manifest.json                              what they were made from and with, counts and sha256 sums
    tokenizer/                                 the tokenizer they were made with

While they are being written `progress.json` says how far the work is safely on disk, and what it does not mention is not
there: a writer that finds it cuts the files back to it and goes on.

Whoever loads them reads every file once and compares its sum. That it was right is remembered outside the folder, which may
be read-only, by everything that changes when the file does; an unchanged file is not read again.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int64, UInt, UInt64

from prism.data.text import end_of_text, file_sha256, fingerprint
from prism.models.folder import LOCK, Folder, sync, write_whole

FORMAT, VERSION = "prism-tokens", 3
MANIFEST, PROGRESS, SEEN = "manifest.json", "progress.json", ".seen"
SPLITS = ("train", "validation")

Ids = UInt[np.ndarray, " _"]


class CorpusError(ValueError):
    """A folder of tokens that cannot be read or gone on with: what, why, and how to mend it."""


@dataclass(frozen=True)
class Recipe:
    """What a folder of tokens is made from and with. Equal recipes give equal bytes."""

    source: Mapping[str, Any]
    tokenizer: str
    """Its fingerprint."""
    vocab_size: int
    end_of_text: int
    validation: float
    """The share of documents held out: those whose hash, as a fraction of the largest possible, lies below it."""
    shard_tokens: int

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype("<u2" if self.vocab_size <= 1 << 16 else "<u4")


@dataclass(frozen=True)
class Shard:
    name: str
    tokens: int
    sha256: str


@dataclass
class Split:
    """The documents of one side and the files that hold them; all files are full but the last."""

    documents: int = 0
    shards: list[Shard] = field(default_factory=list)
    open: int = 0
    """Tokens in the file after those, while it is being filled."""

    @property
    def tokens(self) -> int:
        return self.open + sum(shard.tokens for shard in self.shards)

    @staticmethod
    def of(content: Mapping[str, Any]) -> Split:
        return Split(content["documents"], [Shard(**shard) for shard in content["shards"]], content.get("open", 0))


# ── reading ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Stream:
    """The tokens of several files as if they were one."""

    files: tuple[Ids, ...]
    """Memory maps, equally long but for the last."""

    def __len__(self) -> int:
        return sum(map(len, self.files))

    def read(self, start: int, into: Int64[np.ndarray, " n"]) -> None:
        """The tokens from `start` on, as many as fit."""
        done, size = 0, len(self.files[0])
        while done < len(into):
            number, offset = divmod(start + done, size)
            piece = self.files[number][offset : offset + len(into) - done]
            into[done : done + len(piece)] = piece
            done += len(piece)


@dataclass(frozen=True)
class Corpus:
    """A finished folder of tokens."""

    folder: Path
    recipe: Recipe
    splits: Mapping[str, Split]

    @staticmethod
    def load(folder: Path) -> Corpus:
        """Every file is there and holds what the manifest says."""
        if (folder / PROGRESS).exists() and not (folder / MANIFEST).exists():
            raise CorpusError(f"{folder} is unfinished; repeat the prism tokenize that began it.")
        content = Folder(folder, CorpusError).json(MANIFEST)
        if content.get("format") != FORMAT:
            raise CorpusError(
                f"{folder / MANIFEST} is not of prism tokenize (no format {FORMAT!r}); name another folder."
            )
        if content.get("version") != VERSION:
            raise CorpusError(
                f"{folder / MANIFEST} has version {content.get('version')}, known here is {VERSION}; tokenize again."
            )
        if content.pop("sha256", None) != _digest(content):
            raise CorpusError(f"{folder / MANIFEST} is damaged: its own sha256 differs; copy it again from its source.")
        splits = {name: Split.of(content["splits"][name]) for name in SPLITS}
        corpus = Corpus(folder, Recipe(**content["recipe"]), splits)
        corpus.check_files()
        return corpus

    @property
    def train(self) -> Stream:
        return self._stream("train")

    @property
    def validation(self) -> Stream:
        return self._stream("validation")

    def require_tokenizer(self, tokenizer: Any, whose: str) -> None:
        """Whether it cuts text as the one this was made with, and ends documents with the same token."""
        if (found := fingerprint(tokenizer)) != self.recipe.tokenizer:
            raise CorpusError(
                f"{self.folder} was made with another tokenizer ({self.recipe.tokenizer[:12]}) than {whose} "
                f"({found[:12]}); tokenize the text again with that one."
            )
        if (end := end_of_text(tokenizer)) != self.recipe.end_of_text:
            ours, theirs = (f"{i} ({tokenizer.convert_ids_to_tokens(i)!r})" for i in (self.recipe.end_of_text, end))
            raise CorpusError(
                f"{self.folder} has the token {ours} after every document and {whose} has {theirs} for that; tokenize the text "
                "again with that one."
            )

    def digest(self) -> str:
        """A sha256 of all tokens, by those of the files."""
        return _digest({name: [shard.sha256 for shard in split.shards] for name, split in self.splits.items()})

    def _stream(self, split: str) -> Stream:
        shards = self.splits[split].shards
        return Stream(tuple(np.memmap(self.folder / shard.name, self.recipe.dtype, "r") for shard in shards))

    def check_files(self) -> None:
        """Whether all of them are there, and nothing else, with the sizes and sums they should have."""
        shards = [shard for split in self.splits.values() for shard in split.shards]
        if strangers := {path.name for path in self.folder.glob("[!.]*.bin")} - {shard.name for shard in shards}:
            raise CorpusError(
                f"{self.folder / min(strangers)} is not in {MANIFEST}; remove it, or copy the folder again."
            )
        for shard in shards:
            path, size = self.folder / shard.name, shard.tokens * self.recipe.dtype.itemsize
            if not path.is_file():
                raise CorpusError(f"{path} is missing; copy the folder again from its source.")
            if path.stat().st_size != size:
                raise CorpusError(f"{path} has {path.stat().st_size:,} bytes instead of {size:,}; copy it again.")
            if not _holds(path, shard.sha256):
                raise CorpusError(
                    f"{path} is damaged or of another corpus: its sha256 differs; copy it again from its source."
                )


def _holds(path: Path, sha256: str) -> bool:
    """Whether the sum of the file is this one: by reading it, unless that was done since it last changed."""
    now = path.stat()  # before it is read: what changes meanwhile is seen next time
    known = f"{path.resolve()} {now.st_size} {now.st_mtime_ns} {now.st_ctime_ns} {now.st_ino} {sha256}"
    marker = _checked() / hashlib.sha256(known.encode()).hexdigest()
    if os.access(marker, os.F_OK):  # no error where that folder may not be looked into
        return True
    if file_sha256(path) != sha256:
        return False
    with suppress(OSError):  # then it is read again next time
        marker.parent.mkdir(parents=True, exist_ok=True)
        marker.touch()
    return True


def _checked() -> Path:
    """A folder of empty files, one for every state of a file that was found right: processes cannot be in each other's way."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "prism" / "checked"


# ── writing ─────────────────────────────────────────────────────────────────────────────────────────────────────────


class CorpusWriter:
    """Takes documents in order. Whatever was committed survives any death, and the files come out the same."""

    def __init__(self, folder: Path, recipe: Recipe) -> None:
        """Goes on with what `folder` has of this very recipe."""
        self.folder, self.recipe = folder, recipe
        self.splits = {name: Split() for name in SPLITS}
        self.duplicates = self.empty = 0
        self.complete = False
        """Whether every document has been taken."""
        folder.mkdir(parents=True, exist_ok=True)
        if (folder / PROGRESS).exists():
            self._restore(Folder(folder, CorpusError).json(PROGRESS))
        elif any(not path.name.startswith(".") for path in folder.iterdir()):
            raise CorpusError(f"{folder} is not empty and holds no {PROGRESS}; choose another folder.")
        self._cut(SEEN, 8 * self.kept)
        for name, split in self.splits.items():
            self._cut(self._hidden(name), self._bytes(split.open))

    @property
    def kept(self) -> int:
        return sum(split.documents for split in self.splits.values())

    @property
    def tokens(self) -> int:
        return sum(split.tokens for split in self.splits.values())

    @property
    def taken(self) -> int:
        """Documents of the source that are dealt with."""
        return self.kept + self.duplicates + self.empty

    def seen(self) -> UInt64[np.ndarray, " n"]:
        """The hashes of all documents kept so far."""
        return np.fromfile(self.folder / SEEN, "<u8")

    def append(self, split: str, documents: Iterable[tuple[int, Ids]]) -> None:
        """Documents of one side: hash and tokens of each."""
        hashes, tokens = zip(*documents, strict=True)
        self._extend(SEEN, np.array(hashes, "<u8"))
        self.splits[split].documents += len(hashes)
        rest = np.concatenate(tokens).astype(self.recipe.dtype)
        while len(rest):
            now = rest[: self.recipe.shard_tokens - self.splits[split].open]
            self._extend(self._hidden(split), now)
            self.splits[split].open += len(now)
            rest = rest[len(now) :]
            if self.splits[split].open == self.recipe.shard_tokens:
                self._close_shard(split)

    def commit(self) -> None:
        """All of it on disk, first the bytes, then the word that they are there, then their final names."""
        for name in (SEEN, *map(self._hidden, SPLITS)):
            sync(self.folder / name)
        state = {"version": VERSION, "recipe": asdict(self.recipe)}
        state |= {"duplicates": self.duplicates, "empty": self.empty}
        splits = {name: asdict(split) for name, split in self.splits.items()}
        _write(self.folder / PROGRESS, {**state, "complete": self.complete, "splits": splits})
        self._rename_full()

    def finish(self) -> Corpus:
        for name, split in self.splits.items():
            if split.open:
                self._close_shard(name)
        self.complete = True
        self.commit()
        splits = {
            name: {"documents": split.documents, "tokens": split.tokens, "shards": [asdict(s) for s in split.shards]}
            for name, split in self.splits.items()
        }
        content = {
            "format": FORMAT,
            "version": VERSION,
            "recipe": asdict(self.recipe),
            "dtype": self.recipe.dtype.name,
            "split_rule": "validation if the 8-byte blake2b of the text, case folded and all white space a single blank, as a "
            "fraction of 2^64, is below recipe.validation",
            "dropped": {"duplicates": self.duplicates, "empty": self.empty},
            "splits": splits,
        }
        Corpus(self.folder, self.recipe, self.splits).check_files()  # before it is said that they are whole
        _write(self.folder / MANIFEST, {**content, "sha256": _digest(content)})
        return finished(self.folder, self.recipe)

    def _restore(self, state: Mapping[str, Any]) -> None:
        if state.get("version") != VERSION:
            raise CorpusError(
                f"{self.folder} was begun by another version of prism tokenize, which split texts by another rule; remove "
                "it and begin again."
            )
        _refuse_another(self.folder, state["recipe"], self.recipe)
        self.duplicates, self.empty, self.complete = state["duplicates"], state["empty"], state["complete"]
        self.splits = {name: Split.of(state["splits"][name]) for name in SPLITS}

    def _close_shard(self, split: str) -> None:
        done, hidden = self.splits[split], self.folder / self._hidden(split)
        sync(hidden)
        done.shards.append(Shard(hidden.name[1:], done.open, file_sha256(hidden)))
        done.open = 0
        self._cut(self._hidden(split), 0)

    def _rename_full(self) -> None:
        for shard in (shard for split in self.splits.values() for shard in split.shards):
            if (hidden := self.folder / f".{shard.name}").exists():
                hidden.rename(self.folder / shard.name)
        sync(self.folder)

    def _hidden(self, split: str) -> str:
        """The file being filled."""
        return f".{split}-{len(self.splits[split].shards):05}.bin"

    def _bytes(self, tokens: int) -> int:
        return tokens * self.recipe.dtype.itemsize

    def _cut(self, name: str, size: int) -> None:
        """The file as it was when that much of it was committed."""
        with (self.folder / name).open("ab") as file:
            if file.tell() < size:
                raise CorpusError(f"{file.name} is shorter than {PROGRESS} says; remove the folder and begin again.")
            file.truncate(size)

    def _extend(self, name: str, numbers: Ids) -> None:
        with (self.folder / name).open("ab") as file:
            file.write(numbers.tobytes())


def finished(folder: Path, recipe: Recipe) -> Corpus:
    """The corpus in `folder`, which must be of this recipe; what was needed only to make it is gone."""
    corpus = Corpus.load(folder)
    _refuse_another(folder, asdict(corpus.recipe), recipe)
    leftovers = [folder / name for name in (PROGRESS, SEEN, LOCK, f".{PROGRESS}", f".{MANIFEST}")]
    for path in [*leftovers, *folder.glob(".*-?????.bin")]:
        path.unlink(missing_ok=True)
    return corpus


def _refuse_another(folder: Path, before: Mapping[str, Any], recipe: Recipe) -> None:
    for name, value in asdict(recipe).items():
        if before[name] != value:
            raise CorpusError(
                f"{folder} was begun with {name}={before[name]}, not {value}; "
                "go on with the settings it has, or choose another folder."
            )


def _digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _write(path: Path, content: Mapping[str, Any]) -> None:
    write_whole(path, json.dumps(content, indent=2) + "\n")
    sync(path.parent)
