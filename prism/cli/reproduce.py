"""prism reproduce: a paper's experiment, end to end."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prism.cli.command import Command, check_folder, console, show_record
from prism.data import sudoku
from prism.evaluation.record import Stopwatch, plain
from prism.recipes.reproduce.sudoku import SCALES, SudokuStudy
from prism.recipes.reproduce.sudoku_report import write_report
from prism.recipes.reproduce.sudoku_results import results_of
from prism.recipes.reproduce.workshop import Workshop
from prism.recipes.sampling import pick


@dataclass(frozen=True, kw_only=True)
class ReproduceSudoku(Command):
    """The paper's Sudoku experiment: pretrain, fine-tune with PRISM, compare everything, write results and draw figures.

    What its folders hold already is not made again: after an interruption the same command goes on.
    """

    scale: str = "tiny"
    """paper (28.6M parameters, one H200), small (5M, a laptop GPU), tiny (two CPU cores, minutes; it shows that everything
    runs and solves nothing)."""
    output: Path | None = None
    """Folder for the models; runs/sudoku-SCALE if left out."""
    results: Path | None = None
    """Folder for results and figures; OUTPUT/results if left out."""
    puzzles: Path | None = None
    """More puzzles to evaluate on beside our own, such as the paper's; called `paper` in the results."""
    only: str | None = None
    """Names of the results to make, separated by commas; all if left out."""

    def check(self) -> None:
        super().check()
        for flag, path in (("--output", self.output), ("--results", self.results)):
            if path is not None:
                check_folder(flag, path)

    def run(self) -> dict[str, Any]:
        clock, scale = Stopwatch(), pick(self.scale, SCALES, "scale")
        if importlib.util.find_spec("matplotlib") is None:
            raise ValueError("The figures need matplotlib; run: pip install 'prism-mdm[plot]'")
        output = self.output or Path("runs") / f"sudoku-{self.scale}"
        given = {} if self.puzzles is None else {"paper": sudoku.read_puzzles(self.puzzles)}
        study = SudokuStudy(scale, Workshop(output, self.results or output / "results", console.print), given)
        wanted = results_of(study)
        if self.only is not None:
            wanted = {name.strip(): pick(name.strip(), wanted, "result (--only)") for name in self.only.split(",")}
        study.workshop.begin({"scale": scale, "puzzles": {name: len(puzzles) for name, puzzles in given.items()}})
        for name, make in wanted.items():
            console.print(f"[bold]{name}[/bold] {(make.__doc__ or '').strip()}")
            study.workshop.result(name, lambda make=make: make(study))  # type: ignore[misc]
        page = write_report(study.workshop.results)
        console.print(f"figures and tables: {page}")
        record = clock.record("reproduce sudoku", self, seed=0)
        show_record(record)
        return {"results": list(wanted), "page": str(page), "record": plain(record)}
