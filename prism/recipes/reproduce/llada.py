"""The paper's largest experiment: PRISM on LLaDA-8B-Instruct, judged by HumanEval and MBPP (Section 4.3, Table 1, and the
appendix "Additional experimental details on LLaDA"), and the two analyses of Section 4.4 that take the same model: the syntax
errors it repairs, and the tuned model judging what the untuned one writes.

The model is fine-tuned once on opc-sft-stage2. Then every method writes with the same weights: what is called MDM there takes
nothing back; ReMDM takes back random tokens, ReMDM-conf those that were least likely when they were committed, PRISM those of
the lowest quality, all three exactly K_block in each block, spread over its steps from the middle.

Everything is done by two other commands, `prism finetune --recipe llada` and `prism evaluate code`; this study knows which
words to say to them, and what the paper found. Where the paper says nothing: tasks are asked as its code asks them (in words,
without signature and tests; all 974 tasks of MBPP), but in the chat template that LLaDA-Instruct was tuned with and that our
fine-tuning uses. N counts forward passes over 1,024 generated tokens; the authors' code counts the prompt's tokens too, which
leaves it fewer. The analyses are made at every N and K_block, the paper not saying which were its own. Texts end at their
end-of-text token, which changes no token before it: no earlier block is taken up again.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from prism.data.code import Task, digest_of
from prism.evaluation.code import read_completions
from prism.evaluation.corrections import by_task, corrections, page, solutions, summary
from prism.evaluation.record import Stopwatch, plain, write_json
from prism.evaluation.samples import Together
from prism.evaluation.statistics import paired_difference
from prism.models.folder import files_digest
from prism.recipes.reproduce.workshop import Workshop

METHODS = {"MDM": "vanilla", "ReMDM": "random", "ReMDM-conf": "remdm-conf-topk", "PRISM": "prism"}
"""The paper's names and ours."""
DATA = (
    "--dataset OpenCoder-LLM/opc-sft-stage2 --dataset_config educational_instruct "
    "--prompt_field instruction --completion_field output"
)
TASKS = {"humaneval": [f"HumanEval/{n}" for n in range(164)], "mbpp": [f"Mbpp/{n}" for n in range(1, 975)]}
"""The ids of each benchmark, all of which the paper's figures are about."""
ANALYSED = "humaneval"
"""The benchmark of the paper's analyses."""
PAUSE = 5.0
"""Seconds between two looks for a file that another process writes."""

Say = Callable[[Sequence[str]], Mapping[str, Any]]
"""Runs a command given as words, as the command line would, and returns its result."""


@dataclass(frozen=True)
class Scale:
    """How large to do it."""

    tuning: str
    """Words for `prism finetune` that go before the recipe's settings."""
    batch: int
    """Sequences per step, over all processes."""
    at_once: int
    """Sequences a process has room for, at most."""
    sweep: Mapping[int, tuple[int, ...]]
    """Steps N and the K_block tried with them."""
    new_tokens: int
    block: int
    dtype: str
    """Of the weights that write."""
    writing_at_once: int = 8
    whole: bool = True
    """Whether all tasks of the benchmarks must be there."""


SCALES: dict[str, Scale] = {
    "paper": Scale(
        # 5 % of 118,278 rows held out, as in the authors' code; measuring on them takes as long as a dozen steps
        tuning="--held_out 5914 --evaluate_every 5000",
        batch=144,
        at_once=4,
        sweep={256: (4, 6), 512: (8, 10, 12, 14, 16), 1024: (8, 10, 12, 14, 16)},
        new_tokens=1024,
        block=32,
        dtype="bfloat16",
    ),
    "tiny": Scale(
        tuning="--base float32 --precision fp32 --lora_rank 4 --lora_alpha 4 --steps 2 --held_out 2 --length 200",
        batch=4,
        at_once=2,
        sweep={8: (1, 2), 16: (4,)},
        new_tokens=16,
        block=8,
        dtype="float32",
        whole=False,
    ),
}


