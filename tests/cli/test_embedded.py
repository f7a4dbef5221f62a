"""Commands without --model: which of the embedded models they take, and with which settings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from texts import essays

from prism.cli import main
from prism.cli.command import SUDOKU, embedded_for
from prism.data.text import train_tokenizer
from prism.models.attach import attach
from prism.models.dit import DiT, DiTConfig
from prism.models.heads import FinalLayerConfig
from prism.models.hub import save_model

PUZZLE = "53..7....6..195....98....6.8...6...34..8.3..17...2...6.6....28....419..5....8..79"


@pytest.fixture
def stories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model that reads words, in the place of the embedded one."""
    place = tmp_path / "assets" / "stories"
    tokenizer = train_tokenizer(essays(100), 300)
    torch.manual_seed(0)
    config = DiTConfig(300, tokenizer.mask_token_id, 24, hidden_size=16, blocks=1, heads=2, cond_size=8, dropout=0.0)
    save_model(attach(DiT(config), FinalLayerConfig(16, cond_size=8), tune_backbone=True), place)
    tokenizer.save_pretrained(place)
    place.with_suffix(".yaml").write_text("steps: 7\nnucleus: 0.5\n")
    monkeypatch.setattr("prism.cli.command.STORIES", place)
    return place


def result(tmp_path: Path, *words: str) -> dict[str, Any]:
    out = tmp_path / "out.json"
    assert main([*words, "--json", str(out)]) == 0
    return json.loads(out.read_text())


def test_a_story_with_no_arguments(stories: Path, tmp_path: Path) -> None:
    found = result(tmp_path, "sample")
    assert (found["record"]["model"]["name"], found["nfe"]) == ("embedded stories", 7)
    assert found["record"]["settings"]["nucleus"] == 0.5
    assert len(found["tokens"][0]) <= 24
    assert len(found["quality"][0]) == len(found["tokens"][0])


def test_what_is_given_stands_above_the_settings_of_the_model(stories: Path, tmp_path: Path) -> None:
    found = result(tmp_path, "sample", "--prompt", "the cat", "--steps", "3", "--policy", "vanilla", "--eos", "keep")
    assert found["texts"][0].startswith("the cat")
    assert (found["nfe"], found["record"]["settings"]["nucleus"]) == (3, 0.5)
    assert len(found["tokens"][0]) == 24
    named = result(tmp_path, "sample", "--model", str(stories), "--prompt", "the cat", "--new_tokens", "5", "--k", "1")
    assert (named["nfe"], named["record"]["settings"]["nucleus"]) == (5, 1.0)  # a model somebody names has none


def test_a_board_is_for_sudoku(stories: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = result(tmp_path, "sample", "--prompt", PUZZLE, "--steps", "5")
    assert found["record"]["model"]["name"] == "embedded sudoku"
    assert len(found["tokens"][0]) == 89
    assert found["record"]["settings"]["nucleus"] == 1.0
    scored = result(tmp_path, "score", "--text", PUZZLE)
    assert scored["record"]["model"]["name"] == "embedded sudoku"
    (tmp_path / "board.txt").write_text(PUZZLE + "\n")
    assert len(result(tmp_path, "score", "--file", str(tmp_path / "board.txt"))["tokens"]) == 89
    for words in (["sample", "--prompt", PUZZLE[:-1]], ["score", "--text", PUZZLE[:-1]]):
        assert main(words) == 2
        assert "80 characters; expected 81" in capsys.readouterr().err
    for words in (
        ["sample", "--prompt", "2026"],
        ["score", "--text", "2026"],
        ["sample", "--prompt", "7", "--length", "9"],
    ):
        assert main(words) == 2
        assert "to have them read as text, name a model of text with --model" in capsys.readouterr().err
        assert main([*words, "--model", str(SUDOKU)]) == 2
        assert "read as text" not in capsys.readouterr().err


def test_words_are_scored(stories: Path, tmp_path: Path) -> None:
    found = result(tmp_path, "score", "--text", "the cat sat on the mat .")
    assert found["record"]["model"]["name"] == "embedded stories"
    assert "".join(token["text"] for token in found["tokens"]) == "the cat sat on the mat ."
    assert all(0 < token["quality"] < 1 for token in found["tokens"])


def test_shorter_than_the_model_learnt_is_said(
    stories: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    short = result(tmp_path, "score", "--text", "the cat")["tokens"]
    assert f"{len(short)} tokens are few for a model of sequences of 24" in capsys.readouterr().out
    longer = result(tmp_path, "score", "--text", "the cat sat on the mat . the cat sat on the mat .")["tokens"]
    assert len(longer) >= 12
    assert "are few" not in capsys.readouterr().out


def test_boards_are_told_from_words(stories: Path) -> None:
    assert embedded_for("") == embedded_for("Once upon a time") == embedded_for("3 little pigs") == stories
    assert embedded_for(",".join("0" * 81)) == embedded_for(PUZZLE) == embedded_for(f" {'.' * 81}\n") == SUDOKU


def test_sudoku_commands_keep_their_model(stories: Path, tmp_path: Path) -> None:
    found = result(tmp_path, "demo", "--puzzle", PUZZLE, "--tally", "0", "--steps", "3", "--pace", "0")
    assert found["boards"] == 1
    assert result(tmp_path, "evaluate", "sudoku", "--limit", "1", "--steps", "3")["boards"] == 1


def test_longer_than_the_model_knows_is_said(stories: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result(tmp_path, "sample", "--length", "24", "--steps", "3")
    assert "trained for" not in capsys.readouterr().out
    result(tmp_path, "sample", "--length", "30", "--steps", "3")
    assert "30 tokens are more than the 24" in capsys.readouterr().out


def test_the_embedded_model_writes_a_story_and_its_end_is_not_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = result(tmp_path, "sample", "--steps", "32", "--seed", "1")
    shown = capsys.readouterr().out
    assert found["record"]["model"]["name"] == "embedded stories"
    assert found["ends"] == ["EOS"]
    assert found["texts"][0].endswith("<|endoftext|>")
    assert "<|endoftext|>" not in shown
    assert found["completions"][0].split()[-1] in shown
    words = found["completions"][0].lower().split()
    assert len({"a", "the", "and", "to", "was", "she", "he", "they"} & set(words)) >= 5
