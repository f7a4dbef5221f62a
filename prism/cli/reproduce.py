"""prism reproduce: a paper's experiment, end to end."""

from __future__ import annotations

import gc
import importlib.util
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from rich.table import Table

from prism.cli.code import EvaluateCode, isolation
from prism.cli.command import Command, check_file, check_folder, console, progress, show_record
from prism.data import sudoku
from prism.data.code import ON_THE_HUB, Task, load_tasks
from prism.evaluation.extraction import require_pyflakes
from prism.evaluation.mauve import require_mauve
from prism.evaluation.record import Stopwatch, plain
from prism.evaluation.samples import Together
from prism.evaluation.sandbox import cores
from prism.models.causal import load_llama2c
from prism.models.folder import files_digest, first_line
from prism.models.hub import model_files
from prism.recipes.known_truth import writing_of
from prism.recipes.reproduce import (
    functions,
    functions_report,
    functions_results,
    llada,
    llada_report,
    owt,
    owt_report,
    stories,
    stories_report,
    stories_results,
    sudoku_report,
    sudoku_results,
    wikipedia,
    wikipedia_report,
    wikipedia_results,
)
from prism.recipes.reproduce.functions import FunctionsStudy
from prism.recipes.reproduce.llada import Benchmark, LladaStudy
from prism.recipes.reproduce.owt import Ingredients, OwtStudy
from prism.recipes.reproduce.report import found_in
from prism.recipes.reproduce.stories import StoriesStudy
from prism.recipes.reproduce.sudoku import SCALES, SudokuStudy
from prism.recipes.reproduce.wikipedia import WikipediaStudy
from prism.recipes.reproduce.workshop import Workshop
from prism.recipes.sampling import pick
from prism.training.sharding import launched

Study = TypeVar("Study", SudokuStudy, FunctionsStudy, StoriesStudy, OwtStudy, LladaStudy, WikipediaStudy)
Made = TypeVar("Made")


@dataclass(frozen=True, kw_only=True)
class Reproduction(Command):
    output: Path | None = None
    """Folder for the models; runs/NAME-SCALE if left out."""
    results: Path | None = None
    """Folder for results and figures; OUTPUT/results if left out."""
    only: str | None = None
    """Names of the results to make, separated by commas; all if left out."""

    def check(self) -> None:
        super().check()
        for flag, path in (("--output", self.output), ("--results", self.results)):
            if path is not None:
                check_folder(flag, path)
        if importlib.util.find_spec("matplotlib") is None:
            raise ValueError("The figures need matplotlib; run: pip install 'prism-mdm[plot]'")

    def _workshop(self, name: str) -> Workshop:
        output = self.output or Path("runs") / name
        return Workshop(output, self.results or output / "results", console.print)

    def _make(
        self,
        name: str,
        study: Study,
        results: Mapping[str, Callable[[Study], Mapping[str, Any]]],
        report: Callable[[Path], Path],
        settings: Mapping[str, Any],
    ) -> dict[str, Any]:
        """All results that are wanted and not there yet, and the page about them."""
        clock, wanted = Stopwatch(), self._wanted(results)
        study.workshop.begin(settings)
        for result, make in wanted.items():
            console.print(f"[bold]{result}[/bold] {(make.__doc__ or '').strip()}")
            study.workshop.result(result, partial(make, study))
        page = report(study.workshop.results)
        console.print(f"figures and tables: {page}")
        record = clock.record(f"reproduce {name}", self, seed=0, device=study.device)
        show_record(record)
        return {"results": list(wanted), "page": str(page), "record": plain(record)}

    def _wanted(self, results: Mapping[str, Made]) -> dict[str, Made]:
        names = list(results) if self.only is None else [name.strip() for name in self.only.split(",")]
        return {name: pick(name, dict(results), "result (--only)") for name in names}


@dataclass(frozen=True, kw_only=True)
class ReproduceSudoku(Reproduction):
    """The paper's Sudoku experiment: pretrain, fine-tune with PRISM, compare everything, write results and draw figures.

    What its folders hold already is not made again: after an interruption the same command goes on.
    """

    scale: str = "tiny"
    """paper (28.6M parameters, one H200), small (5M, a laptop GPU), tiny (two CPU cores, minutes; it shows that everything
    runs and solves nothing)."""
    puzzles: Path | None = None
    """More puzzles to evaluate on beside our own, such as the paper's; called `paper` in the results."""

    def run(self) -> dict[str, Any]:
        scale = pick(self.scale, SCALES, "scale")
        given = {} if self.puzzles is None else {"paper": sudoku.read_puzzles(self.puzzles)}
        study = SudokuStudy(scale, self._workshop(f"sudoku-{self.scale}"), given)
        settings = {"scale": scale, "puzzles": {name: len(puzzles) for name, puzzles in given.items()}}
        return self._make("sudoku", study, sudoku_results.results_of(study), sudoku_report.write_report, settings)


