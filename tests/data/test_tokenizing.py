"""From documents to shards: nothing lost, nothing twice, nothing on both sides, and the same bytes however it went."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from texts import essays, write_lines

from prism.data import shards, tokenizing
from prism.data.shards import Corpus, CorpusError, Stream
from prism.data.text import Source, TextError
from prism.data.tokenizing import tokenize


@dataclass(frozen=True)
class Listed(Source):
    texts: tuple[str, ...]

    def documents(self, skip: int = 0) -> Iterator[str]:
        return iter(self.texts[skip:])

    def describe(self) -> dict[str, Any]:
        return {"listed": len(self.texts)}


def listed(*texts: str) -> Listed:
    return Listed(texts)


def texts_of(stream: Stream, tokenizer: Any) -> list[str]:
    """The documents back; the last one has its end, too."""
    if not len(stream):
        return []
    ids = np.concatenate(stream.files)
    assert ids[-1] == tokenizer.eos_token_id
    ends = np.flatnonzero(ids == tokenizer.eos_token_id)
    return [tokenizer.decode(piece[:-1].tolist()) for piece in np.split(ids, ends[:-1] + 1)]


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# ── what comes out ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_every_document_comes_back_in_order(tokenizer: Any, tmp_path: Path) -> None:
    corpus = tokenize(listed(*essays(80)), tokenizer, tmp_path / "all", validation=0.0, shard_tokens=333)
    assert texts_of(corpus.train, tokenizer) == essays(80)
    assert len(corpus.validation) == 0
    split = tokenize(listed(*essays(80)), tokenizer, tmp_path / "split", validation=0.3, shard_tokens=333)
    train, validation = texts_of(split.train, tokenizer), texts_of(split.validation, tokenizer)
    assert 8 < len(validation) < 40
    assert [text for text in essays(80) if text not in set(validation)] == train
    assert [text for text in essays(80) if text not in set(train)] == validation


def test_the_same_text_is_never_on_both_sides(tokenizer: Any, tmp_path: Path) -> None:
    """In no run, whatever else it reads; and a larger share only adds to the held-out documents."""
    folders = iter(range(9))

    def held_out(share: float, *texts: str) -> set[str]:
        corpus = tokenize(listed(*texts), tokenizer, tmp_path / str(next(folders)), validation=share)
        return set(texts_of(corpus.validation, tokenizer))

    whole = held_out(0.3, *essays(80))
    assert held_out(0.3, *reversed(essays(80)), "something else") - {"something else"} == whole
    assert held_out(0.3, *essays(40)) == whole & set(essays(40))
    assert held_out(0.1, *essays(80)) < whole < held_out(0.6, *essays(80))


def test_nearly_the_same_text_is_not_on_both_sides(tokenizer: Any, tmp_path: Path) -> None:
    """Case and white space do not count, in one run or in two."""
    texts = essays(50)
    changed = [text.replace(" ", " \n ").upper() + " " for text in texts]
    one = tokenize(listed(*texts), tokenizer, tmp_path / "one", validation=0.5)
    both = tokenize(listed(*texts, *changed), tokenizer, tmp_path / "both", validation=0.5)
    assert texts_of(both.train, tokenizer) == texts_of(one.train, tokenizer)
    assert texts_of(both.validation, tokenizer) == texts_of(one.validation, tokenizer)
    other = tokenize(listed(*changed), tokenizer, tmp_path / "other", validation=0.5)
    held_out = {text.split()[0] for text in texts_of(other.validation, tokenizer)}  # an essay begins with its number
    assert held_out == {text.split()[0] for text in texts_of(one.validation, tokenizer)}
    assert 10 < len(held_out) < 40


def test_duplicates_and_empty_documents_are_dropped(tokenizer: Any, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(tokenizing, "CHUNK", 40)  # so that they lie in different chunks
    texts = [*essays(20), "", *essays(30), " \n", *essays(5), "cat", "cat ", "cat", "\n CAT", "c at"]
    seen = []
    tokenize(
        listed(*texts),
        tokenizer,
        tmp_path / "tokens",
        validation=0.2,
        report=lambda w: seen.append((w.duplicates, w.empty, w.kept, w.taken)),
    )
    corpus = Corpus.load(tmp_path / "tokens")
    kept = texts_of(corpus.train, tokenizer) + texts_of(corpus.validation, tokenizer)
    assert sorted(kept) == sorted([*essays(30), "cat", "c at"])
    assert seen[-1] == (28, 2, 32, len(texts))


def test_special_tokens_in_a_text_are_text(tokenizer: Any, tmp_path: Path) -> None:
    text = "before <|endoftext|> after"
    corpus = tokenize(listed(text), tokenizer, tmp_path / "tokens", validation=0.0)
    ids = np.concatenate(corpus.train.files)
    assert (ids == tokenizer.eos_token_id).sum() == 1
    assert tokenizer.decode(ids[:-1].tolist()) == text


def test_half_a_character_does_no_harm(tokenizer: Any, tmp_path: Path) -> None:
    corpus = tokenize(listed("cat \ud83d dog"), tokenizer, tmp_path / "tokens", validation=0.0)
    assert texts_of(corpus.train, tokenizer) == ["cat ? dog"]


@pytest.mark.parametrize("shard_tokens", [1, 7, 10_000])
def test_the_size_of_the_files_does_not_matter(tokenizer: Any, tmp_path: Path, shard_tokens: int) -> None:
    corpus = tokenize(listed(*essays(3)), tokenizer, tmp_path / "a", validation=0.0, shard_tokens=shard_tokens)
    assert {len(file) for file in corpus.train.files[:-1]} <= {shard_tokens}
    assert texts_of(corpus.train, tokenizer) == essays(3)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"validation": 1.0}, "validation=1.0"),
        ({"validation": -0.1}, "validation=-0.1"),
        ({"shard_tokens": 0}, "shard_tokens=0"),
        ({"workers": 0}, "workers=0"),
    ],
)
def test_impossible_settings(tokenizer: Any, tmp_path: Path, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        tokenize(listed("cat"), tokenizer, tmp_path / "tokens", **options)
    assert not (tmp_path / "tokens").exists()


def test_nothing_to_tokenize(tokenizer: Any, tmp_path: Path) -> None:
    with pytest.raises(TextError, match="no document"):
        tokenize(listed(), tokenizer, tmp_path / "tokens")
    assert not (tmp_path / "tokens").exists()


def test_a_finished_folder_is_not_made_again_nor_overwritten(tokenizer: Any, tmp_path: Path) -> None:
    tokenize(listed(*essays(5)), tokenizer, tmp_path, shard_tokens=50)
    before = content(tmp_path)
    tokenize(listed(*essays(5)), tokenizer, tmp_path, shard_tokens=50)
    with pytest.raises(CorpusError, match="was begun with shard_tokens=50, not 51"):
        tokenize(listed(*essays(5)), tokenizer, tmp_path, shard_tokens=51)
    with pytest.raises(CorpusError, match="was begun with source="):
        tokenize(listed(*essays(6)), tokenizer, tmp_path, shard_tokens=50)
    assert content(tmp_path) == before


def test_text_that_comes_after_the_end_is_left_out(tokenizer: Any, tmp_path: Path, monkeypatch: Any) -> None:
    """A hub's dataset may grow between two runs; its last file, once closed, stays the last."""

    class Growing(Listed):
        def describe(self) -> dict[str, Any]:
            return {}

    def die(path: Path, content: Any) -> None:
        if path.name == "manifest.json":
            raise KeyboardInterrupt
        write(path, content)

    write = shards._write
    monkeypatch.setattr(shards, "_write", die)
    with pytest.raises(KeyboardInterrupt):
        tokenize(Growing(tuple(essays(5))), tokenizer, tmp_path, validation=0.0)
    monkeypatch.undo()
    corpus = tokenize(Growing(tuple(essays(9))), tokenizer, tmp_path, validation=0.0)
    assert texts_of(corpus.train, tokenizer) == essays(5)