@dataclass(frozen=True)
class Benchmark:
    source: str
    """A published file, or a name on the hub."""
    tasks: Sequence[Task]

    def describe(self) -> dict[str, Any]:
        return {"source": self.source, "tasks": len(self.tasks), "digest": digest_of(self.tasks)}


def check_tasks(benchmark: str, tasks: Sequence[Task], *, whole: bool) -> None:
    """They must be that benchmark's, and where it is asked for `whole`, all of them."""
    given, known = [task.id for task in tasks], TASKS[benchmark]
    if strange := [task for task in given if task not in known]:
        raise ValueError(f"{strange[0]} is none of the benchmark's tasks, {known[0]} to {known[-1]}.")
    missing = [task for task in known if task not in given]
    if whole and missing:
        raise ValueError(
            f"{len(missing)} of the benchmark's {len(known)} tasks are missing, {missing[0]} the first; the paper's figures "
            "are of all."
        )


@dataclass(frozen=True)
class Run:
    """One way of writing, on one benchmark."""

    benchmark: str
    method: str
    """By the paper's name."""
    steps: int
    k_block: int | None = None
    untuned: bool = False
    """Whether the model as it came writes. Quality, where it is asked for, is the tuned one's, for a second forward pass."""

    @property
    def name(self) -> str:
        name = f"{self.benchmark}_{self.steps}_{METHODS[self.method]}"
        name = name if self.k_block is None else f"{name}_{self.k_block}"
        return f"{name}_untuned" if self.untuned else name