@dataclass(frozen=True, kw_only=True)
class ReproduceFunctions(Reproduction):
    """Python functions completed from signature and docstring: train or adapt a model, tune it and compare methods.

    A body should be valid Python that uses only names that exist; also shown is what correction repairs and what it breaks.

    What its folders hold already is not made again: after an interruption the same command goes on.
    """

    data: Path
    """A folder of prism functions, made with --tokenizer or --vocabulary."""
    scale: str = "tiny"
    """full (one H200), small (two CPU cores, hours; for functions of a small --vocabulary), or tiny (a CPU, seconds; it shows
    that everything runs and writes nonsense)."""
    base: str | None = None
    """Folder, hub name or GGUF file of a Llama or Qwen with the same tokenizer, to adapt; left out, one is trained from
    nothing."""
    tasks: str = ""
    """Programming tasks to solve and run in a sandbox, separated by commas: files, or sets on the hub (humaneval, mbpp). Others
    may be named later, in the same folder."""
    unsafe: bool = False
    """Run the solutions of --tasks with your own rights where this machine can isolate them in no way."""

    def check(self) -> None:
        super().check()
        require_pyflakes()  # or it would be missed when all is trained
        if self._sources():
            isolation(self.unsafe)
        elif self.unsafe:
            raise ValueError("--unsafe true: without --tasks no program is run; leave it out.")

    def run(self) -> dict[str, Any]:
        scale, workshop = pick(self.scale, functions.SCALES, "scale"), self._workshop(f"functions-{self.scale}")
        study = FunctionsStudy(scale, workshop, self.data, self.base, self._sources(), unsafe=self.unsafe)
        functions_results.check_solved(study)
        base = None if self.base is None else files_digest(model_files(self.base))
        settings = {"scale": scale, "base": base, "functions": study.corpus.manifest["splits"]}
        results, report = functions_results.results_of(study), functions_report.write_report
        return self._make("functions", study, results, report, settings)

    def _sources(self) -> list[str]:
        return [source.strip() for source in self.tasks.split(",") if source.strip()]


@dataclass(frozen=True, kw_only=True)
class ReproduceKnownTruth(Reproduction):
    """Text whose true distribution is known: compare every method by the exact likelihood of what it writes.

    A causal model writes a corpus, a masked diffusion model learns it and is tuned with PRISM, and the causal model judges.

    What its folders hold already is not made again: after an interruption the same command goes on.
    """

    truth: Path
    """The causal model, a llama2.c checkpoint such as stories15M.bin."""
    scale: str = "tiny"
    """full (50M parameters, 302M tokens, one H200), or tiny (two CPU cores; it shows that everything runs)."""
    tokenizer: Path | None = None
    """Its tokenizer.bin, to read texts with; the one beside --truth if left out, and ids if there is none."""

    def run(self) -> dict[str, Any]:
        scale = pick(self.scale, stories.SCALES, "scale")
        truth = load_llama2c(self.truth)
        writing = writing_of(self.truth, self.tokenizer, truth.llama.config.vocab_size)
        study = StoriesStudy(scale, self._workshop(f"known-truth-{self.scale}"), truth, writing)
        settings = {"scale": scale, "truth": self.truth.name, "files": files_digest(self.truth)}
        results, report = stories_results.results_of(study), stories_report.write_report
        return self._make("known-truth", study, results, report, settings)


@dataclass(frozen=True, kw_only=True)
class ReproduceWikipedia(Reproduction):
    """Text at the paper's size: adapt a causal model to masked diffusion on Wikipedia, tune it and compare methods.

    It is tuned with PRISM on a fiftieth of the tokens; a causal model of another family judges the main methods.

    What its folders hold already, samples too, is not made again: after an interruption the same command goes on.
    """

    data: Path
    """A folder of prism tokenize, made with the tokenizer of --base."""
    base: str
    """The causal model to adapt, such as SmolLM2-135M: a folder, a hub name or a GGUF file of a Llama or Qwen."""
    judge: str
    """The causal model that gives perplexity and MAUVE's features, of another family: a folder, a hub name or a GGUF file."""
    scale: str = "tiny"
    """full (135M parameters, 295M tokens, 1,024 samples a row, one H200), or tiny (for tiny models on a CPU; it shows that
    everything runs)."""

    def check(self) -> None:
        super().check()
        if self.only is None or "mauve" in self.only:
            require_mauve("name the other results: --only")

    def run(self) -> dict[str, Any]:
        scale = pick(self.scale, wikipedia.SCALES, "scale")
        workshop = self._workshop(f"wikipedia-{self.scale}")
        study = WikipediaStudy(scale, workshop, self.data, self.base, self.judge)
        results, report = wikipedia_results.results_of(study), wikipedia_report.write_report
        return self._make("wikipedia", study, results, report, study.describe())


