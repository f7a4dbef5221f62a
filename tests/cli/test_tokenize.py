"""Text from the command line: tokenize, pretrain, fine-tune, sample."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from texts import essays, write_lines, write_tokenizer

from prism.cli import main
from prism.models.hub import load_backbone

SMALL = ["--hidden_size", "16", "--layers", "1", "--heads", "2"]
FAST = ["--length", "32", "--held_out", "4", "--batch", "4", "--steps", "3"]


def run(*words: str | Path) -> int:
    return main([str(word) for word in words])


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`words`, a tokenizer; `tokens`, made with it; `base`, a model trained on them."""
    path = tmp_path_factory.mktemp("text")
    write_tokenizer(path / "words")
    write_lines(path / "a.jsonl", essays(40))
    (path / "b.txt").write_text("the cat sat\n\non the mat\n")
    words = ["tokenize", "--input", path / "a.jsonl", path / "b.txt", "--tokenizer", path / "words", "--workers", "1"]
    options = ["--validation", "0.3", "--shard-tokens", "1000", "--separator", "", "--json", path / "tokenize.json"]
    assert run(*words, "--output", path / "tokens", *options) == 0
    assert run("pretrain", "--data", path / "tokens", "--output", path / "base", *SMALL, *FAST) == 0
    return path


def test_tokenize_counts(root: Path) -> None:
    found = json.loads((root / "tokenize.json").read_text())
    assert found["train"]["documents"] + found["validation"]["documents"] == 42
    assert found["record"]["settings"]["separator"] == ""
    manifest = json.loads((root / "tokens" / "manifest.json").read_text())
    assert [file["name"] for file in manifest["recipe"]["source"]["files"]] == ["a.jsonl", "b.txt"]
    assert manifest["splits"]["train"]["tokens"] == found["train"]["tokens"]


def test_the_model_knows_the_tokenizer_and_a_mask(root: Path, tmp_path: Path) -> None:
    facts = load_backbone(root / "base" / "backbone").facts
    assert (facts.vocab_size, facts.mask_id) == (321, 320)
    out = tmp_path / "s.json"
    prompt = ["--prompt", "the cat<|mask|> on<|mask|><|mask|>", "--policy", "vanilla", "--json", out]
    assert run("sample", "--model", root / "base", *prompt) == 0
    assert json.loads(out.read_text())["texts"][0].startswith("the cat")


def test_finetune_on_text(root: Path, tmp_path: Path) -> None:
    tuned = tmp_path / "tuned"
    assert run("finetune", "--model", root / "base", "--data", root / "tokens", "--output", tuned, *FAST) == 0
    assert run("score", "--model", tuned, "--text", "the cat sat", "--json", tmp_path / "s.json") == 0
    assert "".join(t["text"] for t in json.loads((tmp_path / "s.json").read_text())["tokens"]) == "the cat sat"


def test_resumed_training_sees_the_same_text(root: Path, tmp_path: Path) -> None:
    words = ["--data", root / "tokens", "--output", tmp_path / "run", *SMALL, *FAST, "--checkpoint_every", "1"]
    assert run("pretrain", *words, "--keep", "9") == 0
    last = tmp_path / "run" / "training" / "checkpoints" / "step-00000003"
    whole = (last / "weights.safetensors").read_bytes()
    for step in (2, 3):
        shutil.rmtree(last.with_name(f"step-{step:08}"))
    assert run("pretrain", *words, "--resume", "true") == 0
    assert (last / "weights.safetensors").read_bytes() == whole


def test_a_damaged_shard_is_named(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shard = shutil.copytree(root / "tokens", tmp_path / "tokens") / "train-00000.bin"
    shard.write_bytes(shard.read_bytes()[::-1])
    assert run("pretrain", "--data", tmp_path / "tokens", "--output", tmp_path / "run", *SMALL, *FAST) == 2
    assert f"{shard} is damaged or of another corpus" in capsys.readouterr().err


def another_tokenizer(root: Path, path: Path) -> None:
    merges = next((root / "words").glob("*merges.txt")).read_text().splitlines(keepends=True)
    (path / "words").mkdir()
    (path / "words" / "vocab.json").write_text(next((root / "words").glob("*vocab.json")).read_text())
    (path / "words" / "merges.txt").write_text("".join(merges[:-1]))


def test_foreign_text_is_refused(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    another_tokenizer(root, tmp_path)
    words = ["--input", root / "a.jsonl", "--tokenizer", tmp_path / "words", "--output", tmp_path / "tokens"]
    assert run("tokenize", *words, "--validation", "0.3", "--workers", "1") == 0
    capsys.readouterr()
    words = ["--data", tmp_path / "tokens", "--output", tmp_path / "run", *FAST]
    assert run("finetune", "--model", root / "base", *words) == 2
    assert "another tokenizer" in (said := capsys.readouterr().err)
    assert f"than that of {root / 'base'}" in said
    shutil.rmtree(tmp_path / "tokens" / "tokenizer")
    shutil.copytree(root / "tokens" / "tokenizer", tmp_path / "tokens" / "tokenizer")
    assert run("pretrain", *words, *SMALL) == 2
    assert "than the one beside it" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--length", "0"], "--length 0"),
        (["--length", "100000"], "0 sequences of --length 100000"),
        (["--held_out", "500"], "less than --held_out 500"),
        (["--vocab_size", "200"], "has 320 token ids; the model knows 0..199"),
        (["--vocab_size", "320"], "mask_id=320 is outside the vocabulary"),
    ],
)
def test_text_that_does_not_fit(
    root: Path, tmp_path: Path, words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("pretrain", "--data", root / "tokens", "--output", tmp_path / "run", *SMALL, *FAST, *words) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