class LladaStudy:
    """The tuned model and the runs by name, each made when it is first asked for.

    Several processes tune together; afterwards each makes its share of the runs, and whoever needs another one's waits for its
    file. Nothing else passes between them then, so one may be hours ahead.
    """

    def __init__(
        self,
        scale: Scale,
        workshop: Workshop,
        model: str,
        data: Path | None,
        benchmarks: Mapping[str, Benchmark],
        say: Say,
        together: Together,
    ) -> None:
        """`data`: JSON lines instead of the paper's."""
        self.scale, self.workshop, self.model, self.data = scale, workshop, model, data
        self.benchmarks, self.say, self.together = benchmarks, say, together
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    def describe(self) -> dict[str, Any]:
        """What a folder of this study must have been made with."""
        data = None if self.data is None else f"{self.data} {files_digest(self.data)}"
        benchmarks = {name: benchmark.describe() for name, benchmark in self.benchmarks.items()}
        return {"scale": self.scale, "model": self.model, "data": data, "benchmarks": benchmarks}

    # ── tuning ──────────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def tuned(self) -> Path:
        return self.workshop.models / "prism"

    def tune(self) -> None:
        """Make the tuned model if it is not there yet; before anything else, and by all processes together."""
        story = self.workshop.models / "finetune.json"
        if not story.is_file():
            self.workshop.tell("  training prism")
            result = self.say(self.finetune_words())
            if self.together.is_main:
                write_json(story, result)
        self.together.gathered([self.together.rank])  # the main process saves; nobody reads before

    def finetune_words(self) -> list[str]:
        scale, folder = self.scale, self.tuned
        data = DATA.split() if self.data is None else ["--data", str(self.data)]
        shares = {"--batch": scale.batch, "--accumulate": accumulate(scale, self.together.size)}
        numbers = [word for flag, number in shares.items() for word in (flag, str(number))]
        where = ["--model", self.model, *data, "--output", str(folder), "--resume", "true"]
        return ["finetune", "--recipe", "llada", *where, *numbers, *scale.tuning.split()]

    # ── writing ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def runs(self, benchmark: str, steps: int) -> list[Run]:
        swept = [method for method in METHODS if method != "MDM"]
        tried = [Run(benchmark, method, steps, k) for method in swept for k in self.scale.sweep[steps]]
        return [Run(benchmark, "MDM", steps), *tried]

    def transferred(self) -> list[Run]:
        """The untuned model alone, and judged by the tuned one; in this order, so that models are loaded once."""
        alone = [Run(ANALYSED, "MDM", steps, untuned=True) for steps in self.scale.sweep]
        swept = self.scale.sweep.items()
        return [*alone, *(Run(ANALYSED, "PRISM", steps, k, untuned=True) for steps, ks in swept for k in ks)]

    def corrected(self) -> list[tuple[Run, Run]]:
        """What is compared: MDM's run and PRISM's."""
        swept = self.scale.sweep.items()
        return [(Run(ANALYSED, "MDM", steps), Run(ANALYSED, "PRISM", steps, k)) for steps, ks in swept for k in ks]

    def all_runs(self) -> list[Run]:
        """The longest first, so that shares come out even; last those of other models."""
        steps = sorted(self.scale.sweep, reverse=True)
        table = [run for n in steps for benchmark in reversed(list(self.benchmarks)) for run in self.runs(benchmark, n)]
        return [*table, *self.transferred()]

    def needed(self, results: Iterable[str]) -> list[Run]:
        """The runs that results of these names are made from."""
        needs = {f"{name}_{steps}": self.runs(name, steps) for name in self.benchmarks for steps in self.scale.sweep}
        needs |= {"transfer": self.transferred(), "corrections": [run for pair in self.corrected() for run in pair]}
        wanted = {run for result in results for run in needs.get(result, [])}
        return [run for run in self.all_runs() if run in wanted]

    def make_share(self, wanted: Sequence[Run]) -> None:
        """Those of the wanted runs that fall to this process."""
        for run in wanted:
            if self._is_mine(run):
                self.made(run)

    def _is_mine(self, run: Run) -> bool:
        return self.all_runs().index(run) % self.together.size == self.together.rank

    def made(self, run: Run) -> dict[str, Any]:
        """What `prism evaluate code` found, made now or waited for if it is not there yet."""
        path = self.runs_folder / f"{run.name}.json"
        if not path.is_file():
            if self._is_mine(run):
                self.workshop.tell(f"  {run.name}")
                self.runs_folder.mkdir(parents=True, exist_ok=True)
                write_json(path, self.say(self.evaluate_words(run)))
            while not path.is_file():
                time.sleep(PAUSE)
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return found

    @property
    def runs_folder(self) -> Path:
        return self.workshop.models / "runs"

    def completions(self, run: Run) -> dict[str, list[str]]:
        """What a run that is made has written, by task."""
        return read_completions(self._completions(run))

    def _completions(self, run: Run) -> Path:
        return self.runs_folder / f"{run.name}.jsonl"

    def evaluate_words(self, run: Run) -> list[str]:
        scale = self.scale
        judged = ["--corrector", str(self.tuned)] if run.untuned and run.method == "PRISM" else []
        taking_back = [] if run.k_block is None else ["--k_block", str(run.k_block)]
        settings = {
            "--model": self.model if run.untuned else self.tuned,
            "--tasks": self.benchmarks[run.benchmark].source,
            "--output": self._completions(run),
            "--policy": METHODS[run.method],
            "--steps": run.steps,
            "--new_tokens": scale.new_tokens,
            "--block": scale.block,
            "--batch": scale.writing_at_once,
            "--dtype": scale.dtype,
        }
        words = [word for flag, value in settings.items() for word in (flag, str(value))]
        asked = (
            "--prompt stripped --chat true --order probability --temperature 0"  # "nucleus p = 0": the likeliest token
        )
        return ["evaluate", "code", *words, *judged, *taking_back, *asked.split()]


