"""prism demo: what it shows, what it saves, what it refuses."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from prism.cli import demo, main
from prism.cli.animation import VERDICT, gif, page
from prism.cli.board import Frame, Scene, drawing, frames, side_by_side
from prism.data import sudoku
from prism.evaluation.sudoku import puzzle_state
from prism.models.hub import load_model
from prism.noise import Noise
from prism.recipes.sampling import Sampling
from prism.sampling.loop import generate
from prism.sampling.policy import Policy

PUZZLE = sudoku.parse_puzzle("53..7....6..195....98....6.8...6...34..8.3..17...2...6.6....28....419..5....8..79")
STEPS = 6


def policy(name: str) -> Policy:
    return Sampling(policy=name).build_policy()


@pytest.fixture(scope="module")
def model(models: Path) -> Any:
    return load_model(str(models / "sudoku")).eval()


def solution_frame() -> Frame:
    solution = sudoku.solve(PUZZLE[None]).solution[0]
    return Frame(solution, PUZZLE > 0, np.full(81, 0.5), np.zeros(81, dtype=int), step=STEPS, remasks=3, verdict=True)


@pytest.fixture(scope="module")
def scenes(model: Any) -> list[Scene]:
    ways = {
        name: frames(model, PUZZLE, policy(method), steps=STEPS, noise=Noise.rows(0, 1))
        for name, method in ((demo.WITHOUT, "vanilla"), (demo.WITH, "prism"))
    }
    return list(side_by_side(ways, puzzle=1, puzzles=1, solved=dict.fromkeys(ways, 0)))


def finished_board(model: Any) -> np.ndarray:
    """What the sampler alone makes of the puzzle."""
    result = generate(model, puzzle_state(PUZZLE[None]), policy("prism"), steps=STEPS, noise=Noise.rows(0, 1))
    return sudoku.from_tokens(result.tokens.numpy().astype(np.uint8))[0]


# ── frames ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_frames_tell_the_run(model: Any, scenes: list[Scene]) -> None:
    run = [scene.boards[demo.WITH] for scene in scenes]
    assert [frame.step for frame in run] == [*range(STEPS + 1), STEPS]  # the puzzle, the steps, the verdict
    assert (run[0].digits == PUZZLE).all()
    assert (run[-1].digits == finished_board(model)).all()
    assert [frame.verdict is None for frame in run] == [True] * (STEPS + 1) + [False]
    for before, after in pairwise(run[:-1]):
        judged = (before.digits > 0) & ~before.clues
        assert (np.isnan(after.quality) == ~judged).all()  # only what the model saw, so nothing it just wrote
        taken = after.taken_back > 0
        assert after.remasks - before.remasks == taken.sum()
        assert (after.taken_back[taken] == before.digits[taken]).all()
        assert not after.digits[taken].any()
    assert run[-1].remasks > 0
    assert not np.isnan(run[-1].quality[~run[-1].clues]).any()


def test_a_board_finished_early_waits_for_the_other() -> None:
    done = solution_frame()
    ways = {"short": iter([Frame.first(PUZZLE), done]), "long": iter([Frame.first(PUZZLE)] * 3 + [done])}
    shown = list(side_by_side(ways, puzzle=2, puzzles=2, solved={"short": 0, "long": 1}))
    assert len(shown) == 4
    assert all(scene.boards["short"] is done for scene in shown[1:])
    assert [(scene.finished, scene.solved) for scene in shown[-2:]] == [
        (1, {"short": 0, "long": 1}),
        (2, {"short": 1, "long": 2}),
    ]


def test_clashes_are_marked_on_wrong_boards_alone() -> None:
    good = solution_frame()
    assert not good.clashing.any()
    digits = good.digits.copy()
    digits[2] = digits[0]  # row 1 begins with the clue 5, and the third cell is generated
    wrong = Frame(digits, good.clues, good.quality, good.taken_back, step=STEPS, remasks=0, verdict=False)
    assert wrong.clashing[2]
    assert not (wrong.clashing & wrong.clues).any()


# ── the renderers ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_terminal_shows_the_running_tally(scenes: list[Scene]) -> None:
    console = Console(width=80)
    with console.capture() as capture:
        console.print(drawing(scenes[0]), drawing(scenes[3]), drawing(scenes[-1]))
    printed = capture.get()
    assert "puzzle 1 of 1 · solved 0 of 0 without self-correction, 0 of 0 with PRISM" in printed
    assert "solved 0 of 1 without self-correction, 0 of 1 with PRISM" in printed
    assert "✗" in printed
    assert max(map(len, printed.splitlines())) <= 80


def test_gif_has_a_picture_for_every_scene(scenes: list[Scene], tmp_path: Path) -> None:
    path = tmp_path / "out.gif"
    path.write_bytes(gif(scenes))
    with Image.open(path) as image:
        assert image.n_frames == len(scenes) == STEPS + 2
        assert image.info["loop"] == 0
        image.seek(image.n_frames - 1)
        assert image.info["duration"] == VERDICT
        assert image.width >= 600
    assert path.stat().st_size < 12_000 * len(scenes)


def test_page_holds_the_run_and_needs_nothing_else(model: Any, scenes: list[Scene]) -> None:
    text = page(scenes)
    found = re.search(r'<script type="application/json" id="run">(.*?)</script>', text, re.DOTALL)
    assert found
    run = json.loads(found[1])
    assert run["ways"] == [demo.WITHOUT, demo.WITH]
    assert len(run["scenes"]) == len(scenes)
    assert run["puzzles"] == ["".join(str(digit) if digit else "." for digit in PUZZLE)]
    last = run["scenes"][-1]["boards"][1]
    assert last["digits"] == "".join(".123456789|"[digit] for digit in finished_board(model))
    assert last["verdict"] is scenes[-1].boards[demo.WITH].verdict
    assert set(last["quality"]) == {str(cell) for cell in np.flatnonzero(PUZZLE == 0)}
    assert all(len(run["colours"]) > percent >= 0 for percent in last["quality"].values())
    assert not re.search(r"https?://|{{|@import|url\(", text)


# ── the command ─────────────────────────────────────────────────────────────────────────────────────────────────────


def run_demo(models: Path, *words: str | Path) -> int:
    fast = ("--model", models / "sudoku", "--count", "1", "--tally", "0", "--steps", "3", "--pace", "0")
    return main([str(word) for word in ("demo", *fast, *words)])


def test_demo_saves_what_it_shows(models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture, html, result = tmp_path / "out.gif", tmp_path / "out.HTML", tmp_path / "out.json"
    assert run_demo(models, "--gif", picture, "--html", html, "--json", result) == 0
    with Image.open(picture) as image:
        assert image.n_frames == 5
    assert "<!DOCTYPE html>" in html.read_text(encoding="utf-8")
    assert json.loads(result.read_text())["boards"] == 1
    printed = capsys.readouterr().out
    assert all(name in printed.replace("\n", "") for name in ("out.gif", "out.HTML"))
    assert printed.count("╭") == 2  # no terminal: the finished boards alone


def test_several_solutions_are_no_reason_to_refuse(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_demo(models, "--puzzle", "." * 81) == 0
    assert "more than one solution" in capsys.readouterr().out
