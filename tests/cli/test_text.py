"""A masked language model of transformers with its tokenizer, from the command line: fine-tune, score, sample."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertForMaskedLM, BertTokenizer

from prism.cli import main

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = [*SPECIAL, "the", "a", "cat", "dog", "sat", "ran", "on", "mat", "table", "##s", "."]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bert")
    (path / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    BertTokenizer.from_pretrained(path).save_pretrained(path)
    torch.manual_seed(0)
    size = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    BertForMaskedLM(BertConfig(vocab_size=len(WORDS), max_position_embeddings=32, **size)).save_pretrained(path)
    np.save(path / "rows.npy", np.random.default_rng(0).integers(5, len(WORDS), (40, 8)))
    return path


@pytest.mark.parametrize(
    "lora", [["--lora_rank", "2", "--lora_targets", '["query","value"]'], []], ids=["lora", "tuned"]
)
def test_text_model(folder: Path, tmp_path: Path, lora: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    tuned, out = tmp_path / "tuned", tmp_path / "out.json"
    fast = [
        "--data",
        str(folder / "rows.npy"),
        "--held_out",
        "8",
        "--batch",
        "4",
        "--steps",
        "2",
        "--head",
        "projection",
    ]
    assert main(["finetune", "--model", str(folder), "--output", str(tuned), *fast, *lora]) == 0

    assert main(["score", "--model", str(tuned), "--text", "the cats sat on the mat.", "--json", str(out)]) == 0
    scored = json.loads(out.read_text())["tokens"]
    assert "".join(token["text"] for token in scored).replace(" ", "") == "[CLS]thecatssatonthemat.[SEP]"
    assert all(0 <= token["quality"] <= 1 for token in scored)
    assert "mat" in capsys.readouterr().out

    words = ["sample", "--model", str(tuned), "--prompt", "the cat", "--length", "10", "--k", "1", "--steps", "6"]
    assert main([*words, "--json", str(out)]) == 0
    found = json.loads(out.read_text())
    assert len(found["tokens"][0]) == 10
    assert 4 not in found["tokens"][0]
    assert "the cat" in found["texts"][0]

    words = ["sample", "--model", str(tuned), "--prompt", "the [MASK] sat on [MASK] [MASK] .", "--policy", "vanilla"]
    assert main([*words, "--json", str(out)]) == 0
    filled = json.loads(out.read_text())["tokens"][0]
    the, sat, on, stop = (WORDS.index(word) for word in ("the", "sat", "on", "."))
    assert (filled[0], filled[2], filled[3], filled[6], len(filled)) == (the, sat, on, stop, 7)
    assert 4 not in filled