def accumulate(scale: Scale, processes: int) -> int:
    """Micro-batches: the fewest that share a batch equally and fit."""
    for count in range(1, scale.batch // processes + 1):
        if scale.batch % (processes * count) == 0 and scale.batch <= scale.at_once * processes * count:
            return count
    raise ValueError(
        f"A batch of {scale.batch} cannot be shared equally by {processes} processes; launch a number that divides it."
    )


# ── results ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def tuning(study: LladaStudy) -> dict[str, Any]:
    """What the fine-tuning came to on rows held out."""
    found: dict[str, Any] = json.loads((study.workshop.models / "finetune.json").read_text(encoding="utf-8"))
    return found


def methods(benchmark: str, steps: int) -> Callable[[LladaStudy], dict[str, Any]]:
    def measure(study: LladaStudy) -> dict[str, Any]:
        clock, runs = Stopwatch(), study.runs(benchmark, steps)
        vanilla = study.made(runs[0])
        rows = [_row(run, study.made(run), vanilla) for run in runs]
        record = clock.record("reproduce llada", study.scale, seed=0, device=study.device)
        return {"rows": rows, "record": plain(record), "first_run": vanilla["record"]}

    measure.__doc__ = f"Every method on {benchmark} with {steps} forward passes, over the sweep of K_block."
    return measure


def transfer(study: LladaStudy) -> dict[str, Any]:
    """The tuned model's quality for what the untuned one writes, which its head never saw; two forward passes a step."""
    clock, rows = Stopwatch(), []
    for run in study.transferred():
        alone = study.made(Run(run.benchmark, "MDM", run.steps, untuned=True))
        who = "untuned, alone" if run.method == "MDM" else "untuned, judged by the tuned"
        rows.append({"who": who, **_row(run, study.made(run), alone)})
    record = clock.record("reproduce llada", study.scale, seed=0, device=study.device)
    return {"rows": rows, "record": plain(record)}


def corrected(study: LladaStudy) -> dict[str, Any]:
    """What PRISM mends and what it breaks of what MDM writes; the diffs go to pages of their own."""
    clock, rows, tasks = Stopwatch(), [], study.benchmarks[ANALYSED].tasks
    for pair in study.corrected():
        for run in pair:
            study.made(run)
        changes = corrections(*(solutions(tasks, study.completions(run)) for run in pair))
        _, after = pair
        name = f"corrections_{after.steps}_{after.k_block}.md"
        title = f"MDM and PRISM with K_block {after.k_block} on {ANALYSED}, N = {after.steps}"
        (study.workshop.results / name).write_text(page(title, changes), encoding="utf-8")
        about = {"steps": after.steps, "k_block": after.k_block, "page": name}
        rows.append({**about, **summary(changes), "tasks": by_task(changes)})
    record = clock.record("reproduce llada", study.scale, seed=0, device=study.device)
    return {"rows": rows, "record": plain(record)}


def _row(run: Run, found: Mapping[str, Any], vanilla: Mapping[str, Any]) -> dict[str, Any]:
    gain = paired_difference(_solved(found), _solved(vanilla))
    kept = {name: value for name, value in found.items() if name not in ("programs", "record")}
    syntax = {
        "repaired": int((_parses(found) & ~_parses(vanilla)).sum()),
        "broken": int((~_parses(found) & _parses(vanilla)).sum()),
    }
    compared = {"gain": gain.value, "gain_interval": [gain.low, gain.high], "syntax": syntax}
    return {"method": run.method, "k_block": run.k_block, "steps": run.steps, **kept, **compared}


def _solved(found: Mapping[str, Any]) -> np.ndarray:
    return np.array([float(tried[0]["report"]["outcome"] == "PASSED") for tried in found["programs"].values()])


def _parses(found: Mapping[str, Any]) -> np.ndarray:
    return np.array([tried[0]["parses"] for tried in found["programs"].values()], bool)


def results_of(study: LladaStudy) -> dict[str, Callable[[LladaStudy], dict[str, Any]]]:
    """All results by the name of their file."""
    pairs = [(benchmark, steps) for benchmark in study.benchmarks for steps in study.scale.sweep]
    tables = {f"{benchmark}_{steps}": methods(benchmark, steps) for benchmark, steps in pairs}
    return {"tuning": tuning, **tables, "transfer": transfer, "corrections": corrected}
