"""prism evaluate sudoku, prism compare sudoku."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from prism.cli.command import Command, WithCorrector, console, progress, show_record
from prism.data import sudoku
from prism.evaluation.record import Stopwatch, plain
from prism.evaluation.statistics import paired_difference
from prism.evaluation.sudoku import SudokuRun, check_model, evaluate_sudoku
from prism.models.judge import Judged
from prism.recipes.sampling import Sampling
from prism.sampling.policies import METHODS


@dataclass(frozen=True, kw_only=True)
class _OnPuzzles(WithCorrector, Sampling, Command):
    puzzles: Path | None = None
    """A file of puzzles: 81 characters a line (0 or . for blanks), or 81 or 89 comma-separated integers. If left out, 200
    puzzles with 30 clues are made from seed 1."""
    limit: int | None = None
    """Use only the first this many puzzles."""
    batch: int | None = None
    """Puzzles solved at once, 64 on a CPU and 1024 elsewhere if left out; the result does not depend on it."""

    def read(self) -> np.ndarray:
        if self.limit is not None and self.limit < 1:
            raise ValueError(f"--limit {self.limit}: take at least 1 puzzle.")
        if self.batch is not None and self.batch < 1:
            raise ValueError(f"--batch {self.batch}: at least 1 puzzle at once.")
        found = sudoku.puzzles(200, 30, seed=1).puzzle if self.puzzles is None else sudoku.read_puzzles(self.puzzles)
        blanks = (found == 0).sum(1)
        self.check_length(int(blanks.max()))
        return found[: self.limit]

    def measure(self, model: Any, puzzles: np.ndarray, sampling: Sampling) -> SudokuRun:
        """One policy on all puzzles."""
        policy, device = sampling.build_policy(), self.torch_device()
        if isinstance(model, Judged) and not sampling.method().needs_head:
            model = model.writer  # who asks for no quality pays for none
        with progress(f"{sampling.policy}, {sampling.order or 'own'} order", len(puzzles)) as done:
            return evaluate_sudoku(
                model,
                puzzles,
                policy,
                steps=sampling.steps if sampling.steps is not None else int((puzzles == 0).sum(1).max()),
                seed=sampling.seed,
                draw=sampling.build_draw(),
                schedule=sampling.build_schedule(),
                block=sampling.block,
                batch=self.batch or (64 if device.type == "cpu" else 1024),
                device=device,
                done=done,
            )


@dataclass(frozen=True, kw_only=True)
class EvaluateSudoku(_OnPuzzles):
    """Complete Sudoku puzzles with one policy and count the boards that are solved."""

    def run(self) -> dict[str, Any]:
        clock = Stopwatch()
        self.build_policy(), self.build_draw(), self.build_schedule()  # complain before loading anything
        puzzles, model = self.read(), self.load_for(self.method())
        check_model(model.facts)
        result = self.measure(model, puzzles, self)
        summary = result.summary()
        success = result.success
        console.print(
            f"[bold]{100 * success.value:.1f} %[/bold] of {len(puzzles)} boards solved "
            f"(95 % interval {100 * success.low:.1f} to {100 * success.high:.1f}), {summary['nfe']:.1f} forward passes and "
            f"{summary['remasks']:.1f} remasks a board, {summary['seconds_per_1000_boards']:.1f} s per 1000 boards"
        )
        record = clock.record("evaluate sudoku", self, seed=self.seed, model=model, name=self.model or "embedded")
        show_record(record)
        return {**summary, "policy": plain(self.build_policy()), "record": plain(record)}


@dataclass(frozen=True, kw_only=True)
class CompareSudoku(_OnPuzzles):
    """Run several policies on the same puzzles with the same number of forward passes and show them side by side."""

    policies: str = "vanilla,random,remdm-cap,remdm-conf-topk,p2-self,prism"
    """Names of policies, separated by commas, or `all`; differences are relative to the first. --order, --k, --doubt etc. apply
    to those that use them."""

    def check(self) -> None:
        super().check()
        if self.policy != Sampling.policy:
            raise ValueError(f"--policy {self.policy}: policies to compare are named with --policies; leave it out.")
        names = self.names()
        if doubled := [name for place, name in enumerate(names) if name in names[:place]]:
            raise ValueError(f"--policies: {doubled[0]} is named twice; name each policy once.")

    def names(self) -> list[str]:
        """What is compared."""
        if self.policies == "all":
            return [method.name for method in METHODS]
        return [name.strip() for name in self.policies.split(",")]

    def run(self) -> dict[str, Any]:
        clock = Stopwatch()
        shared = {field.name: getattr(self, field.name) for field in fields(Sampling)}
        variants = [Sampling(**{**shared, "policy": name}).only_what_it_reads() for name in self.names()]
        for variant in variants:
            variant.build_policy()
        puzzles, model = self.read(), self.load_for(*(variant.method() for variant in variants))
        check_model(model.facts)
        runs = {variant.policy: self.measure(model, puzzles, variant) for variant in variants}
        baseline = runs[variants[0].policy]

        table = Table(title=f"{len(puzzles)} puzzles, order {self.order or 'random'}, seed {self.seed}")
        for heading in (
            "policy",
            "solved %",
            "95 % interval",
            f"over {variants[0].policy}",
            "NFE",
            "remasks",
            "s / 1000",
        ):
            table.add_column(heading, justify="left" if heading == "policy" else "right")
        rows: dict[str, Any] = {}
        for name, run in runs.items():
            gain = paired_difference(run.solved.astype(float), baseline.solved.astype(float))
            rows[name] = {**run.summary(), "gain": gain.value, "gain_interval": [gain.low, gain.high]}
            table.add_row(
                name,
                f"{100 * run.success.value:.1f}",
                f"{100 * run.success.low:.1f} – {100 * run.success.high:.1f}",
                "" if run is baseline else f"{100 * gain.value:+.1f} [{100 * gain.low:+.1f}, {100 * gain.high:+.1f}]",
                f"{run.forwards.mean():.1f}",
                f"{run.remasks.mean():.1f}",
                f"{1000 * run.seconds / len(puzzles):.1f}",
            )
        console.print(table)
        record = clock.record("compare sudoku", self, seed=self.seed, model=model, name=self.model or "embedded")
        show_record(record)
        return {"policies": rows, "record": plain(record)}