def test_two_processes_do_not_write_one_folder(tokenizer: Any, tmp_path: Path) -> None:
    refused = []

    def intrude(writer: Any) -> None:
        with pytest.raises(
            ValueError, match=r"Another process is writing .*tokens; wait for it and repeat this, or choose"
        ):
            tokenize(listed(*essays(5)), tokenizer, tmp_path / "tokens")
        refused.append(writer.kept)

    corpus = tokenize(listed(*essays(5)), tokenizer, tmp_path / "tokens", validation=0.0, report=intrude)
    assert refused
    assert texts_of(corpus.train, tokenizer) == essays(5)
    assert not (tmp_path / "tokens" / ".lock").exists()


# ── processes and deaths ────────────────────────────────────────────────────────────────────────────────────────────

SCRIPT = """
import json, multiprocessing, os, signal, sys, time
from pathlib import Path

from prism.data import shards, tokenizing
from prism.data.text import Files, load_tokenizer


def run(name, workers=1):
    tokenizing.tokenize(source, tokenizer, out / name, validation=0.2, shard_tokens=150, workers=workers)


def killed(name, at, workers=1):
    # In a process of its own, which dies at that call of fsync: there is one between any two steps that matter.
    if child := os.fork():
        return os.waitpid(child, 0)[1] == signal.SIGKILL
    calls = iter(range(1, 10**6))

    def fsync(descriptor):
        if next(calls) == at:
            (out / f"{name}.json").write_text(json.dumps([p.pid for p in multiprocessing.active_children()]))
            os.kill(os.getpid(), signal.SIGKILL)

    os.fsync = fsync
    run(name, workers)
    os._exit(0)


def alive(process):
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


if __name__ == "__main__":
    out, lines, words = map(Path, sys.argv[1:])
    out.mkdir()
    os.fsync = lambda descriptor: None  # no machine dies here, only processes
    tokenizing.CHUNK, tokenizing.COMMIT = 400, 0.0
    source, tokenizer = Files((lines,)), load_tokenizer(words)

    assert killed("two", at=20, workers=2)
    orphans = json.loads((out / "two.json").read_text())
    assert len(orphans) == 2
    deadline = time.monotonic() + 10
    while (left := list(filter(alive, orphans))) and time.monotonic() < deadline:
        time.sleep(0.02)
    for process in left:
        os.kill(process, signal.SIGKILL)
    assert not left, "workers outlive their parent"
    run("two", workers=2)

    at = 1
    while killed(f"once-{at}", at):
        run(f"once-{at}")
        at += 2
    deaths = 0
    while killed("often", at=10 + deaths):
        deaths += 1
    run("whole")
    print(at, deaths)
"""


def test_deaths_and_processes_leave_no_trace(tokenizer_folder: Path, tmp_path: Path) -> None:
    lines = write_lines(tmp_path / "a.jsonl", [*essays(9), *essays(9, seed=1), *essays(14)])
    (tmp_path / "script.py").write_text(SCRIPT)
    out = tmp_path / "out"
    command = [sys.executable, str(tmp_path / "script.py"), str(out), str(lines), str(tokenizer_folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    at, deaths = map(int, done.stdout.split())
    assert at > 40
    assert deaths > 3
    whole = content(out / "whole")
    assert {"manifest.json", "train-00003.bin", "validation-00001.bin"} <= whole.keys()
    folders = [path for path in out.iterdir() if path.is_dir()]
    assert len(folders) == (at + 1) // 2 + 3
    for folder in folders:
        assert content(folder) == whole, folder.name
