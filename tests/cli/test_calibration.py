"""prism evaluate calibration: what it asks, what it draws, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from texts import essays, write_lines, write_tokenizer

import prism
from prism.cli import calibration, main
from prism.cli.train import Finetune
from prism.data.shards import Corpus
from prism.data.text import end_of_text, load_tokenizer
from prism.data.windows import TextWindows
from prism.evaluation.calibration import Witness, detection
from prism.models.hub import load_model


def run(*words: str | Path) -> int:
    return main([str(word) for word in words])


def asked(models: Path, out: Path, *more: str | Path) -> Any:
    assert run("evaluate", "calibration", "--model", models / "words", "--samples", "6", "--json", out, *more) == 0
    return json.loads(out.read_text())


def test_the_questions_are_a_witnesss(models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = asked(models, tmp_path / "c.json", "--policy", "prism", "--k", "1", "--steps", "4", "--seed", "3")
    model = load_model(models / "words")
    witness = Witness(model)
    policy = prism.Pair(prism.Counted(prism.RandomOrder()), prism.LowQuality(prism.Fixed(1)))
    blank = prism.start(torch.full((6, 12), 6), 6)
    prism.generate(model, blank, policy, steps=4, noise=prism.Noise.rows(3, 6), watch=witness)
    seen = witness.judgements()
    run = found["runs"]["prism"]
    assert run["tokens"] == len(seen.quality) == 18  # of every row a token before each step but the first
    assert np.allclose(run["scatter"]["likelihood"], seen.likelihood, atol=1e-4)
    assert np.allclose(run["scatter"]["quality"], seen.quality, atol=1e-4)
    assert [sum(curve["count"]) for curve in run["by_fifth_filled"]] == [0, 6, 6, 6, 0]
    assert "detection" not in found
    told = capsys.readouterr().out
    assert "20–40 %" in told
    assert "80–100 %" not in told  # where nothing was asked nothing is told


def test_true_sequences_are_the_last_rows(models: Path, files: Path, tmp_path: Path) -> None:
    found = asked(models, tmp_path / "c.json", "--data", files / "rows.npy", "--draws", "3", "--steps", "3")
    assert found["detection"]["sequences"] == 6
    assert found["detection"]["tokens"] <= 18  # six rows, three each, fewer where fewer are masked
    assert set(found["detection"]["auroc"]) == {"quality", "own", "likelihood"}
    rows = np.load(files / "rows.npy")
    rows[:-6] = 0  # what stands before them does not matter
    np.save(tmp_path / "other.npy", rows)
    again = asked(models, tmp_path / "d.json", "--data", tmp_path / "other.npy", "--draws", "3", "--steps", "3")
    assert again["detection"] == found["detection"]


def test_sequences_longer_than_the_model_learnt_are_told_of(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for length, told in ((12, False), (13, True)):
        asked(models, tmp_path / "c.json", "--steps", "3", "--length", str(length))
        assert ("13 tokens are more than the 12 the model was trained for" in capsys.readouterr().out) is told


@pytest.mark.parametrize("drawn", [[], ["--data", "rows.npy"]], ids=["alone", "with true sequences"])
def test_drawn(models: Path, files: Path, tmp_path: Path, drawn: list[str]) -> None:
    more = [str(files / word) if word.endswith(".npy") else word for word in drawn]
    asked(models, tmp_path / "c.json", "--steps", "3", "--plot", tmp_path / "c.svg", *more)
    assert (tmp_path / "c.svg").read_text(encoding="utf-8").count('id="axes_') == 2 + bool(drawn)


def test_true_text_is_the_validation_part(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines, out = write_lines(tmp_path / "essays.jsonl", essays(80)), tmp_path / "c.json"
    tokens, base, tuned = tmp_path / "tokens", tmp_path / "base", tmp_path / "tuned"
    words = ["tokenize", "--input", lines, "--tokenizer", write_tokenizer(tmp_path / "words"), "--output", tokens]
    assert run(*words, "--workers", "1", "--validation", "0.4") == 0
    fast = ["--data", tokens, "--length", "16", "--held_out", "4", "--batch", "4", "--steps", "2", "--ends", "true"]
    assert run("pretrain", *fast, "--output", base, "--hidden_size", "16", "--layers", "1", "--heads", "2") == 0
    assert run("finetune", *fast, "--model", base, "--output", tuned) == 0
    words = ["evaluate", "calibration", "--model", tuned, "--samples", "3", "--steps", "3"]
    assert run(*words, "--data", tokens) == 2
    assert "less than the --held_out 256 of prism finetune and --samples 3" in capsys.readouterr().err
    for given in (["--held_out", "4"], ["--ends", "true"]):
        assert run(*words, *given) == 2
        assert f"{given[0]} is about a --data folder" in capsys.readouterr().err
    words += ["--data", tokens, "--held_out", "4"]
    assert run(*words, "--json", out) == 0
    assert json.loads(out.read_text())["detection"]["tokens"] > 0
    shown: list[torch.Tensor] = []
    asked_about = lambda model, batch, loss: shown.append(batch.tokens) or detection(model, batch, loss)  # noqa: E731
    monkeypatch.setattr(calibration, "detection", asked_about)
    end = end_of_text(load_tokenizer(tokens / "tokenizer"))
    for ends in (True, False):
        assert run(*words, "--ends", str(ends).lower()) == 0
        assert bool((shown[-1][:, [0, -1]] == end).all()) is ends
    windows = TextWindows(Corpus.load(tokens).validation, 16, end=end)
    fitted = windows.read(range(4))  # as prism finetune held them out
    everything = ["--samples", str(windows.count - 4), "--ends", "true"]
    capsys.readouterr()
    assert run(*words, *everything) == 0
    assert len(shown[-1]) == windows.count - 4
    assert not any((row == shown[-1]).all(1).any() for row in fitted)
    assert "without the 4 sequences quality was fitted to" in " ".join(capsys.readouterr().out.split())
    assert run(*words, *everything, "--held_out", "5") == 2
    assert f"less than the --held_out 5 of prism finetune and --samples {windows.count - 4}" in capsys.readouterr().err
    assert run(*words, "--held_out", "-1") == 2
    assert run(*words, "--length", "4000000") == 2
    assert "4000000" in capsys.readouterr().err


def test_as_many_were_held_out_as_finetune_holds_out() -> None:
    assert Finetune.held_out == calibration.HELD_OUT
