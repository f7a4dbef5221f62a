"""Draws docs/demo.svg, the picture of the README: one puzzle, without and with self-correction. Run: python docs/picture.py"""

from __future__ import annotations

import io
from pathlib import Path

from rich.console import Console

from prism.cli.board import drawing
from prism.cli.demo import Demo
from prism.data import sudoku

NUMBER, MOMENT = 2, 35  # which of the demo's puzzles, and the step shown above the finished boards

demo = Demo()
puzzles = sudoku.puzzles(NUMBER, demo.clues, seed=demo.seed).puzzle
scenes = [scene for scene in demo.scenes(demo.load(), puzzles) if scene.puzzle == NUMBER]
console = Console(record=True, width=64, file=io.StringIO())
console.print(drawing(scenes[MOMENT]), drawing(scenes[-1]), sep="\n\n")
console.save_svg(str(Path(__file__).parent / "demo.svg"), title="prism demo")
