"""prism demo: a masked diffusion model solves Sudoku puzzles, once without and once with taking its doubtful digits back."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.live import Live

from prism.cli.animation import gif, page
from prism.cli.board import Scene, drawing, frames, side_by_side, tally
from prism.cli.command import Command, WithModel, check_file, console, require_head, show_record
from prism.data import sudoku
from prism.evaluation.record import Stopwatch, plain
from prism.evaluation.sudoku import check_model, evaluate_sudoku
from prism.noise import Noise
from prism.recipes.sampling import Sampling

WITHOUT, WITH = "without self-correction", "with PRISM"
AT_ONCE = 5  # puzzles counted together: few enough for the tally to move, enough to be quick


@dataclass(frozen=True, kw_only=True)
class Demo(WithModel, Command):
    """Watch a masked diffusion model fill Sudoku boards, doubt its digits, remask them and get them right."""

    puzzle: str | None = None
    """Solve this one: 81 characters, 0 or . for blanks."""
    count: int = 3
    """How many puzzles to show."""
    tally: int = 20
    """How many puzzles to count without showing them; 0 for none."""
    clues: int = 30
    """Number of clues in the generated puzzles."""
    steps: int = 51
    """Forward passes per puzzle."""
    k: int = 4
    """Digits remasked per step."""
    pace: float = 0.05
    """Minimum number of seconds a step stays on the screen."""
    seed: int = 0
    """Seed of puzzles and draws."""
    gif: Path | None = None
    """Save what is shown as an animated picture: out.gif."""
    html: Path | None = None
    """Save what is shown as a self-contained page that plays it: out.html."""

    def check(self) -> None:
        super().check()
        for suffix, path in ((".gif", self.gif), (".html", self.html)):
            if path is not None:
                check_file(f"--{suffix[1:]}", path)
                if path.suffix.lower() != suffix:
                    raise ValueError(f"--{suffix[1:]} {path}: the name must end in {suffix}.")

    def run(self) -> dict[str, Any]:
        clock = Stopwatch()
        if self.count < 1 or self.tally < 0:
            raise ValueError(f"--count {self.count} must be at least 1 and --tally {self.tally} at least 0.")
        if self.steps < 1 or not 0 <= self.pace <= 60:
            raise ValueError(f"--steps {self.steps} must be at least 1 and --pace {self.pace} from 0 to 60 seconds.")
        ways = self._ways()
        shown, counted = self._puzzles()
        model = self.load()
        check_model(model.facts)
        for sampling in ways.values():
            require_head(model, sampling.method())
        with _one_thread():
            scenes = self._play(self.scenes(model, shown))
        self._save(scenes)
        solved = self._count(model, counted, scenes[-1].solved, len(shown))
        boards = len(shown) + len(counted)
        for name, count in solved.items():
            console.print(f"{name:<24} [bold]{count}[/bold] of {boards} solved")
        record = clock.record("demo", self, seed=self.seed, model=model, name=self.model or "embedded")
        show_record(record)
        return {"boards": boards, "solved": solved, "record": plain(record)}

    def scenes(self, model: Any, puzzles: np.ndarray) -> Iterator[Scene]:
        """Every puzzle both ways, step by step."""
        solved = dict.fromkeys(self._ways(), 0)
        for number, puzzle in enumerate(puzzles):
            runs = {
                name: frames(
                    model,
                    puzzle,
                    sampling.build_policy(),
                    steps=self.steps,
                    noise=Noise.rows(self.seed, 1, first=number, device=self.torch_device()),
                )
                for name, sampling in self._ways().items()
            }
            for scene in side_by_side(runs, puzzle=number + 1, puzzles=len(puzzles), solved=solved):
                yield scene
                solved = scene.solved

    def _ways(self) -> dict[str, Sampling]:
        vanilla, prism = (
            Sampling(policy="vanilla", steps=self.steps),
            Sampling(policy="prism", k=self.k, steps=self.steps),
        )
        prism.build_policy()  # complains of a bad --k before anything is loaded
        return {WITHOUT: vanilla, WITH: prism}

    def _puzzles(self) -> tuple[np.ndarray, np.ndarray]:
        """Those to show and those to count."""
        if self.puzzle is None:
            made = sudoku.puzzles(self.count + self.tally, self.clues, seed=self.seed).puzzle
            return made[: self.count], made[self.count :]
        try:
            puzzle = sudoku.parse_puzzle(self.puzzle)
        except sudoku.SudokuError as error:
            raise ValueError(f"--puzzle: {error}") from error
        found = sudoku.diagnose(puzzle)
        if found.verdict is sudoku.Verdict.UNSOLVABLE:
            raise ValueError(f"--puzzle: this one {found}; check that every clue was copied right.")
        if not (puzzle == 0).any():
            raise ValueError("--puzzle: this board has no blanks; there is nothing to solve.")
        if found.verdict is sudoku.Verdict.SEVERAL:
            console.print(f"This puzzle {found}; any of them counts as solved.")
        return puzzle[None], puzzle[None][:0]

    def _play(self, scenes: Iterator[Scene]) -> list[Scene]:
        """Show the scenes as they come, and keep them."""
        if console.is_terminal:
            console.print("[dim]Blue: the model is sure of a digit. Red: it doubts it. ✗: it remasks it.[/dim]")
        kept: list[Scene] = []
        for _, of_one_puzzle in groupby(scenes, key=lambda scene: scene.puzzle):
            with Live(console=console, auto_refresh=False) as live:
                due = 0.0
                for scene in of_one_puzzle:
                    if console.is_terminal:
                        time.sleep(max(0.0, due - time.perf_counter()))
                    live.update(drawing(scene), refresh=True)
                    due = time.perf_counter() + self.pace
                    kept.append(scene)
            console.print()
        return kept

    def _save(self, scenes: list[Scene]) -> None:
        if self.gif is not None:
            self.gif.write_bytes(gif(scenes))
        if self.html is not None:
            self.html.write_text(page(scenes), encoding="utf-8")
        for path in (self.gif, self.html):
            if path is not None:
                console.print(f"wrote {path} ({path.stat().st_size / 1e6:.1f} MB)", soft_wrap=True, markup=False)

    def _count(self, model: Any, puzzles: np.ndarray, solved: dict[str, int], shown: int) -> dict[str, int]:
        """The tally after these puzzles too, which are solved unseen."""
        solved = dict(solved)
        with Live(console=console, auto_refresh=False, transient=True) as live:
            for first in range(0, len(puzzles), AT_ONCE):
                live.update(tally(solved, shown + first, f"{len(puzzles) - first} more to count"), refresh=True)
                for name, sampling in self._ways().items():
                    run = evaluate_sudoku(
                        model,
                        puzzles[first : first + AT_ONCE],
                        sampling.build_policy(),
                        steps=self.steps,
                        seed=self.seed + 1 + first,
                        device=self.torch_device(),
                    )
                    solved[name] += int(run.solved.sum())
        return solved


@contextmanager
def _one_thread() -> Iterator[None]:
    """One board a step is too little to share: on an idle machine this costs nothing to see, on a busy one it is 4× faster."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
