"""Texts while they are being written: what a frame shows, and that watching changes nothing but the screen."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest
import torch
from rich.console import Console
from rich.text import Text

from prism.cli import command, main, tokens, words
from prism.cli.words import BLANK, frame, painted
from prism.data.writing import Numbers
from prism.models.attach import attach
from prism.models.dit import DiT, DiTConfig
from prism.models.heads import FinalLayerConfig
from prism.noise import Noise
from prism.recipes.sampling import Sampling
from prism.sampling.loop import sample
from prism.state import Step, start
from prism.writer import End, Progress, Written

PUZZLE = "53..7....6..195....98....6.8...6...34..8.3..17...2...6.6....28....419..5....8..79"
MASK = 6


def tiny() -> DiT:
    torch.manual_seed(0)
    model = DiT(DiTConfig(7, MASK, 12, hidden_size=16, blocks=1, heads=2, cond_size=8, dropout=0.0))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model.eval()


def steps(policy: str = "prism") -> list[Step]:
    """Of a sequence of twelve that begins with 1 2."""
    model = attach(tiny(), FinalLayerConfig(16, cond_size=8)).eval()
    state = start(torch.tensor([[1, 2] + [MASK] * 10]), MASK)
    chosen = Sampling(policy=policy, k=2 if policy == "prism" else None).build_policy()
    return list(sample(model, state, chosen, steps=5, noise=Noise.rows(0, 1)))


def styles(text: Text) -> list[tuple[str, str]]:
    """Every piece and its style, in order; rich keeps none for pieces without one."""
    marked = {span.start: (text.plain[span.start : span.end], str(span.style)) for span in text.spans}
    return [marked[start] for start in sorted(marked)]


def test_a_frame_shows_what_the_step_found_and_takes_back() -> None:
    run, taken = steps(), 0
    for step in run:
        shown = styles(frame(step, 0, Numbers(7)))
        before, back = step.before.tokens[0], step.edit.remask[0]
        assert shown[:2] == [("1 ", "bold"), ("2 ", "bold")]
        assert shown.count((BLANK, "dim")) == int((before == MASK).sum())
        assert [piece for piece, style in shown if "strike" in style] == [
            f"{token} " for token in before[back].tolist()
        ]
        assert sum(" on #" in style for _, style in shown) == int((step.before.committed[0] & ~back).sum())
        taken += int(back.sum())
    assert taken > 0


def test_without_a_head_there_are_no_colours() -> None:
    backbone = tiny()
    (step,) = sample(backbone, start(torch.full((1, 12), MASK), MASK), Sampling("vanilla").build_policy(), steps=1)
    written = replace(step, before=step.after)
    assert styles(frame(written, 0, Numbers(7))) == []
    assert frame(written, 0, Numbers(7)).plain == "".join(f"{token} " for token in step.after.tokens[0].tolist())


def test_what_will_be_cut_off_is_dim() -> None:
    """Behind the first end that was written; one that was given, as 1 and 2 are, cuts nothing."""
    step = steps("vanilla")[-1]
    step = replace(step, before=step.after)
    row = step.before.tokens[0].tolist()
    for end in range(MASK):
        shown = [style for _, style in styles(frame(step, 0, Numbers(7), ends=(end,)))]
        kept = row.index(end, 2) + 1 if end in row[2:] else 12
        assert shown[:2] == ["bold", "bold"]
        assert all(" on #" in style for style in shown[2:kept])
        assert shown[kept:] == ["dim"] * (12 - kept)


def test_white_space_has_no_colour() -> None:
    assert styles(painted(["a", "\n", "b"], [0.1, 0.9, None], [False, False, True])) == [
        ("a", "white on #d22134"),
        ("b", "bold"),
    ]


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """What a terminal is told. Every command is imported first, or one of them would take this console for its own."""
    import_module("prism.cli.parser")
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=80, height=40, highlight=False, color_system="truecolor")
    for module in (command, tokens, words):
        monkeypatch.setattr(module, "console", console)
    monkeypatch.setattr(words, "PACE", 0.0)
    return screen


def test_a_terminal_watches_unless_told_otherwise(models: Path, tmp_path: Path, terminal: io.StringIO) -> None:
    results = []
    for number, choice in enumerate(([], ["--watch", "true"], ["--watch", "false"])):
        terminal.seek(0), terminal.truncate()
        out = tmp_path / f"{number}.json"
        given = ["--model", str(models / "sudoku"), "--prompt", PUZZLE, "--steps", "9", "--json", str(out)]
        assert main(["sample", *given, *choice]) == 0
        said = terminal.getvalue()
        assert ("tokens taken back" in said) == (number < 2)
        assert "Blue: the model is sure of a token. Red: it doubts it." in said
        assert ("Struck out: it remasks it." in said) == (number < 2)
        assert ("\x1b[1;9;31m" in said) == (number < 2)  # bold, struck out, red
        results.append(out.read_text().partition('"record"')[0])
    assert len(set(results)) == 1


def test_the_most_doubtful_tokens_are_named(models: Path, tmp_path: Path, terminal: io.StringIO) -> None:
    out = tmp_path / "out.json"
    assert main(["score", "--model", str(models / "words"), "--text", "0 1 2 3 4 5 6", "--json", str(out)]) == 0
    judged = [token for token in json.loads(out.read_text())["tokens"] if token["quality"] is not None]
    worst = sorted(judged, key=lambda token: token["quality"])[:3]
    said = " ".join(re.sub(r"\x1b\[[0-9;]*m", "", terminal.getvalue()).split())
    named = ", ".join(f"'{token['id']}' {token['quality']:.3f}" for token in worst)
    assert f"over 6 tokens; most doubtful: {named}" in said
    assert "Blue: the model is sure of a token. Red: it doubts it." in said
    assert "Struck out" not in said


def test_without_a_head_there_is_no_legend(models: Path, terminal: io.StringIO) -> None:
    assert main(["sample", "--model", str(models / "plain"), "--policy", "vanilla", "--steps", "4"]) == 0
    assert "Blue" not in terminal.getvalue()


def test_every_text_stays_in_its_place(terminal: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is over stands as it was, though its row goes on for a while; one that comes later may stand above it."""
    run = steps("vanilla")
    monkeypatch.setattr(words, "frame", lambda step, row, *_: Text(f"step {int(step.before.step[0])} row {row}"))
    done = Written([], [], [], "", End.LENGTH, 1, 0, 0.0)
    given = [Progress((1,), run[0], {}), Progress((1,), run[1], {1: done}), Progress((1, 0), run[2], {})]
    assert list(words.shown(given, Numbers(7), ())) == given
    assert re.findall(r"step \d row \d", terminal.getvalue())[:4] == [
        "step 0 row 0",
        "step 1 row 0",
        "step 2 row 1",
        "step 1 row 0",
    ]


def test_what_is_no_terminal_cannot_be_watched(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sample", "--model", str(models / "sudoku"), "--watch", "true"]) == 2
    assert "--watch true: the output is no terminal" in capsys.readouterr().err
    assert main(["sample", "--model", str(models / "sudoku"), "--prompt", PUZZLE, "--steps", "4"]) == 0
    said = capsys.readouterr().out
    assert "taken back" not in said
    assert "Blue" not in said
