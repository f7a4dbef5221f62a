"""Text as documents, and the tokenizer that turns them into ids."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import json
import lzma
import re
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from io import TextIOWrapper
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from prism.models.folder import Folder, first_line

JSON_LINES = (".jsonl", ".ndjson", ".json")
Row = dict[str, Any]
"""A JSON object, or a row of a dataset."""


class TextError(ValueError):
    """Text, or a tokenizer, that cannot be read: what, why, and how to mend it."""


# ── documents ───────────────────────────────────────────────────────────────────────────────────────────────────────


class Source(ABC):
    @abstractmethod
    def documents(self, skip: int = 0) -> Iterator[str]:
        """Every document in an order that never changes, without the first `skip`."""

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Enough to tell that a second run reads the same."""


@dataclass(frozen=True)
class Files(Source):
    """JSON lines (.jsonl, .ndjson, .json) hold one document a line; any other file is plain text, as a whole one document
    unless `separator` cuts it. Either may be compressed: .gz, .bz2, .xz, .zst."""

    paths: tuple[Path, ...]
    field: str = "text"
    """Where a JSON line keeps its text."""
    separator: str | None = None
    """A line of a plain text file that stands between documents; empty for blank lines."""

    def __post_init__(self) -> None:
        for path in self.paths:
            if not path.is_file():
                raise TextError(
                    f"{path}: no such file; name JSON lines or plain text, .gz, .bz2, .xz or .zst or neither."
                )

    def documents(self, skip: int = 0) -> Iterator[str]:
        return islice((document for path in self.paths for document in self._read(path)), skip, None)

    def describe(self) -> dict[str, Any]:
        """By what the files hold, so they may be moved and touched; read once more, they cost little beside making ids."""
        files = [_described(path, path.name) for path in self.paths]
        return {"files": files, "field": self.field, "separator": self.separator}

    def _read(self, path: Path) -> Iterator[str]:
        if holds_json_lines(path):
            yield from (text_of(where, row, self.field) for where, row in json_lines(path))
        else:
            with _opened(path) as file:
                yield from self._pieces(file)

    def _pieces(self, file: TextIOWrapper) -> Iterator[str]:
        if self.separator is None:
            yield file.read()
            return
        piece: list[str] = []
        for line in file:
            if line.strip() == self.separator:
                yield "".join(piece)
                piece = []
            else:
                piece.append(line)
        yield "".join(piece)


def _described(path: Path, name: str) -> dict[str, Any]:
    return {"name": name, "bytes": path.stat().st_size, "sha256": file_sha256(path)}


def text_of(where: str, row: Row, field: str) -> str:
    """The text of a row; null is an empty one, as corpora have where a page had none."""
    if field in row and row[field] is None:
        return ""
    if not isinstance(row.get(field), str):
        texts = [key for key, value in row.items() if isinstance(value, str)]
        raise TextError(
            f"{where} has no text under {field!r}; "
            + (f"name another field: {', '.join(texts)}." if texts else f"its fields are: {', '.join(row) or 'none'}.")
        )
    return row[field]


def file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def holds_json_lines(path: Path) -> bool:
    return next((s for s in reversed(path.suffixes) if s not in OPENERS), None) in JSON_LINES


def json_lines(path: Path) -> Iterator[tuple[str, Row]]:
    """The objects of a file of JSON lines, compressed or not, each with the place it stands at; blank lines are passed over."""
    with _opened(path) as file:
        for place, (number, line) in enumerate((n, line) for n, line in enumerate(file, 1) if line.strip()):
            where = f"{path}, line {number}"
            if place == 0 and line.lstrip().startswith("["):
                raise TextError(
                    f"{where} begins a list; expected an object on every line. If the file is one list of objects, "
                    f"jq -c '.[]' {path.name} > lines.jsonl puts each on a line of its own."
                )
            try:
                row = json.loads(line)
            except json.JSONDecodeError as error:
                raise TextError(f"{where} is not JSON ({error.msg}); expected an object on every line.") from error
            if not isinstance(row, dict):
                raise TextError(f"{where} is no object but {line.strip()[:20]!r}; expected an object on every line.")
            yield where, row


