"""The folder of tokens: what is wrong with it is named, and nothing wrong is read."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from texts import essays, write_lines

from prism.data import shards
from prism.data.shards import Corpus, CorpusError, CorpusWriter, Recipe, Stream
from prism.data.text import Files, file_sha256, fingerprint, load_tokenizer
from prism.data.tokenizing import tokenize


@pytest.fixture(scope="module")
def made(tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("made")
    source = Files((write_lines(root / "a.jsonl", essays(60)),))
    tokenize(source, tokenizer, root / "tokens", validation=0.2, shard_tokens=500)
    return root / "tokens"


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    return shutil.copytree(made, tmp_path / "tokens")


def rewrite(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def test_the_manifest_says_what_there_is(folder: Path, tokenizer: Any) -> None:
    content = json.loads((folder / "manifest.json").read_text())
    assert content["recipe"]["tokenizer"] == fingerprint(tokenizer)
    assert content["recipe"]["source"]["files"][0]["name"] == "a.jsonl"
    assert (content["recipe"]["vocab_size"], content["dtype"]) == (320, "uint16")
    assert sum(split["documents"] for split in content["splits"].values()) == 60
    for split in content["splits"].values():
        assert sum(shard["tokens"] for shard in split["shards"]) == split["tokens"]
        assert {shard["tokens"] for shard in split["shards"][:-1]} <= {500}
    assert len(content["splits"]["train"]["shards"]) > 2
    assert {path.name for path in folder.iterdir()} == {
        "manifest.json",
        "tokenizer",
        *(shard["name"] for split in content["splits"].values() for shard in split["shards"]),
    }


BREAK: dict[str, tuple[Callable[[Path], object], str]] = {
    "cut short": (lambda f: (f / "train-00001.bin").write_bytes(b"12"), "train-00001.bin has 2 bytes instead of 1,000"),
    "missing": (lambda f: (f / "train-00001.bin").unlink(), "train-00001.bin is missing"),
    "stranger": (lambda f: (f / "train-00099.bin").write_bytes(b"12"), "train-00099.bin is not in manifest.json"),
    "no manifest": (lambda f: (f / "manifest.json").unlink(), "has no manifest.json"),
    "half a manifest": (lambda f: (f / "manifest.json").write_text("{"), "manifest.json is damaged"),
    "a list": (lambda f: (f / "manifest.json").write_text("[]"), "must hold a JSON object"),
    "foreign": (lambda f: (f / "manifest.json").write_text("{}"), "is not of prism tokenize"),
    "older": (lambda f: rewrite(f / "manifest.json", lambda m: m.update(version=2)), "has version 2, known here is 3"),
    "edited": (
        lambda f: rewrite(f / "manifest.json", lambda m: m["recipe"].update(end_of_text=7)),
        "manifest.json is damaged: its own sha256 differs",
    ),
    "unfinished": (lambda f: (f / "manifest.json").rename(f / "progress.json"), "is unfinished; repeat"),
}


@pytest.mark.parametrize("name", BREAK)
def test_what_is_wrong_is_named(folder: Path, name: str) -> None:
    Corpus.load(folder)
    do, said = BREAK[name]
    do(folder)
    with pytest.raises(CorpusError, match=re.escape(said)) as told:
        Corpus.load(folder)
    assert "\n" not in str(told.value)
    assert str(folder) in str(told.value)


def flip(shard: Path, place: int = 10) -> None:
    content = bytearray(shard.read_bytes())
    content[place] ^= 1
    shard.write_bytes(content)


@pytest.mark.parametrize("seen", [False, True])
def test_changed_bytes_are_found(folder: Path, seen: bool) -> None:
    if seen:
        Corpus.load(folder)
    flip(folder / "validation-00000.bin")
    for _ in range(2):
        with pytest.raises(CorpusError, match=r"validation-00000\.bin is damaged or of another corpus: its sha256"):
            Corpus.load(folder)


def test_a_shard_of_another_corpus_is_found(folder: Path) -> None:
    """Of the right size, and as old as the one it replaces."""
    Corpus.load(folder)
    shutil.copy2(folder / "train-00001.bin", folder / "train-00000.bin")
    with pytest.raises(CorpusError, match=r"train-00000\.bin is damaged or of another corpus"):
        Corpus.load(folder)


def test_files_are_read_once(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By all processes together, in a folder nobody may write to; without a place to remember it, by each."""
    read: list[str] = []

    def counted(path: Path) -> str:
        read.append(path.name)
        return file_sha256(path)

    monkeypatch.setattr(shards, "file_sha256", counted)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    before = set(folder.iterdir())
    Corpus.load(folder)
    shard_files = sorted(path.name for path in folder.glob("*.bin"))
    assert sorted(read) == shard_files
    Corpus.load(folder)
    assert len(read) == len(shard_files)
    (folder / "train-00001.bin").touch()
    Corpus.load(folder)
    assert read[len(shard_files) :] == ["train-00001.bin"]
    (folder / "train-00001.bin").touch()
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    Corpus.load(folder)
    Corpus.load(folder)
    assert len(read) == 3 * len(shard_files) + 1
    assert set(folder.iterdir()) == before