@dataclass(frozen=True, kw_only=True)
class ReproduceOwt(Reproduction):
    """The paper's OpenWebText experiment: tune MDLM's checkpoint, write and judge every row of the table, beside the paper's.

    Left to its defaults it is the paper's own configuration, with checkpoint, data, tokenizer and judge from the hub. What its
    folders hold already, samples too, is not made again: after an interruption the same command goes on.
    """

    scale: str = "paper"
    """paper (164M tokens, 5,000 samples at 64 to 1024 steps; a GPU and many hours), or tiny (a CPU; it shows that everything
    runs and means nothing)."""
    checkpoint: str = Ingredients.checkpoint
    """The masked diffusion model to begin with: a folder or a hub name."""
    data: str = Ingredients.data
    """A folder of prism tokenize, JSON lines or plain text (a file), or a dataset of the hub; of text as much as is needed."""
    tokenizer: str | None = None
    """The checkpoint's: a folder or a hub name. If left out the one beside the checkpoint, else that of a folder of tokens,
    else gpt2."""
    judge: str = Ingredients.judge
    """The causal model that gives perplexity and MAUVE's features: a folder, a hub name or a GGUF file."""
    batch: int | None = None
    """Sequences a step of fine-tuning, for the same number of tokens. 16 in 10,000 steps if left out; the paper may also mean
    256 in 625."""
    mauve: bool = True
    """Whether to compute MAUVE. It needs mauve-text, which is under the GPLv3: pip install 'prism-mdm[mauve]'."""

    def check(self) -> None:
        super().check()
        self._scale()
        if self.scale == "paper" and not torch.cuda.is_available():
            raise ValueError(
                "--scale paper needs a GPU and this machine has none; --scale tiny shows that everything runs."
            )
        if self.mauve and (self.only is None or "mauve" in self.only):
            require_mauve("leave it out: --mauve false")

    def _scale(self) -> owt.Scale:
        scale = pick(self.scale, owt.SCALES, "scale")
        return scale if self.batch is None else scale.in_batches_of(self.batch)

    def run(self) -> dict[str, Any]:
        scale, ingredients = self._scale(), Ingredients(self.checkpoint, self.data, self.judge, self.tokenizer)
        study = OwtStudy(scale, self._workshop(f"owt-{self.scale}"), ingredients, progress)
        tuning, results = scale.finetuning, owt.results_of(scale, with_mauve=self.mauve)
        console.print(f"{scale.tokens:,} tokens to tune on: {tuning.steps:,} steps of {tuning.batch} sequences")
        settings = {"scale": scale, "ingredients": ingredients, "files": files_digest(study.checkpoint)}
        return self._make("owt", study, results, _beside_the_papers, settings)


def _beside_the_papers(results: Path) -> Path:
    """The page; and every metric printed, a column for every number of steps, narrow enough for a log."""
    rows = {(row["row"], row["steps"]): row for row in owt_report.rows_of(found_in(results))}
    steps = sorted({number for _, number in rows})
    for metric, (title, _) in owt_report.METRICS.items():
        if not any(metric in row for row in rows.values()):
            continue
        shown = Table("", *map(str, steps), box=None, padding=(0, 1, 0, 0), pad_edge=False)
        for name in dict.fromkeys(name for name, _ in rows):
            row = next(found for (one, _), found in rows.items() if one == name)
            cells = (owt_report.cell(rows.get((name, number)), metric) for number in steps)
            shown.add_row(f"{row['method']}\n{row['weights']}", *cells)
        console.print(f"{title} by forward passes: ours (the paper's), and our 95 % interval", shown, "", sep="\n")
    return owt_report.write_report(results)


