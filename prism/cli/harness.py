"""prism evaluate harness: the tasks of lm-eval."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.table import Table
from torch.nn import Module

from prism.cli.command import (
    Command,
    WithModel,
    console,
    own_length,
    progress,
    require_head,
    show_record,
    warn_of_idleness,
)
from prism.evaluation.record import Stopwatch, plain
from prism.models.cached import Cached
from prism.recipes.writing import TextSampling


@dataclass(frozen=True, kw_only=True)
class InHarness(WithModel, TextSampling):
    """A model as the harness knows it."""

    temperature: float = 0.0
    """Of the draws; 0 takes the most likely token, which nearly all tasks mean. What a task says of it is not followed."""
    new_tokens: int = 256
    """Tokens for an answer where the task does not say."""
    samples: int = 128
    """Forward passes behind each likelihood, which is a lower bound."""

    def check_asked(self) -> None:
        """What can be known to be wrong before the model is loaded."""
        self.check_writing()
        for flag, value in (("--new_tokens", self.new_tokens), ("--samples", self.samples)):
            if value < 1:
                raise ValueError(f"{flag} {value}: must be at least 1.")
        if self.model is None:
            raise ValueError(
                "Name a --model; the embedded ones solve Sudoku and tell stories, and answer no questions."
            )

    def check_answers(self, new_tokens: int) -> None:
        """Settings that cannot work on answers of that many tokens."""
        try:
            self.check_length(new_tokens)
        except ValueError as error:
            raise ValueError(f"A task asks for answers of {new_tokens} tokens. {error}") from error
        warn_of_idleness(self, new_tokens)

    def ingredients(self) -> dict[str, Any]:
        """What `HarnessModel` is made of."""
        model = self.load()
        require_head(model, self.method())
        return {
            "writer": self.build_writer(model, self.writing_of_text(model), self.new_tokens, self.torch_device()),
            "length": own_length(model),
            "samples": self.samples,
            "seed": self.seed,
            "check": self.check_answers,
            "watch": progress,
            "tell": partial(console.print, soft_wrap=True),
        }


def runs_programs(index: Mapping[str, Any], task: str | Mapping[str, Any]) -> bool:
    """Whether a task runs what is written, or one of those that a group or a tag names; lm-eval tells once all is loaded. Its
    index says so since 0.4.13."""
    entry = index.get(task) if isinstance(task, str) else None
    about = getattr(entry, "cfg", None) or {} if isinstance(task, str) else task
    named = about.get("task", ()) if about else getattr(entry, "tags", ())  # a tag has nothing but names
    if isinstance(named, str):
        named = () if isinstance(task, str) else (named,)  # its own name, or that of the one it changes
    return about.get("unsafe_code", False) is not False or any(runs_programs(index, one) for one in named)


@dataclass(frozen=True, kw_only=True)
class EvaluateHarness(InHarness, Command):
    """Run tasks of EleutherAI's lm-evaluation-harness; `prism evaluate --harness TASK` is the same."""

    task: str
    """Names of tasks, separated by commas."""
    include: Path | None = None
    """A folder with tasks of your own, in YAML."""
    fewshot: int | None = None
    """Examples before each question; the task's own number if left out."""
    limit: int | None = None
    """Only the first so many questions of each task."""
    chat: bool = False
    """Ask in the tokenizer's chat template."""
    system: str | None = None
    """In a chat: what the model is told before."""

    def check(self) -> None:
        super().check()
        self.check_asked()
        if self.limit is not None and self.limit < 1:
            raise ValueError(f"--limit {self.limit}: ask at least 1 question.")
        if self.include is not None and not self.include.is_dir():
            raise ValueError(f"--include {self.include}: no such folder.")
        if self.system is not None and not self.chat:
            raise ValueError("--system is part of a chat; give --chat true too.")
        if find_spec("lm_eval") is None:
            raise ValueError("lm-eval is not installed; pip install 'prism-mdm[harness]'.")

    def run(self) -> dict[str, Any]:
        from lm_eval import simple_evaluate
        from lm_eval.tasks import TaskManager

        from prism.evaluation.harness import HarnessModel

        clock = Stopwatch()
        manager = TaskManager(include_path=None if self.include is None else str(self.include))
        tasks = self.task.split(",")
        for task in tasks:
            if not manager.match_tasks([task]):
                raise ValueError(f"--task {task}: lm-eval knows no such task; --include names a folder of your own.")
            if runs_programs(manager.task_index, task):
                raise ValueError(
                    f"--task {task}: it runs what is written, without a sandbox; take prism evaluate code for programs."
                )
        model = HarnessModel(**self.ingredients())
        found = simple_evaluate(
            model,
            tasks=tasks,
            num_fewshot=self.fewshot,
            limit=self.limit,
            apply_chat_template=self.chat,
            system_instruction=self.system,
            task_manager=manager,
            log_samples=False,
            random_seed=self.seed,
            numpy_random_seed=self.seed,
            torch_random_seed=self.seed,
            fewshot_random_seed=self.seed,
        )
        scores = {
            task: {name: value for name, value in of.items() if isinstance(value, int | float)}
            for task, of in found["results"].items()
        }
        table = Table("task", "measure", "value")
        for task, values in scores.items():
            for name, value in values.items():
                table.add_row(task, name, f"{value:.4f}")
        console.print(table)
        network = model.writer.model.model if isinstance(model.writer.model, Cached) else model.writer.model
        assert isinstance(network, Module)
        record = clock.record("evaluate harness", self, seed=self.seed, model=network, name=self.model)
        show_record(record)
        texts = max(1, len(model.costs))
        return {
            "results": scores,
            "questions": plain(found["n-samples"]),
            "versions": plain(found["versions"]),
            "nfe": sum(forwards for forwards, _ in model.costs) / texts,
            "remasks": sum(remasks for _, remasks in model.costs) / texts,
            "likelihoods": f"lower bounds from {self.samples} forward passes each",
            "record": plain(record),
        }
