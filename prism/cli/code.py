"""prism evaluate code."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from prism.cli.command import (
    Command,
    WithCorrector,
    check_file,
    console,
    progress,
    require_head,
    show_record,
    warn_of_idleness,
    warn_of_length,
)
from prism.data.code import Instruction, MbppSplit, Prompt, Published, Stripped, Task, load_tasks
from prism.data.writing import Writing
from prism.evaluation.code import evaluate_code, read_completions
from prism.evaluation.completions import Question, write_completions
from prism.evaluation.corrections import by_task, corrections, page, solutions, summary
from prism.evaluation.extraction import require_pyflakes
from prism.evaluation.record import Stopwatch, plain
from prism.evaluation.samples import weights_digest
from prism.evaluation.sandbox import NO_ISOLATION, Isolation, available, cores, strongest
from prism.recipes.sampling import pick
from prism.recipes.writing import TextSampling

PROMPTS: dict[str, Prompt] = {
    "published": Published(),
    "stripped": Stripped(),
    "instruction": Instruction(Published()),
    "stripped-instruction": Instruction(Stripped()),
}
BESIDE = ("output", "count", "batch", "device")
"""Settings that do not change what is written for a task (batch: without a cache)."""


def isolation(unsafe: bool) -> Isolation:
    """The best to be had, or a complaint that names the option."""
    if not available() and not unsafe:
        raise ValueError(
            f"{NO_ISOLATION}; run on one that can, or give --unsafe true to run them with your own rights."
        )
    return strongest(unsafe)


@dataclass(frozen=True, kw_only=True)
class Generating(WithCorrector, TextSampling):
    """How solutions are asked for and written."""

    prompt: str = "published"
    """What the model reads: published (the benchmark's own prompt), stripped (the words and the function's name, as the PRISM
    paper's code asks), instruction or stripped-instruction (the same within a request for one block of Python)."""
    chat: bool = False
    """Ask in the tokenizer's chat template."""
    system: str | None = None
    """In a chat: what the model is told before."""
    new_tokens: int = 512
    """Tokens for each solution."""
    count: int = 1
    """Solutions of each task, for pass@k."""
    output: Path | None = None
    """Where they are kept, completions.jsonl if left out. The same command goes on with what is there."""

    def file(self) -> Path:
        return Path("completions.jsonl") if self.output is None else self.output

    def given(self) -> list[str]:
        """The options somebody set."""
        return [f"--{f.name}" for f in fields(Generating) if getattr(self, f.name) != f.default]

    def check_generating(self) -> None:
        self.check_writing()
        check_file("--output", self.file())
        pick(self.prompt, PROMPTS, "prompt")
        for flag, value in (("--new_tokens", self.new_tokens), ("--count", self.count)):
            if value < 1:
                raise ValueError(f"{flag} {value}: must be at least 1.")
        self.check_length(self.new_tokens)
        warn_of_idleness(self, self.new_tokens)
        if self.system is not None and not self.chat:
            raise ValueError("--system is part of a chat; give --chat true too.")

    def generate(self, tasks: dict[int, Task], model: Any) -> dict[str, object]:
        """Solutions of the tasks, by number, in the file; what they cost."""
        require_head(model, self.method())
        writing = self.writing_of_text(model)
        writer = self.build_writer(model, writing, self.new_tokens, self.torch_device())
        questions = [Question(task.id, self._asked(writing, task), number) for number, task in tasks.items()]
        warn_of_length(model, max(len(question.prompt) for question in questions) + self.new_tokens)
        beside = BESIDE if self.cache is None else [name for name in BESIDE if name != "batch"]
        settings = {f.name: plain(getattr(self, f.name)) for f in fields(Generating) if f.name not in beside}
        with progress("solutions", len(questions) * self.count) as done:
            return write_completions(
                self.file(),
                questions,
                writer,
                count=self.count,
                seed=self.seed,
                settings={**settings, "weights": weights_digest(model)},
                done=done,
            )

    def _asked(self, writing: Writing, task: Task) -> list[int]:
        prompt = PROMPTS[self.prompt]
        if not self.chat:
            return writing.prompt(prompt.text(task))
        told = [] if self.system is None else [{"role": "system", "content": self.system}]
        return writing.chat([*told, *prompt.messages(task)])


@dataclass(frozen=True, kw_only=True)
class EvaluateCode(Generating, Command):
    """Write solutions of programming tasks or take given ones, run them in a sandbox and count the tasks they solve."""

    completions: Path | None = None
    """Judge these instead of writing any: a JSON object a line with task_id and completion; several lines for a task are
    several attempts."""
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
        require_pyflakes()  # or it would be missed when all is written
        for flag, value in (("--seconds", self.seconds), ("--workers", self.workers)):
            if value is not None and value <= 0:
                raise ValueError(f"{flag} {value}: must be above 0.")
        if self.split is not None and self.split.upper() not in MbppSplit.__members__:
            names = ", ".join(split.name.lower() for split in MbppSplit)
            raise ValueError(f"--split {self.split}: choose from {names}.")
        if self.completions is None:
            if self.model is None:
                raise ValueError("Name a --model to write solutions, or give some to judge with --completions.")
            self.check_generating()
        elif self.given():
            raise ValueError(f"{', '.join(self.given())}: with --completions nothing is written; leave it out.")
        elif not self.completions.is_file():
            raise ValueError(f"--completions {self.completions}: no such file.")

    def run(self) -> dict[str, Any]:
        return self.judged(lambda: self.load_for(self.method()))

    def judged(self, load: Callable[[], Any]) -> dict[str, Any]:
        """What a model writes that is loaded when all else is known to be well; or the given completions, and no model."""
        clock, isolated = Stopwatch(), isolation(self.unsafe)
        tasks = load_tasks(self.tasks)
        numbers = {task.id: number for number, task in enumerate(tasks)}
        if self.split is not None:
            tasks = MbppSplit[self.split.upper()].of(tasks)
            if not tasks:
                raise ValueError(f"--split {self.split}: no task of {self.tasks} is in it; choose another.")
        model = None if self.completions else load()
        costs = {} if model is None else self.generate({numbers[task.id]: task for task in tasks}, model)
        completions = read_completions(self.completions or self.file())
        if model is not None:  # the file may hold solutions of other splits, and more of each task
            completions = {task.id: completions[task.id][: self.count] for task in tasks}
        attempts = sum(map(len, completions.values()))
        with progress(f"programs in {isolated.value}", attempts) as done:
            run = evaluate_code(
                tasks,
                completions,
                isolation=isolated,
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
        about = {} if model is None else {"model": model, "name": self.model}
        record = clock.record("evaluate code", self, seed=self.seed, **about)
        show_record(record, f"{isolated.value} · ")
        return {**summary, **costs, "programs": plain(run.attempts), "record": plain(record)}


@dataclass(frozen=True, kw_only=True)
class CompareCode(Command):
    """Show task by task which syntax errors and undefined names of some solutions others repair, and which they introduce.
    Programs are read, not run."""

    tasks: str
    """A published file of tasks or a set on the hub, as for prism evaluate code."""
    before: Path
    """Solutions without self-correction: a JSON object a line with task_id and completion, the first of each task counts."""
    after: Path
    """Solutions of the same tasks with it."""
    page: Path | None = None
    """Write the diffs to this file, in Markdown."""

    def check(self) -> None:
        super().check()
        for flag, path in (("--before", self.before), ("--after", self.after)):
            if not path.is_file():
                raise ValueError(f"{flag} {path}: no such file.")
        if self.page is not None:
            check_file("--page", self.page)

    def run(self) -> dict[str, Any]:
        clock, tasks = Stopwatch(), load_tasks(self.tasks)
        written = [read_completions(path) for path in (self.before, self.after)]
        in_both = [task for task in tasks if all(task.id in found for found in written)]
        if not in_both:
            raise ValueError(
                f"{self.before} and {self.after} have no task of {self.tasks} in common; its first is {tasks[0].id}, "
                f"theirs are {next(iter(written[0]))} and {next(iter(written[1]))}."
            )
        pairs = corrections(*(solutions(in_both, found) for found in written))
        found = summary(pairs)
        if self.page is not None:
            self.page.write_text(page(f"{self.before.name} and {self.after.name}", pairs), encoding="utf-8")
        changes = found["changes"]
        console.print(
            f"[bold]{changes['repaired']} of {found['syntax_errors_before']}[/bold] syntax errors repaired, "
            f"{changes['broken']} introduced; undefined names gone from {changes['defined']} programs, introduced into "
            f"{changes['undefined']}; {found['over_corrections']} over-corrections in {len(in_both)} of {len(tasks)} tasks"
        )
        record = clock.record("compare code", self, seed=0)
        show_record(record)
        return {**found, "tasks": by_task(pairs), "record": plain(record)}
