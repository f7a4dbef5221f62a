"""Run records and the files they go to."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from torch import nn

import prism
from prism.evaluation.record import Stopwatch, plain, write_json


def test_record_names_what_ran() -> None:
    record = Stopwatch().record("test", {"k": 4}, seed=7, model=nn.Linear(2, 3), name="linear")
    assert record.model == {"parameters": 9, "name": "linear"}
    assert record.seed == 7
    assert record.dtype == "float32"
    assert record.versions["torch"]
    assert Stopwatch().record("test", {}, seed=7).dtype is None


def test_parts_are_named_by_class() -> None:
    policy = prism.Pair(prism.Counted(prism.Margin()), prism.LowQuality(prism.Fixed(2)))
    found = plain(policy)
    assert found["unmasker"]["order"] == {"class": "Margin"}
    assert found["remasker"]["amount"] == {"class": "Fixed", "k": 2}
    json.dumps(found)


def test_half_a_character_is_no_reason_to_lose_a_result(tmp_path: Path) -> None:
    """A program may raise ValueError(chr(0xDC80)); no UTF-8 says that, but JSON does."""
    content = {"detail": "\udc80 \\\ud800", "page": "é"}
    write_json(tmp_path / "out.json", content)
    assert json.loads((tmp_path / "out.json").read_text(encoding="utf-8")) == content


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    write_json(path, {"a": 1})
    with pytest.raises(TypeError):
        write_json(path, {"a": object()})
    assert json.loads(path.read_text()) == {"a": 1}
    assert list(tmp_path.iterdir()) == [path]
