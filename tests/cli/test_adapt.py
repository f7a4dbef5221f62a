"""A causal model of the hub becomes a masked diffusion model from the command line, and is used as one."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from test_llama import theirs
from texts import essays, write_lines, write_tokenizer

from prism.cli import main
from prism.data.text import load_tokenizer, vocabulary_size
from prism.models.hub import load_backbone
from prism.models.llama import Llama

FAST = ["--length", "16", "--held_out", "4", "--batch", "4", "--steps", "3", "--log_every", "1"]


def run(*words: str | Path) -> int:
    return main([str(word) for word in words])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`tokens`, `llama` and `qwen3` with a row for every token of the tokenizer, `padded` with some more."""
    path = tmp_path_factory.mktemp("adapt")
    lines = write_lines(path / "essays.jsonl", essays(60))
    tokenizer = load_tokenizer(write_tokenizer(path / "words"))
    size = vocabulary_size(tokenizer)
    for name, kind, rows in (("llama", "llama", size), ("padded", "llama", size + 8), ("qwen3", "qwen3", size)):
        theirs(kind, vocab_size=rows, tie_word_embeddings=name == "padded").save_pretrained(path / name)
        tokenizer.save_pretrained(path / name)
    words = ["tokenize", "--input", lines, "--tokenizer", path / "words", "--output", path / "tokens"]
    assert run(*words, "--workers", "1", "--validation", "0.3") == 0
    return path


@pytest.mark.parametrize(
    ("name", "shifted", "widen"),
    [("llama", "true", "2"), ("llama", "false", "0"), ("padded", "true", "3"), ("qwen3", "true", "2")],
)
def test_adapted_finetuned_and_sampled(folder: Path, tmp_path: Path, name: str, shifted: str, widen: str) -> None:
    base, tuned, out = tmp_path / "base", tmp_path / "tuned", tmp_path / "out.json"
    words = ["adapt", "--model", folder / name, "--data", folder / "tokens", "--output", base, *FAST]
    words += ["--widen", widen, "--shifted", shifted]
    assert run(*words) == 0
    tokenizer = load_tokenizer(base)
    model = load_backbone(base / "backbone")
    assert isinstance(model, Llama)
    assert model.config.shifted == (shifted == "true")
    assert model.config.length == 16
    assert model.facts.mask_id == tokenizer.mask_token_id == vocabulary_size(tokenizer) - 1
    rows = vocabulary_size(tokenizer) + (7 if name == "padded" else 0)
    assert model.facts.vocab_size == rows
    assert model.facts.suppressed == tuple(range(vocabulary_size(tokenizer), rows))

    assert run("sample", "--model", base, "--policy", "vanilla", "--steps", "4", "--json", out) == 0
    found = json.loads(out.read_text())["tokens"][0]
    assert len(found) == 16
    assert max(found) < model.facts.mask_id

    again = ["finetune", "--model", base, "--data", folder / "tokens", "--output", tuned, "--head", "projection", *FAST]
    assert run(*again) == 0
    assert run("sample", "--model", tuned, "--k", "1", "--steps", "6", "--json", out) == 0


def test_resumed_only_as_it_was_begun(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["adapt", "--model", folder / "llama", "--data", folder / "tokens", *FAST, "--checkpoint_every", "1"]
    words += ["--widen", "2"]
    assert run(*words, "--output", tmp_path / "once") == 0
    assert run(*words, "--output", tmp_path / "twice") == 0
    checkpoints = tmp_path / "twice" / "training" / "checkpoints"
    (checkpoints / "step-00000003").rename(tmp_path / "aside")  # as if it had been killed after the second step
    assert run(*words, "--output", tmp_path / "twice") == 2
    assert run(*words, "--output", tmp_path / "twice", "--resume", "true", "--widen", "1") == 2
    assert "was begun with widen=2, not 1" in capsys.readouterr().err
    assert run(*words, "--output", tmp_path / "twice", "--resume", "true", "--shifted", "false") == 2
    assert run(*words, "--output", tmp_path / "twice", "--resume", "true") == 0
    one, two = (load_backbone(tmp_path / name / "backbone").state_dict() for name in ("once", "twice"))
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_on_ids(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "rows.npy", np.tile(np.arange(8), (40, 2)))
    np.save(tmp_path / "large.npy", np.full((40, 16), 4000))
    words = ["adapt", "--model", folder / "llama", *FAST, "--output", tmp_path / "out"]
    assert run(*words, "--data", tmp_path / "large.npy") == 2
    assert "has token ids up to 4000; the model knows 0.." in capsys.readouterr().err
    assert run(*words, "--data", tmp_path / "rows.npy") == 0
    assert run("sample", "--model", tmp_path / "out", "--policy", "vanilla", "--length", "5") == 0


def test_what_cannot_be_adapted(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    theirs("llama").save_pretrained(tmp_path / "small")
    theirs("mistral", sliding_window=15).save_pretrained(tmp_path / "mistral")
    text = ["--data", folder / "tokens"]
    lines = (
        ([*text, "--model", folder / "llama", "--widen", "4"], "--widen 4"),
        ([*text, "--model", folder / "llama", "--widen", "-1"], "--widen -1"),
        ([*text, "--model", tmp_path / "small"], "leaves a gap after the 30 tokens"),
        ([*text, "--model", tmp_path / "mistral"], "at most 15 (--length"),
        ([*text, "--model", tmp_path / "absent.gguf"], "absent.gguf"),
        (["--data", "sudoku", "--model", folder / "llama"], "sudoku: no such file; expected a .npy array"),
        (["--model", folder / "llama"], "data"),
    )
    for words, complaint in lines:
        assert run("adapt", *words, *FAST, "--output", tmp_path / "out") == 2
        said = capsys.readouterr().err
        assert complaint in said
        assert "(a bug?" not in said
        assert not (tmp_path / "out").exists()
