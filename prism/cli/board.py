"""A Sudoku board while it is being filled: frames of one board, scenes of the same puzzle both ways, and both on the terminal.

Frames are plain data, collected once from the sampler's steps; the terminal (here), the GIF and the page
(prism/cli/animation.py) only draw them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import zip_longest

import numpy as np
import torch
from jaxtyping import Bool, Float, Integer
from rich.columns import Columns
from rich.console import Group
from rich.panel import Panel
from rich.text import Text
from torch import Tensor

from prism.cli.palette import quality_style
from prism.data import sudoku
from prism.data.sudoku_solver import SHARES_UNIT
from prism.evaluation.sudoku import puzzle_state
from prism.noise import Noise
from prism.sampling.loop import Denoiser, sample
from prism.sampling.policy import Policy

SYMBOLS = ".123456789|"  # by token: a mask, the digits, and the row end, which a bad model may write into a cell


@dataclass(frozen=True)
class Frame:
    """One board at one moment."""

    digits: Integer[np.ndarray, "81"]
    """0 where a cell is masked."""
    clues: Bool[np.ndarray, "81"]
    quality: Float[np.ndarray, "81"]
    """Of the generated digits the model has looked at; nan elsewhere, and so on digits it has only just written."""
    taken_back: Integer[np.ndarray, "81"]
    """The digits this step remasked, 0 elsewhere."""
    step: int
    remasks: int
    """Digits taken back so far."""
    verdict: bool | None = None
    """Whether the board solves its puzzle; None until it is finished."""

    @staticmethod
    def first(puzzle: Integer[np.ndarray, "81"]) -> Frame:
        """Before the first step: the clues alone."""
        return Frame(puzzle, puzzle > 0, np.full(81, np.nan), np.zeros(81, dtype=int), step=0, remasks=0)

    @property
    def clashing(self) -> Bool[np.ndarray, "81"]:
        """On a board that came out wrong, the generated digits that stand twice in a row, column or box."""
        twice = ((self.digits[:, None] == self.digits) & SHARES_UNIT).sum(1) > 1
        return twice & ~self.clues & (self.verdict is False)


def frames(
    model: Denoiser, puzzle: Integer[np.ndarray, "81"], policy: Policy, *, steps: int, noise: Noise
) -> Iterator[Frame]:
    """The puzzle, the board after every step, and at last the finished board, looked at once more, with its verdict."""
    frame = Frame.first(puzzle)
    yield frame
    state = puzzle_state(puzzle[None], noise.keys.device)
    for step in sample(model, state, policy, steps=steps, noise=noise):
        state = step.after
        quality = step.prediction.quality.masked_fill(~step.before.committed, torch.nan)
        frame = replace(
            frame,
            digits=_cells(state.tokens),
            quality=_cells(quality),
            taken_back=_cells(step.before.tokens * step.edit.remask),
            step=frame.step + 1,
            remasks=int(step.remasks[0]),
        )
        yield frame
    with torch.no_grad():
        quality = model.predict(state.tokens).quality.masked_fill(~state.committed, torch.nan)
    yield replace(
        frame,
        quality=_cells(quality),
        taken_back=np.zeros(81, dtype=int),
        verdict=bool(sudoku.solves(frame.digits[None], puzzle[None])[0]),
    )


def _cells(row: Tensor) -> np.ndarray:
    return row.detach()[0].cpu().numpy()[sudoku.CELLS]


@dataclass(frozen=True)
class Scene:
    """The same puzzle both ways at one moment, by the names of the ways, and what they have solved so far."""

    boards: dict[str, Frame]
    puzzle: int
    """Which one, from 1."""
    puzzles: int
    """How many will be shown."""
    solved: dict[str, int]
    """Of the finished puzzles, this one included once both boards have their verdict."""

    @property
    def over(self) -> bool:
        return all(frame.verdict is not None for frame in self.boards.values())

    @property
    def finished(self) -> int:
        return self.puzzle - 1 + self.over


def side_by_side(
    ways: Mapping[str, Iterator[Frame]], *, puzzle: int, puzzles: int, solved: Mapping[str, int]
) -> Iterator[Scene]:
    """Scenes of one puzzle; a board that is finished early waits for the other. `solved` is the tally before it."""
    boards: dict[str, Frame] = {}
    for moment in zip_longest(*ways.values()):
        boards = {name: frame or boards[name] for name, frame in zip(ways, moment, strict=True)}
        scene = Scene(boards, puzzle, puzzles, dict(solved))
        if scene.over:
            tally = {name: count + bool(boards[name].verdict) for name, count in solved.items()}
            scene = replace(scene, solved=tally)
        yield scene


# ── on the terminal ─────────────────────────────────────────────────────────────────────────────────────────────────


def drawing(scene: Scene) -> Group:
    """Both boards, and the tally under them."""
    boards = Columns([_panel(name, frame) for name, frame in scene.boards.items()])
    return Group(boards, tally(scene.solved, scene.finished, f"puzzle {scene.puzzle} of {scene.puzzles}"))


def tally(solved: Mapping[str, int], of: int, where: str) -> Text:
    """One line: how many puzzles each way has solved."""
    counts = ", ".join(f"[bold]{count} of {of}[/bold] {name}" for name, count in solved.items())
    return Text.from_markup(f"[dim]{where} ·[/dim] solved {counts}")


def _panel(name: str, frame: Frame) -> Panel:
    verdict = {None: "", True: "[bold green]solved[/bold green]", False: "[bold red]wrong[/bold red]"}[frame.verdict]
    note = Text(f"\nstep {frame.step}, {frame.remasks} taken back")
    return Panel(_board(frame) + note, title=name, subtitle=verdict or None, width=31)


def _board(frame: Frame) -> Text:
    """Nine lines, boxes ruled off."""
    text = Text(justify="center")
    for row in range(9):
        if row in (3, 6):
            text.append("──────┼───────┼──────\n", style="dim")
        for column in range(9):
            if column in (3, 6):
                text.append("│ ", style="dim")
            symbol, style = _cell(frame, 9 * row + column)
            text.append(symbol, style=style)
            text.append(" " if column < 8 else "\n")
    return text


def _cell(frame: Frame, cell: int) -> tuple[str, str]:
    """Clues bold, generated digits on the colour of their quality, doubtful ones crossed out as they go."""
    if frame.taken_back[cell]:
        return "✗", "bold red"
    symbol = SYMBOLS[frame.digits[cell]]
    if frame.clues[cell]:
        return symbol, "bold"
    if not frame.digits[cell]:
        return "·", "dim"
    if frame.clashing[cell]:
        return symbol, "bold red"
    quality = float(frame.quality[cell])
    return symbol, "" if np.isnan(quality) else quality_style(quality)