def test_another_tokenizer_is_refused(folder: Path, tokenizer: Any) -> None:
    corpus = Corpus.load(folder)
    corpus.require_tokenizer(tokenizer, "this")
    other = deepcopy(tokenizer)
    other.add_tokens("another")
    with pytest.raises(CorpusError, match=r"was made with another tokenizer .* than that of my-model"):
        corpus.require_tokenizer(other, "that of my-model")


def test_a_tokenizer_that_ends_documents_otherwise_is_refused(folder: Path, tokenizer_folder: Path) -> None:
    """Its pieces are the same, so its fingerprint is."""
    corpus, other = Corpus.load(folder), load_tokenizer(tokenizer_folder)
    corpus.require_tokenizer(other, "this")
    other.add_special_tokens({"eos_token": "<|im_end|>"})
    assert fingerprint(other) == corpus.recipe.tokenizer
    said = re.escape(
        "has the token 0 ('<|endoftext|>') after every document and that of my-model has 320 ('<|im_end|>')"
    )
    with pytest.raises(CorpusError, match=said):
        corpus.require_tokenizer(other, "that of my-model")
    other.add_special_tokens({"mask_token": "<|mask|>", "eos_token": "<|endoftext|>"})
    corpus.require_tokenizer(other, "this")


@pytest.mark.parametrize(("start", "length"), [(0, 5), (2, 3), (2, 4), (4, 10), (9, 1), (0, 10)])
def test_a_stream_runs_on_from_file_to_file(start: int, length: int) -> None:
    numbers = np.arange(10, dtype="<u2")
    stream = Stream((numbers[:4], numbers[4:8], numbers[8:]))
    into = np.empty(min(length, 10 - start), np.int64)
    stream.read(start, into)
    assert len(stream) == 10
    assert into.tolist() == list(range(start, start + len(into)))


def recipe(vocab_size: int = 320) -> Recipe:
    return Recipe({}, "", vocab_size, end_of_text=0, validation=0.0, shard_tokens=4)


@pytest.mark.parametrize(("vocab_size", "itemsize"), [(320, 2), (65536, 2), (65537, 4)])
def test_ids_are_as_wide_as_they_must_be(tmp_path: Path, vocab_size: int, itemsize: int) -> None:
    writer = CorpusWriter(tmp_path, recipe(vocab_size))
    writer.append("train", [(1, np.array([1, 2, vocab_size - 1], np.uint32)), (2, np.array([5, 0], np.uint32))])
    corpus = writer.finish()
    assert (tmp_path / "train-00000.bin").stat().st_size == 4 * itemsize
    assert [file.tolist() for file in corpus.train.files] == [[1, 2, vocab_size - 1, 5], [0]]
    assert len(corpus.validation) == 0


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(CorpusError, match="not empty"):
        CorpusWriter(tmp_path, recipe())
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_file_shorter_than_progress_says(tmp_path: Path) -> None:
    writer = CorpusWriter(tmp_path, recipe())
    writer.append("train", [(1, np.array([1, 2, 0], np.uint32))])
    writer.commit()
    (tmp_path / ".train-00000.bin").write_bytes(b"1")
    with pytest.raises(CorpusError, match=r"shorter than progress\.json says"):
        CorpusWriter(tmp_path, recipe())


def test_there_is_no_manifest_of_files_that_are_not_whole(tmp_path: Path) -> None:
    writer = CorpusWriter(tmp_path, recipe())
    writer.append("train", [(1, np.array([1, 2, 3, 0], np.uint32))])
    writer.commit()
    flip(tmp_path / "train-00000.bin", 0)
    with pytest.raises(CorpusError, match=r"train-00000\.bin is damaged"):
        writer.finish()
    assert not (tmp_path / "manifest.json").exists()


def test_a_folder_begun_by_another_rule_is_not_gone_on_with(tmp_path: Path) -> None:
    CorpusWriter(tmp_path, recipe()).commit()
    rewrite(tmp_path / "progress.json", lambda state: state.pop("version"))
    with pytest.raises(CorpusError, match="begun by another version of prism tokenize"):
        CorpusWriter(tmp_path, recipe())
