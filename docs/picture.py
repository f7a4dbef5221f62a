"""Draws docs/demo.svg, the picture of the README: one puzzle, without and with self-correction. Run: python docs/picture.py"""

from __future__ import annotations

import io
from pathlib import Path

from rich.columns import Columns
from rich.console import Console

from prism.cli.demo import WITH, WITHOUT, Demo
from prism.data import sudoku
from prism.evaluation.sudoku import puzzle_state
from prism.noise import Noise
from prism.sampling.loop import sample

MOMENT, NUMBER = 34, 1  # the step shown on the left of each pair, and which of the demo's puzzles

demo = Demo()
model = demo.load()
puzzle = sudoku.puzzles(NUMBER + 1, 30, seed=0).puzzle[NUMBER]
panels = []
for name, policy in ((WITHOUT, "vanilla"), (WITH, "prism")):
    steps = list(
        sample(
            model,
            puzzle_state(puzzle[None]),
            demo._sampling(policy).build_policy(),
            steps=51,
            noise=Noise.rows(0, 1, first=NUMBER),
        )
    )
    panels += [
        demo._panel(name, steps[MOMENT], puzzle),
        demo._panel(name, steps[-1], puzzle, demo._solved(steps[-1], puzzle)),
    ]
console = Console(record=True, width=66, file=io.StringIO())
console.print(Columns(panels))
console.save_svg(str(Path(__file__).parent / "demo.svg"), title="prism demo")
