from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from texts import write_llama2c_tokenizer

from prism.data.llama2c import BYTES, END, START, Llama2c
from prism.data.text import TextError

MERGES = [" ", "o", "n", "c", "e", "ï", "on", "ce", " o", "once", " on", " once", "ne"]
"""The later the better: as in llama2.c, the score decides, not the length."""


def test_merged_by_score_and_read_back(tmp_path: Path) -> None:
    found = Llama2c.load(write_llama2c_tokenizer(tmp_path / "tokenizer.bin", MERGES))
    assert len(found) == BYTES + 256 + len(MERGES)
    own = {piece: BYTES + 256 + number for number, piece in enumerate(MERGES)}
    assert found.read("once") == [START, own[" once"]]
    for text in ("once", "once once", "naïve 猫🙂", "", " twice  "):
        assert found.text(found.read(text)) == text
    assert found.pieces(found.prompt("猫"))[-3:] == ["", "", "猫"]


def test_the_best_merge_comes_first(tmp_path: Path) -> None:
    """n + e has the best score here, so that nothing is left for " on"."""
    found = Llama2c.load(write_llama2c_tokenizer(tmp_path / "t.bin", [" ", "o", "n", "e", "on", " on", "ne"]))
    assert [found.text([START, token]) for token in found.prompt("one")] == ["", "o", "ne"]


def test_bytes_are_bytes_however_they_were_exported(tmp_path: Path) -> None:
    found = Llama2c.load(write_llama2c_tokenizer(tmp_path / "t.bin", MERGES, bytes_as="x"))
    assert found.text([START, BYTES + 0xC3, BYTES + 0xAF]) == "ï"


def test_several_texts_a_mask_and_broken_bytes(tmp_path: Path) -> None:
    found = Llama2c.load(write_llama2c_tokenizer(tmp_path / "t.bin", MERGES))
    once = found.read("once")
    assert found.text([*once, *once]) == "once\nonce"
    assert found.text([START, len(found)]) == "<mask>"
    assert found.text([START, BYTES + 0xE7]) == "\ufffd"


def test_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TextError, match="cannot be read"):
        Llama2c.load(tmp_path / "absent.bin")
    whole = write_llama2c_tokenizer(tmp_path / "t.bin", MERGES).read_bytes()
    for content, complaint in ((whole[:-1], "cut short"), (whole[:300], "cut short"), (whole[:4], "0 tokens")):
        (tmp_path / "t.bin").write_bytes(content)
        with pytest.raises(TextError, match=complaint):
            Llama2c.load(tmp_path / "t.bin")


def test_documents_are_those_that_begin_and_end_in_a_row(tmp_path: Path) -> None:
    found = Llama2c.load(write_llama2c_tokenizer(tmp_path / "t.bin", MERGES))
    once, half = found.read("once"), [START, BYTES + 0xC3]
    rows = [[*once, *found.read("one"), END, START], [*half, *once, START, START], [*once, BYTES, BYTES, BYTES, BYTES]]
    width = max(map(len, rows))
    rows = [row + [BYTES + ord("x")] * (width - len(row)) for row in rows]
    assert list(found.documents(np.array(rows))) == ["once", "one", "", "once"]
