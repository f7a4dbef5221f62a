"""prism demo: a masked diffusion model solves Sudoku puzzles, once without and once with taking its doubtful digits back."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from rich.columns import Columns
from rich.live import Live
from rich.panel import Panel
from rich.text import Text

from prism.cli.board import BoardView
from prism.cli.command import Command, WithModel, console, progress, show_record
from prism.data import sudoku
from prism.evaluation.record import Stopwatch, plain
from prism.evaluation.sudoku import check_model, evaluate_sudoku, puzzle_state
from prism.noise import Noise
from prism.recipes.sampling import Sampling
from prism.sampling.loop import sample
from prism.state import Step

WITHOUT, WITH = "without self-correction", "with PRISM"


@dataclass(frozen=True, kw_only=True)
class Demo(WithModel, Command):
    """Watch a masked diffusion model fill Sudoku boards, doubt itself, take digits back and get them right."""

    puzzle: str | None = None
    """Solve this one: 81 characters, 0 or . for blanks."""
    count: int = 3
    """How many puzzles to show."""
    tally: int = 20
    """How many puzzles to count without showing them; 0 for none."""
    clues: int = 30
    """Clues of the puzzles that are made."""
    steps: int = 51
    """Forward passes per puzzle."""
    k: int = 4
    """Digits taken back per step."""
    pace: float = 0.05
    """Seconds a step stays on the screen at least."""
    seed: int = 0
    """Other puzzles, other draws."""

    def run(self) -> dict[str, Any]:
        clock = Stopwatch()
        if self.count < 1 or self.tally < 0:
            raise ValueError(f"--count {self.count} must be at least 1 and --tally {self.tally} at least 0.")
        policies = {WITHOUT: self._sampling("vanilla"), WITH: self._sampling("prism")}
        shown, counted = self._puzzles()
        model = self.load()
        check_model(model.facts)
        solved = dict.fromkeys(policies, 0)
        for number, puzzle in enumerate(shown):
            for name, success in self._show(model, puzzle, number, policies).items():
                solved[name] += success
        if len(counted):
            for name, sampling in policies.items():
                with progress(f"{len(counted)} more puzzles, {name}", len(counted)) as done:
                    run = evaluate_sudoku(
                        model,
                        counted,
                        sampling.build_policy(),
                        steps=self.steps,
                        seed=self.seed + 1,
                        batch=40,
                        device=self.torch_device(),
                        done=done,
                    )
                solved[name] += int(run.solved.sum())
        boards = len(shown) + len(counted)
        for name, count in solved.items():
            console.print(f"{name:<24} [bold]{count}[/bold] of {boards} solved")
        record = clock.record("demo", self, seed=self.seed, model=model, name=self.model or "embedded")
        show_record(record)
        return {"boards": boards, "solved": solved, "record": plain(record)}

    def _sampling(self, policy: str) -> Sampling:
        sampling = Sampling(policy=policy, k=self.k if policy == "prism" else None, steps=self.steps)
        sampling.build_policy()
        return sampling

    def _puzzles(self) -> tuple[np.ndarray, np.ndarray]:
        """Those to show and those to count."""
        if self.puzzle is None:
            made = sudoku.puzzles(self.count + self.tally, self.clues, seed=self.seed).puzzle
            return made[: self.count], made[self.count :]
        puzzle = sudoku.parse_puzzle(self.puzzle)
        found = sudoku.diagnose(puzzle)
        if found.verdict is not sudoku.Verdict.FINE:
            raise ValueError(f"--puzzle: {found}")
        if not (puzzle == 0).any():
            raise ValueError("--puzzle: this board has no blanks; there is nothing to solve.")
        return puzzle[None], puzzle[None][:0]

    def _show(self, model: Any, puzzle: np.ndarray, number: int, policies: dict[str, Sampling]) -> dict[str, bool]:
        """Both ways side by side, step by step."""
        runs: dict[str, Iterator[Step]] = {
            name: sample(
                model,
                puzzle_state(puzzle[None], self.torch_device()),
                sampling.build_policy(),
                steps=self.steps,
                noise=Noise.rows(self.seed, 1, first=number, device=self.torch_device()),
            )
            for name, sampling in policies.items()
        }
        last: dict[str, Step] = {}
        with Live(console=console, refresh_per_second=30, transient=False) as live:
            for steps in zip(*runs.values(), strict=False):
                began = time.perf_counter()
                last = dict(zip(runs, steps, strict=True))
                live.update(Columns([self._panel(name, step, puzzle) for name, step in last.items()]))
                if console.is_terminal:
                    time.sleep(max(0.0, self.pace - (time.perf_counter() - began)))
            finished = {name: self._solved(step, puzzle) for name, step in last.items()}
            live.update(Columns([self._panel(name, step, puzzle, finished[name]) for name, step in last.items()]))
        console.print()
        return finished

    def _panel(self, name: str, step: Step, puzzle: np.ndarray, solved: bool | None = None) -> Panel:
        cells = torch.as_tensor(sudoku.CELLS)

        def on_board(tensor: torch.Tensor) -> np.ndarray:
            return tensor[0].cpu()[cells].numpy()

        quality = step.prediction.quality if step.prediction.has_quality else None
        view = BoardView(
            digits=on_board(step.after.tokens),
            clues=puzzle > 0,
            quality=None if quality is None else on_board(quality.detach().float()),
            taken_back=on_board(step.edit.remask),
        )
        verdict = {None: "", True: "[green]solved[/green]", False: "[red]wrong[/red]"}[solved]
        note = Text.from_markup(f"step {int(step.after.step[0])}, {int(step.remasks[0])} taken back  {verdict}")
        return Panel(view.text() + Text("\n") + note, title=name, width=31)

    def _solved(self, step: Step, puzzle: np.ndarray) -> bool:
        board = sudoku.from_tokens(step.after.tokens.cpu().numpy().astype(np.uint8))
        return bool(sudoku.solves(board, puzzle[None])[0])
