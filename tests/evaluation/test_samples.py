"""Samples kept in a file: interrupted, resumed, refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from stand_ins import Mixing, tiny_dit

import prism
from prism.evaluation.samples import SampleFile, Written, weights_digest, write_samples
from prism.state import State, start

SETTINGS = {"seed": 3, "policy": "vanilla", "nucleus": None}


def blank(count: int) -> State:
    return start(torch.zeros(count, 6, dtype=torch.long), 0)


def write(file: SampleFile | None, samples: int, batch: int = 4, **options: Any) -> list[Written]:
    prepared = prism.Prepared(Mixing(), prism.Pair(prism.Counted()), steps=3)
    return write_samples(prepared, blank, str, samples=samples, seed=3, batch=batch, file=file, **options)


def without_time(rows: list[Written]) -> list[tuple[Any, ...]]:
    return [(row.row, row.text, row.tokens, row.forwards, row.remasks, row.flipflops) for row in rows]


def test_a_file_grows_and_is_the_same_whatever_the_batch_and_the_interruptions(tmp_path: Path) -> None:
    heard: list[int] = []
    whole = write(None, 10, done=heard.append)
    assert heard == [4, 8, 10]
    assert [row.row for row in whole] == list(range(10))
    assert len({row.text for row in whole}) > 5
    assert without_time(write(None, 10, batch=3)) == without_time(whole)

    file = SampleFile(tmp_path / "s.jsonl", SETTINGS)
    write(file, 5)
    with file.path.open("a") as unfinished:
        unfinished.write('{"row": 5, "text": "half a li')
    assert without_time(write(SampleFile(file.path, SETTINGS), 10)) == without_time(whole)
    lines = [json.loads(line) for line in file.path.read_text().splitlines()]
    assert [line["tokens"] for line in lines] == [row.tokens for row in whole]
    assert without_time(write(file, 7)) == without_time(whole[:7])
    assert len(file.path.read_text().splitlines()) == 10  # what there is beyond is kept


def test_what_was_made_before_an_interruption_is_there(tmp_path: Path) -> None:
    def interrupt(count: int) -> None:
        if count == 8:
            raise KeyboardInterrupt

    file = SampleFile(tmp_path / "s.jsonl", SETTINGS)
    with pytest.raises(KeyboardInterrupt):
        write(file, 10, done=interrupt)
    before = file.path.read_bytes()
    assert before.count(b"\n") == 8
    heard: list[int] = []
    assert without_time(write(file, 10, done=heard.append)) == without_time(write(None, 10))
    assert heard == [10]
    assert file.path.read_bytes().startswith(before)


def test_files_of_others_are_refused(tmp_path: Path) -> None:
    file = SampleFile(tmp_path / "s.jsonl", SETTINGS)
    write(file, 4)
    with pytest.raises(ValueError, match=r"begun with policy=vanilla, not prism; go on with the settings it has"):
        write(SampleFile(file.path, SETTINGS | {"policy": "prism"}), 4)
    with pytest.raises(ValueError, match="begun with k=None, not 4"):
        write(SampleFile(file.path, SETTINGS | {"k": 4}), 4)
    file.path.write_text(file.path.read_text().replace('"row": 2', '"row": 7'))
    with pytest.raises(ValueError, match="line 3 is sample 7"):
        write(file, 4)
    file.path.write_text("{}\n")
    with pytest.raises(ValueError, match="line 1 is no sample"):
        write(file, 4)
    (tmp_path / "mine.jsonl").write_text('{"text": "precious"}\n')
    with pytest.raises(ValueError, match="it is another file"):
        write(SampleFile(tmp_path / "mine.jsonl", SETTINGS), 4)
    assert (tmp_path / "mine.jsonl").read_text() == '{"text": "precious"}\n'


def test_a_run_that_made_nothing_is_not_in_the_way(tmp_path: Path) -> None:
    assert SampleFile(tmp_path / "s.jsonl", SETTINGS | {"policy": "prism"}).begin() == []
    assert len(write(SampleFile(tmp_path / "s.jsonl", SETTINGS), 4)) == 4
    with pytest.raises(ValueError, match="begun with policy=vanilla, not prism"):
        write(SampleFile(tmp_path / "s.jsonl", SETTINGS | {"policy": "prism"}), 4)


def test_two_processes_do_not_write_one_file(tmp_path: Path) -> None:
    """The second is told so before it makes anything, the first goes on, and nothing is left of the lock."""
    path = tmp_path / "s.jsonl"

    def intrude(count: int) -> None:
        with pytest.raises(
            ValueError, match=r"Another process is writing .*s\.jsonl; wait for it and repeat this, or choose"
        ):
            write(SampleFile(path, SETTINGS), 10)

    assert without_time(write(SampleFile(path, SETTINGS), 10, done=intrude)) == without_time(write(None, 10))
    assert [json.loads(line)["row"] for line in path.read_text().splitlines()] == list(range(10))
    assert sorted(file.name for file in tmp_path.iterdir()) == ["s.jsonl", "s.jsonl.settings.json"]


def test_a_digest_tells_a_model_after_more_training() -> None:
    model, same = tiny_dit(), tiny_dit()
    assert weights_digest(model) == weights_digest(same)
    with torch.no_grad():
        next(same.parameters()).add_(1e-4)
    assert weights_digest(model) != weights_digest(same)