@contextmanager
def _opened(path: Path) -> Iterator[TextIOWrapper]:
    try:
        with OPENERS.get(path.suffix, open)(path, "rt", encoding="utf-8-sig") as file:  # editors may mark its beginning
            yield file
    except UnicodeDecodeError as error:
        raise TextError(f"{path} is not UTF-8 text ({error.reason}); convert it first.") from error
    except (EOFError, OSError, lzma.LZMAError, zlib.error) as error:
        raise TextError(f"{path} cannot be read to its end ({error}); copy it again if it is cut short.") from error


@contextmanager
def _open_zstd(path: Path, mode: Literal["rt"], encoding: str) -> Iterator[TextIOWrapper]:
    try:
        from backports import zstd
    except ImportError as error:
        raise TextError(f"{path}: .zst needs backports.zstd; run: pip install 'prism-mdm[text]'") from error
    try:
        with zstd.open(path, mode, encoding=encoding) as file:
            yield file
    except zstd.ZstdError as error:
        raise OSError(str(error)) from error


OPENERS: dict[str, Any] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open, ".zst": _open_zstd}


@dataclass(frozen=True)
class Dataset(Source):
    """A dataset of the Hugging Face hub, or a folder in one of its layouts, streamed."""

    name: str
    config: str | None = None
    split: str = "train"
    field: str = "text"

    def documents(self, skip: int = 0) -> Iterator[str]:
        for where, row in dataset_rows(self.name, self.config, self.split, skip):
            yield text_of(where, row, self.field)

    def describe(self) -> dict[str, Any]:
        """A folder by what its files hold, a dataset of the hub by its revision: both may change under the same name."""
        folder = Path(self.name)
        if not folder.is_dir():
            return {"dataset": {**asdict(self), "revision": _revision(self.name, self.config)}}
        paths = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
        files = [_described(paths[name], name) for name in sorted(paths) if not re.search(r"(^|/)\.", name)]
        return {"dataset": {**asdict(self), "name": folder.resolve().name}, "files": files}


@dataclass(frozen=True)
class First(Source):
    """The first documents of a source, for what needs less than all of it."""

    source: Source
    count: int

    def documents(self, skip: int = 0) -> Iterator[str]:
        return islice(self.source.documents(skip), max(0, self.count - skip))

    def describe(self) -> dict[str, Any]:
        return {**self.source.describe(), "first": self.count}


def dataset_rows(name: str, config: str | None, split: str, skip: int = 0) -> Iterator[tuple[str, Row]]:
    """The rows of a dataset of the hub, or of a folder in one of its layouts, each with its place; streamed."""
    with _datasets(name) as datasets:
        rows = datasets.load_dataset(name, config, split=split, streaming=True)
        for number, row in enumerate(rows.skip(skip), skip + 1):
            yield f"{name}, row {number}", row


def _revision(name: str, config: str | None) -> str | None:
    """The commit of a dataset of the hub."""
    with _datasets(name) as datasets:
        return datasets.load_dataset_builder(name, config).hash


@contextmanager
def _datasets(name: str) -> Iterator[Any]:
    """The package, while it opens and reads a dataset."""
    try:
        import datasets
    except ImportError as error:
        raise TextError(f"{name} needs datasets; run: pip install 'prism-mdm[text]'") from error
    try:
        yield datasets
    except (ValueError, OSError) as error:
        raise TextError(f"The dataset {name!r} cannot be read: {first_line(error)}") from error


# ── tokenizers ──────────────────────────────────────────────────────────────────────────────────────────────────────


def load_tokenizer(name: str | Path) -> Any:
    """A fast tokenizer of transformers from a folder, the hub or a GGUF file, or the byte-level BPE of GPT-2 from a folder that
    has no more than its vocabulary and merges (`*vocab.json`, `*merges.txt`). Code that lies beside it is never run: those that
    bring some are plain tokenizers (LLaDA) or Qwen2's (Dream) all the same."""
    from transformers import AutoTokenizer, GPT2Tokenizer, PreTrainedTokenizerFast, Qwen2Tokenizer

    folder = Path(name)
    inside = {"gguf_file": folder.name} if folder.suffix == ".gguf" else {}
    vocabularies, merges = sorted(folder.glob("*vocab.json")), sorted(folder.glob("*merges.txt"))
    if len(vocabularies) == len(merges) == 1 and not list(folder.glob("*config.json")):
        return GPT2Tokenizer(vocab=str(vocabularies[0]), merges=str(merges[0]))
    kind: Any = AutoTokenizer
    if _brings_code(folder):
        kind = PreTrainedTokenizerFast if (folder / "tokenizer.json").is_file() else Qwen2Tokenizer
    try:
        tokenizer = kind.from_pretrained(folder.parent if inside else name, trust_remote_code=False, **inside)
    except (ImportError, ValueError, OSError) as error:
        raise TextError(f"There is no tokenizer in {str(name)!r}: {first_line(error)}") from error
    if not tokenizer.is_fast:
        raise TextError(f"The tokenizer of {str(name)!r} has no fast version (tokenizer.json); convert it first.")
    special = set(tokenizer.all_special_tokens)
    if tokenizer.get_vocab().keys() <= special:  # as transformers makes of a config.json alone
        raise TextError(
            f"There is no tokenizer in {str(name)!r}: what is there makes one that knows only special tokens; "
            "add the tokenizer's own files (tokenizer.json, or vocab.txt and the like), or name another folder."
        )
    return tokenizer


