"""Programming tasks judged by running them: how many are solved, how many programs are not even Python.

Completions come from anywhere: each is cut to a program (`extraction`), run against its task's tests (`sandbox`), and counted.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import comb
from pathlib import Path

import numpy as np

from prism.data.code import Task
from prism.evaluation.extraction import extract, parses, undefined_names
from prism.evaluation.record import Stopwatch
from prism.evaluation.sandbox import Isolation, Limits, Outcome, Program, Report, run_all, strongest
from prism.evaluation.statistics import Interval, bootstrap_mean, rate


@dataclass(frozen=True)
class Attempt:
    """One completion and what became of it."""

    task: str
    program: str
    parses: bool
    undefined: list[str]
    """Names that are used and nowhere defined."""
    report: Report


@dataclass(frozen=True)
class CodeRun:
    """All attempts at a set of tasks."""

    attempts: dict[str, list[Attempt]]
    isolation: Isolation
    seconds: float

    @property
    def samples(self) -> int:
        """Attempts at the task that has fewest; pass@k can be told up to this k."""
        return min(len(attempts) for attempts in self.attempts.values())

    def pass_at(self, k: int) -> Interval:
        """The chance that one of k attempts solves a task: Chen et al.'s unbiased estimate, bootstrapped over tasks.

        Where every task is wholly solved or not at all, as with one attempt each, that is a rate of tasks and has Wilson's
        interval; so it has where resampling says nothing, all tasks having the same chance.
        """
        if not 1 <= k <= self.samples:
            raise ValueError(f"pass@{k} needs at least {k} attempts at every task; there are {self.samples}.")
        counts = [(len(tried), sum(a.report.passed for a in tried)) for tried in self.attempts.values()]
        chances = np.array([1 - comb(n - c, k) / comb(n, k) for n, c in counts])
        if set(chances) <= {0.0, 1.0} or len(set(chances)) == 1:
            return rate(float(chances.sum()), len(chances))
        return bootstrap_mean(chances)

    def summary(self) -> dict[str, object]:
        """What a results file holds."""
        attempts = [attempt for tried in self.attempts.values() for attempt in tried]
        outcomes = Counter(attempt.report.outcome for attempt in attempts)
        chances = {k: self.pass_at(k) for k in (1, 5, 10, 100) if k <= self.samples}
        return {
            **{f"pass@{k}": chance.value for k, chance in chances.items()},
            **{f"pass@{k}_interval": [chance.low, chance.high] for k, chance in chances.items()},
            "tasks": len(self.attempts),
            "attempts": len(attempts),
            "outcomes": {outcome.name: outcomes[outcome] for outcome in Outcome if outcomes[outcome]},
            "syntax_errors": sum(not attempt.parses for attempt in attempts),
            "undefined_names": sum(bool(attempt.undefined) for attempt in attempts),
            "isolation": self.isolation.name,
            "seconds": self.seconds,
        }


def evaluate_code(
    tasks: Sequence[Task],
    completions: Mapping[str, Sequence[str]],
    *,
    isolation: Isolation | None = None,
    seconds: float | None = None,
    workers: int | None = None,
    done: Callable[[int], object] | None = None,
) -> CodeRun:
    """Judge the completions, by task id; every task needs at least one. `seconds` overrides the tasks' own limits."""
    known = {task.id for task in tasks}
    missing = [task.id for task in tasks if not completions.get(task.id)]
    unknown = [given for given in completions if given not in known]
    if missing:
        strange = f", and there are some for {unknown[0]!r}, which is no task here" if unknown else ""
        raise ValueError(
            f"{len(missing)} of {len(tasks)} tasks have no completion, {missing[0]} the first{strange}; give one for each."
        )
    if unknown:
        others = f" and {len(unknown) - 1} more" if len(unknown) > 1 else ""
        raise ValueError(f"There are completions for what is no task here: {unknown[0]}{others}; leave them out.")
    clock, isolation = Stopwatch(), isolation or strongest()
    tried = [(task, extract(text, task)) for task in tasks for text in completions[task.id]]
    undefined = [undefined_names(program) for _, program in tried]  # first, lest pyflakes be missed when all has run
    reports = run_all(
        [Program(program, task.tests, task.entry_point) for task, program in tried],
        [Limits(seconds=seconds or task.seconds, memory=task.memory) for task, _ in tried],
        isolation,
        workers=workers,
        done=done,
    )
    attempts: dict[str, list[Attempt]] = {task.id: [] for task in tasks}
    for (task, program), names, report in zip(tried, undefined, reports, strict=True):
        attempts[task.id].append(Attempt(task.id, program, parses(program), names, report))
    return CodeRun(attempts, isolation, clock.seconds)


def read_completions(path: Path) -> dict[str, list[str]]:
    """A JSON object a line, with `task_id` and `completion` (human-eval's form) or `solution` (EvalPlus's)."""
    found: dict[str, list[str]] = {}
    try:
        whole = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not text in UTF-8 ({error.reason}); convert it first.") from error
    for number, line in enumerate(whole.split("\n"), start=1):  # U+2028 ends no row
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            text = row["completion"] if "completion" in row else row["solution"]
            task = str(row["task_id"])
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path}, line {number}: expected a JSON object with task_id and completion.") from error
        if not isinstance(text, str):
            raise ValueError(f"{path}, line {number}: the completion is {json.dumps(text)[:40]}; it must be a string.")
        found.setdefault(task, []).append(text)
    if not found:
        raise ValueError(f"{path}: no completions in it; expected a JSON object with task_id and completion a line.")
    return found