@dataclass(frozen=True, kw_only=True)
class ReproduceLlada(Reproduction):
    """The paper's LLaDA-8B experiment: fine-tune it with PRISM on code and solve HumanEval and MBPP with every method.

    What they solve is printed beside the paper's table, with what PRISM repairs and what it does for the untuned model.

    What its folders hold already is not made again: after an interruption the same command goes on. With accelerate launch
    several GPUs or machines tune together and share the writing.
    """

    scale: str = "paper"
    """paper (LLaDA-8B, many GPUs and days), or tiny (for a tiny model on a CPU; it shows that everything runs)."""
    model: str = "GSAI-ML/LLaDA-8B-Instruct"
    """Folder or hub name of the model to tune, with its tokenizer."""
    data: Path | None = None
    """JSON lines of conversations, as prism finetune takes them; opc-sft-stage2 from the hub, as in the paper, if left out."""
    humaneval: str = "humaneval"
    """HumanEval: a published file (HumanEval.jsonl.gz), or its name on the hub."""
    mbpp: str = "mbpp"
    """MBPP: a published file (mbpp.jsonl), or its name on the hub."""
    unsafe: bool = False
    """Run the programs with your own rights where this machine can isolate them in no way."""

    def check(self) -> None:
        super().check()
        require_pyflakes()  # or it would be missed when all is trained
        isolation(self.unsafe)
        llada.accumulate(pick(self.scale, llada.SCALES, "scale"), launched()[0])
        if self.data is not None and not self.data.is_file():
            raise ValueError(f"--data {self.data}: no such file; give JSON lines, or leave it out for the paper's.")
        for flag, tasks in (("--humaneval", self.humaneval), ("--mbpp", self.mbpp)):
            if Path(tasks).is_file():
                continue
            if tasks not in ON_THE_HUB:
                raise ValueError(f"{flag} {tasks}: neither a file nor one of {', '.join(ON_THE_HUB)}.")
            if importlib.util.find_spec("datasets") is None:
                raise ValueError(
                    f"{flag} {tasks}: sets of the hub are read with datasets; run: pip install 'prism-mdm[code]', or name the "
                    f"published file: {flag} FILE."
                )

    def _judging(self) -> list[str]:
        """Words for every evaluation: the processes of a machine share its cores, or programs would run out of time."""
        here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        return ["--workers", str(max(1, cores() // here)), *(["--unsafe", "true"] if self.unsafe else [])]

    def run(self) -> dict[str, Any]:
        scale, together = pick(self.scale, llada.SCALES, "scale"), Together()
        given = {"humaneval": self.humaneval, "mbpp": self.mbpp}
        tasks = {name: Benchmark(source, _tasks(name, source, whole=scale.whole)) for name, source in given.items()}
        say = _Commands(self._judging())
        study = LladaStudy(scale, self._workshop(f"llada-{self.scale}"), self.model, self.data, tasks, say, together)
        results = llada.results_of(study)
        wanted = self._wanted(results)
        study.workshop.begin(study.describe())
        runs = study.needed(wanted)
        for folder in (study.runs_folder, study.workshop.results):
            folder.mkdir(parents=True, exist_ok=True)
        check_file("--results", study.workshop.results / "README.md")
        for run in runs:
            say.checked(study.evaluate_words(run))  # what is wrong with the last command is known before days of tuning
        study.tune()
        gc.collect()  # what was trained is let go before it is loaded to write
        study.make_share(runs)
        if not together.is_main:
            return {"results": list(wanted)}
        made = self._make("llada", study, results, llada_report.write_report, study.describe())
        console.print(llada_report.main_table(found_in(study.workshop.results)), soft_wrap=True)
        return made


def _tasks(benchmark: str, source: str, *, whole: bool) -> list[Task]:
    """The benchmark's, from the source, or a complaint that names the option."""
    flag = f"--{benchmark}"
    try:
        tasks = load_tasks(source)
    except Exception as error:  # the hub's libraries have many of their own
        if Path(source).is_file():
            raise ValueError(f"{flag}: {error}") from error
        raise ValueError(
            f"{flag} {source}: cannot be had from the hub ({first_line(error)}); name the published file: {flag} FILE."
        ) from error
    try:
        llada.check_tasks(benchmark, tasks, whole=whole)
    except ValueError as error:
        raise ValueError(f"{flag} {source}: {error}") from error
    return tasks


class _Commands:
    """Runs other commands within this one; those that write with the same model share it."""

    def __init__(self, to_judge: list[str]) -> None:
        """`to_judge`: words that all evaluations of code are given."""
        self.to_judge = to_judge
        self.loaded: tuple[tuple[str | None, str | None], Any] | None = None

    def checked(self, words: Sequence[str]) -> Command:
        from prism.cli.parser import parse  # it lists this command

        judging = list(words[:2]) == ["evaluate", "code"]
        command = parse([*words, *(self.to_judge if judging else [])])
        command.check()
        return command

    def __call__(self, words: Sequence[str]) -> dict[str, Any]:
        console.print(f"[dim]  prism {' '.join(words)}[/dim]", soft_wrap=True)
        command = self.checked(words)
        if not isinstance(command, EvaluateCode):
            return command.run()

        def load() -> Any:
            wanted = command.model, command.corrector
            if self.loaded is None or self.loaded[0] != wanted:
                self.loaded = None
                gc.collect()  # there may not be room for both
                self.loaded = wanted, command.load_for(command.method())
            return self.loaded[1]

        return command.judged(load)
