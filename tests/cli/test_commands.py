"""Good command lines do what they say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from prism.cli import main
from prism.data.sudoku import parse_puzzle
from prism.evaluation.sudoku import puzzle_state
from prism.models.hub import load_model
from prism.models.judge import Judged
from prism.noise import Noise
from prism.recipes.sampling import Sampling
from prism.sampling.loop import generate

PUZZLE = "53..7....6..195....98....6.8...6...34..8.3..17...2...6.6....28....419..5....8..79"
FAST = ["--boards", "24", "--held_out", "8", "--batch", "4", "--steps", "2"]


def run(*words: str | Path) -> int:
    return main([str(word) for word in words])


def result(path: Path) -> Any:
    return json.loads(path.read_text())


def test_evaluate_writes_what_is_promised(models: Path, files: Path, tmp_path: Path) -> None:
    out = tmp_path / "result.json"
    assert (
        run("evaluate", "sudoku", "--model", models / "sudoku", "--puzzles", files / "puzzles.txt", "--json", out) == 0
    )
    found = result(out)
    assert 0 <= found["success_rate"] <= 1
    assert found["boards"] == 2
    assert found["nfe"] == 51
    assert found["remasks"] == 168  # K = 4 at the 42 steps that allow it
    record = found["record"]
    assert {"seed", "device", "dtype", "commit", "versions", "settings", "wall_seconds", "date"} <= record.keys()
    assert record["settings"]["policy"] == "prism"
    assert record["versions"]["torch"]


def test_same_seed_same_result_whatever_the_batch(models: Path, files: Path, tmp_path: Path) -> None:
    boards = []
    for batch in ("1", "2"):
        out = tmp_path / f"{batch}.json"
        words = ["sample", "--model", models / "sudoku", "--prompt", PUZZLE, "--count", batch, "--seed", "3"]
        assert run(*words, "--steps", "9", "--json", out) == 0
        boards.append(result(out)["tokens"][0])
    assert boards[0] == boards[1]


def test_compare_runs_every_method(
    models: Path, files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "compare.json"
    words = ["compare", "sudoku", "--model", models / "sudoku", "--puzzles", files / "puzzles.txt", "--steps", "5"]
    assert run(*words, "--order", "margin", "--policies", "all", "--json", out) == 0
    policies = result(out)["policies"]
    assert {"vanilla", "prism", "remdm-cap", "p2-joint", "rcr", "dfm", "entropy-bounded"} <= policies.keys()
    assert policies["vanilla"]["remasks"] == 0
    assert policies["prism"]["nfe"] == policies["vanilla"]["nfe"] == 5
    assert "prism" in capsys.readouterr().out

    assert run(*words, "--policies", "vanilla,random,prism", "--doubt", "0.9", "--json", out) == 0
    assert result(out)["policies"]["vanilla"]["remasks"] == 0


def test_a_corrector_judges_what_an_untuned_model_writes(models: Path, files: Path, tmp_path: Path) -> None:
    """Two forward passes a step, and one for methods that ask for no quality."""
    out, puzzles = (
        tmp_path / "out.json",
        ["--puzzles", files / "puzzles.txt", "--steps", "6", "--json", tmp_path / "out.json"],
    )
    both = ["--model", models / "plain", "--corrector", models / "sudoku"]
    assert run("evaluate", "sudoku", *both, *puzzles) == 0
    found = result(out)
    assert (found["nfe"], found["record"]["settings"]["corrector"]) == (12, str(models / "sudoku"))
    assert run("compare", "sudoku", *both, *puzzles, "--policies", "vanilla,p2-self,prism") == 0
    assert {name: row["nfe"] for name, row in result(out)["policies"].items()} == {
        "vanilla": 6,
        "p2-self": 6,
        "prism": 12,
    }
    assert result(out)["policies"]["prism"]["remasks"] == found["remasks"] > 0

    assert run("sample", *both, "--prompt", PUZZLE, "--steps", "6", "--json", out) == 0
    sampled = result(out)
    assert sampled["nfe"] == 12
    board = torch.tensor(sampled["tokens"])
    writer, judge = load_model(models / "plain").eval(), load_model(models / "sudoku").eval()
    with torch.no_grad():
        torch.testing.assert_close(torch.tensor(sampled["quality"]), judge.predict(board).quality, atol=1e-5, rtol=0)
    state = puzzle_state(parse_puzzle(PUZZLE)[None])
    policy = Sampling("prism").build_policy()
    alone = generate(Judged(writer, judge), state, policy, steps=6, noise=Noise.rows(0, 1))
    assert sampled["tokens"] == alone.tokens.tolist()


def test_score_gives_a_quality_to_every_token(models: Path, tmp_path: Path) -> None:
    out = tmp_path / "score.json"
    assert run("score", "--model", models / "sudoku", "--text", PUZZLE, "--json", out) == 0
    tokens = result(out)["tokens"]
    assert len(tokens) == 89
    assert all((token["quality"] is None) == (token["id"] == 0) for token in tokens)
    assert all(0 <= token["quality"] <= 1 for token in tokens if token["quality"] is not None)


def test_sample_from_ids(models: Path, tmp_path: Path) -> None:
    out = tmp_path / "sample.json"
    words = [
        "sample",
        "--model",
        models / "words",
        "--prompt",
        "1 2 3",
        "--length",
        "9",
        "--count",
        "2",
        "--block",
        "3",
    ]
    assert run(*words, "--k_block", "1", "--json", out) == 0
    found = result(out)
    assert all(row[:3] == [1, 2, 3] and len(row) == 9 and 6 not in row for row in found["tokens"])


def test_settings_from_yaml_and_overrides(models: Path, files: Path, tmp_path: Path) -> None:
    config, out = tmp_path / "run.yaml", tmp_path / "out.json"
    config.write_text("policy: remdm-cap\nsteps: 7\neta: 0.3\n")
    words = ["evaluate", "sudoku", "--config", config, "--model", models / "sudoku", "--puzzles", files / "puzzles.txt"]
    assert run(*words, "--steps", "3", "--json", out) == 0
    found = result(out)
    assert found["nfe"] == 3
    assert found["policy"] == {"class": "ReMDMCap", "order": {"class": "RandomOrder"}, "eta": 0.3}


def test_cite(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("cite", "--policy", "remdm-cap", "--order", "margin") == 0
    printed = capsys.readouterr().out
    assert all(key in printed for key in ("kim2026prism", "wang2025remasking", "kim2025train"))


def test_demo(models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "demo.json"
    words = ["demo", "--model", models / "sudoku", "--count", "1", "--tally", "2", "--steps", "6", "--pace", "0"]
    assert run(*words, "--json", out) == 0
    assert result(out)["boards"] == 3
    assert "with PRISM" in capsys.readouterr().out


def test_pretrain_finetune_evaluate_and_resume(files: Path, tmp_path: Path) -> None:
    base, tuned, out = tmp_path / "base", tmp_path / "tuned", tmp_path / "e.json"
    small = ["--hidden_size", "16", "--layers", "1", "--heads", "2"]
    assert run("pretrain", "--output", base, *small, *FAST) == 0
    assert run("finetune", "--model", base, "--output", tuned, *FAST) == 0
    assert run("finetune", "--model", base, "--output", tuned, *FAST) == 2  # never overwritten silently
    assert run("finetune", "--model", base, "--output", tuned, *FAST, "--resume", "true") == 0
    words = ["evaluate", "sudoku", "--model", tuned, "--puzzles", files / "puzzles.txt", "--steps", "4"]
    assert run(*words, "--json", out) == 0
    assert result(out)["boards"] == 2


def test_finetune_an_adapter_on_a_file_of_ids(models: Path, files: Path, tmp_path: Path) -> None:
    base, tuned, out = tmp_path / "base", tmp_path / "tuned", tmp_path / "s.json"
    fast = ["--data", files / "rows.npy", "--held_out", "8", "--batch", "4", "--steps", "2"]
    assert run("pretrain", "--output", base, "--hidden_size", "16", "--layers", "1", "--heads", "2", *fast) == 0
    lora = ["--lora_rank", "2", "--head", "projection"]
    assert run("finetune", "--model", base, "--output", tuned, *fast, *lora) == 0
    assert not (tuned / "backbone").exists()  # an adapter never contains the backbone
    assert run("sample", "--model", tuned, "--length", "12", "--k", "1", "--json", out) == 0
    assert len(result(out)["tokens"][0]) == 12


def test_a_head_that_learnt_from_confident_tokens_is_calibrated(
    files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base, out = tmp_path / "base", tmp_path / "f.json"
    assert run("pretrain", "--output", base, "--hidden_size", "16", "--layers", "1", "--heads", "2", *FAST) == 0
    found = {}
    for choose in ("probability", "random"):
        words = ["finetune", "--model", base, "--output", tmp_path / choose, "--choose", choose, *FAST]
        assert run(*words, "--json", out) == 0
        found[choose] = result(out)["calibration"]
        config = json.loads((tmp_path / choose / "corrector" / "prism_config.json").read_text())
        assert config.get("calibration") == (
            {name: found[choose][name] for name in ("scale", "shift", "slope")} if found[choose] else None
        )
    assert "quality calibrated for tokens at all places" in capsys.readouterr().out
    assert found["random"] == {}


@pytest.mark.parametrize(
    "words",
    [(), ("--help",), ("evaluate", "--help"), ("sample", "--help"), ("compare", "sudoku", "--help"), ("--version",)],
)
def test_help(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(words)
    assert stop.value.code == 0
    assert capsys.readouterr().out


@pytest.mark.parametrize("text", ["---", "-", "#", "# a heading", "~", "null", "1984", "a=b: c", "[DONE]", ""])
def test_texts_are_taken_as_they_stand(text: str) -> None:
    """And not as YAML, which finds nothing in some of them, nor as options, which some look like."""
    from prism.cli.parser import parse

    said = [
        (["score", "--text"], "text"),
        (["sample", "--prompt"], "prompt"),
        (["sample", "--chat", "true", "--prompt", "x", "--system"], "system"),
        (["tokenize", "--input", "x", "--tokenizer", "y", "--output", "z", "--separator"], "separator"),
    ]
    for words, name in said:
        assert getattr(parse([*words, text]), name) == text
        assert getattr(parse([*words[:-1], f"{words[-1]}={text}"]), name) == text
    assert parse(["sample", "--stop", text, "END", "--k", "2"]).stop == (text, "END")
    assert parse(["sample", f"--stop={text}", "--k", "2"]).stop == (text,)


def test_a_run_is_resumed_with_what_it_began_with(
    files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = ["--hidden_size", "16", "--layers", "1", "--heads", "2"]
    one, other, tuned = tmp_path / "one", tmp_path / "other", tmp_path / "tuned"
    assert run("pretrain", "--output", one, *small, *FAST) == 0
    assert run("pretrain", "--output", other, *small, *FAST, "--seed", "1") == 0
    for changed in (["--data_seed", "1"], ["--boards", "25"], ["--augment", "false"], ["--held_out", "7"]):
        capsys.readouterr()
        assert run("pretrain", "--output", one, *small, *FAST, *changed, "--resume", "true") == 2
        assert "was begun with data=" in capsys.readouterr().err
    head = ["--output", tuned, "--tune_backbone", "false", "--regulariser", "0"]
    assert run("finetune", "--model", one, *head, *FAST) == 0
    assert run("finetune", "--model", other, *head, *FAST, "--resume", "true") == 2
    assert "was begun with first_weights=" in capsys.readouterr().err
    assert run("finetune", "--model", one, *head, *FAST, "--resume", "true") == 0


def test_a_single_other_token_is_other_data(files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = ["--hidden_size", "16", "--layers", "1", "--heads", "2", "--batch", "4", "--steps", "2", "--held_out", "4"]
    words = ["pretrain", "--output", tmp_path / "run", "--data", files / "rows.npy", "--vocab_size", "7", *small]
    assert run(*words) == 0
    assert run(*words, "--resume", "true") == 0
    rows = np.load(files / "rows.npy")
    rows[17, 5] = 0
    np.save(files / "rows.npy", rows)
    capsys.readouterr()
    assert run(*words, "--resume", "true") == 2
    assert "was begun with data=" in capsys.readouterr().err


def test_every_option_explains_itself(capsys: pytest.CaptureFixture[str]) -> None:
    from prism.cli.parser import COMMANDS, _parser

    kinds = [kind for entry in COMMANDS.values() for kind in (entry.values() if isinstance(entry, dict) else [entry])]
    for kind in kinds:
        for action in _parser(kind, "x")._actions:
            assert action.help, (kind.__name__, action.option_strings)