def _brings_code(folder: Path) -> bool:
    configs = (name for name in ("config.json", "tokenizer_config.json") if (folder / name).is_file())
    return any("auto_map" in Folder(folder, TextError).json(name) for name in configs)


def check_vocabulary(size: int) -> None:
    """Whether a tokenizer of so many tokens can be made."""
    least = 256 + 2
    if size < least:
        raise TextError(f"vocabulary={size}: all bytes, an end of text and a mask are {least}; take {least} or more.")


def train_tokenizer(texts: Iterable[str], vocabulary: int) -> Any:
    """A byte-level BPE of at most so many tokens made for these texts, an end of text and a mask among them."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    check_vocabulary(vocabulary)
    end, mask, alphabet = "<|endoftext|>", "<|mask|>", pre_tokenizers.ByteLevel.alphabet()
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary, special_tokens=[end, mask], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=end, mask_token=mask, clean_up_tokenization_spaces=False
    )


def end_of_text(tokenizer: Any) -> int:
    """The id that follows every document."""
    for token in (tokenizer.eos_token_id, tokenizer.sep_token_id):
        if token is not None:
            return int(token)
    raise TextError("The tokenizer has neither an end-of-text (eos) nor a separator (sep) token; give it one.")


def end_mark(tokenizer: Any) -> str | None:
    """How the end of a document reads in text; None where the tokenizer has no such token."""
    marks = (tokenizer.eos_token, tokenizer.sep_token)
    return next((mark for mark in marks if mark is not None), None)


def vocabulary_size(tokenizer: Any) -> int:
    """One more than the largest id: what a model's embedding needs, holes included."""
    return max(tokenizer.get_vocab().values()) + 1


PROBE = """The 12,345 café-goers of 1984 (MÜNCHEN) can't  say: "naïve\u00a0ﬁn — don’t!"\r\n
\tdef f(x_1, *args) -> int:\n        return x**2 != 3.14e-10  # why?\n
Ещё раз: 日本語の文, 한국어, हिन्दी, العربية 😀👩‍🔬 e\u0301 Å \u200b\x00 <b>&amp;</b> http://a.b/c?d=e_f%20g """
"""What tokenizers differ in: spaces, cases, digits, accents, scripts, code."""


def fingerprint(tokenizer: Any) -> str:
    """The sha256 of what decides how text becomes ids: the pieces, and how a text that is full of traps is cut. What else a
    tokenizer's file says is not taken, for two versions of transformers read the same GGUF file into different files that cut
    every text alike. Special tokens, padding and truncation do not count: documents are read as text throughout, a tokenizer
    that was given a mask token still cuts them as before."""
    from tokenizers import Tokenizer

    state = json.loads(tokenizer.backend_tokenizer.to_str())
    plain = [token for token in state["added_tokens"] if not token["special"]]
    bare = Tokenizer.from_str(json.dumps(state | {"added_tokens": plain, "truncation": None, "padding": None}))
    parts = {part: state["model"].get(part) for part in ("type", "vocab", "merges")}
    parts |= {"added_tokens": plain, "probe": bare.encode(PROBE, add_special_tokens=False).ids}
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def with_mask(tokenizer: Any) -> Any:
    """The tokenizer, given a mask token as its last id if it has none."""
    if tokenizer.mask_token_id is None:
        tokenizer.add_special_tokens({"mask_token": "<|mask|>"})
    return tokenizer
