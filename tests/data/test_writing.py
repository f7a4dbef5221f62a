from __future__ import annotations

import random
from itertools import pairwise

import pytest
from texts import essays

from prism.data.text import train_tokenizer
from prism.data.writing import Text


@pytest.fixture(scope="module")
def words() -> Text:
    return Text(train_tokenizer(essays(100), 300))


def test_the_pieces_of_a_text_are_the_text(words: Text) -> None:
    """A character of several tokens comes with the last of them."""
    for text in (*essays(20, seed=1), "naïve 日本 🙂.", ""):
        tokens = words.read(text)
        pieces = words.pieces(tokens)
        assert len(pieces) == len(tokens)
        assert "".join(pieces) == text
    assert words.pieces(words.read("日")) == ["", "", "日"]


def test_a_piece_is_what_a_token_adds_to_all_before(words: Text) -> None:
    """Though only a few of them are looked at."""
    draw = random.Random(0)
    for _ in range(20):
        tokens = [token for token in draw.choices(range(300), k=40) if words.tokenizer.decode([token]).isascii()]
        texts = [words.tokenizer.decode(tokens[:end]) for end in range(len(tokens) + 1)]
        assert words.pieces(tokens) == [after.removeprefix(before) for before, after in pairwise(texts)]
