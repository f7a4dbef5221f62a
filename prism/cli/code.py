"""prism evaluate code."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prism.cli.command import Command, console, progress, show_record
from prism.data.code import MbppSplit, load_tasks
from prism.evaluation.code import evaluate_code, read_completions
from prism.evaluation.record import Stopwatch, plain
from prism.evaluation.sandbox import cores, strongest


@dataclass(frozen=True, kw_only=True)
class EvaluateCode(Command):
    """Run completions of programming tasks in a sandbox and count the tasks they solve."""

    completions: Path
    """A JSON object a line with task_id and completion; several lines for a task are several attempts."""
    tasks: str
    """A published file (HumanEval.jsonl.gz, HumanEvalPlus.jsonl.gz, mbpp.jsonl, sanitized-mbpp.json, MbppPlus.jsonl.gz) or a
    set on the hub: humaneval, humaneval+, mbpp, mbpp-sanitized, mbpp+."""
    split: str | None = None
    """Only this split of MBPP: prompt, test, validation or train."""
    seconds: float | None = None
    """Time for each program, 10 s and 60 s for the plus versions if left out."""
    workers: int | None = None
    """Programs run at once, one for each core if left out."""
    unsafe: bool = False
    """Run the programs with your own rights where this machine can isolate them in no way."""

    def check(self) -> None:
        super().check()
        for flag, value in (("--seconds", self.seconds), ("--workers", self.workers)):
            if value is not None and value <= 0:
                raise ValueError(f"{flag} {value}: must be above 0.")
        if self.split is not None and self.split.upper() not in MbppSplit.__members__:
            names = ", ".join(split.name.lower() for split in MbppSplit)
            raise ValueError(f"--split {self.split}: choose from {names}.")
        if not self.completions.is_file():
            raise ValueError(f"--completions {self.completions}: no such file.")

    def run(self) -> dict[str, Any]:
        clock, isolation = Stopwatch(), strongest(self.unsafe)
        tasks, completions = load_tasks(self.tasks), read_completions(self.completions)
        if self.split is not None:
            tasks = MbppSplit[self.split.upper()].of(tasks)
            if not tasks:
                raise ValueError(f"--split {self.split}: no task of {self.tasks} is in it; choose another.")
        attempts = sum(map(len, completions.values()))
        with progress(f"programs in {isolation.value}", attempts) as done:
            run = evaluate_code(
                tasks,
                completions,
                isolation=isolation,
                seconds=self.seconds,
                workers=self.workers or cores(),
                done=done,
            )
        chance = run.pass_at(1)
        summary = run.summary()
        console.print(
            f"[bold]{100 * chance.value:.1f} %[/bold] pass@1 on {len(tasks)} tasks (95 % interval {100 * chance.low:.1f} to "
            f"{100 * chance.high:.1f}), {attempts} programs: {summary['syntax_errors']} with syntax errors, "
            f"{summary['undefined_names']} with undefined names"
        )
        record = clock.record("evaluate code", self, seed=0)
        show_record(record, f"{isolation.value} · ")
        return {**summary, "programs": plain(run.attempts), "record": plain(record)}
