"""Programming tasks: HumanEval (Chen et al. 2021), MBPP (Austin et al. 2021), and EvalPlus's versions of both with many more
tests (Liu et al. 2023), from their published files or from the hub; and the ways to ask a model for a solution.
"""

from __future__ import annotations

import ast
import gzip
import hashlib
import inspect
import json
import re
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any

from prism.data import code_oracle


@dataclass(frozen=True)
class Task:
    id: str
    """HumanEval/0, Mbpp/11."""
    prompt: str
    """As published: for HumanEval code to be continued, for MBPP a sentence and the tests it will be held to."""
    statement: str
    """What the function shall do, in words: no signature, no doctests (examples told in prose stay)."""
    entry_point: str
    """The function's name."""
    tests: str
    """Python that raises unless the function is right."""
    solution: str
    """The published solution, a whole program."""
    given: str = ""
    """Code before the function that a solution may rely on: HumanEval's imports and helpers."""
    seconds: float = 10.0
    memory: int = 1 << 30
    """What a solution may use; EvalPlus's inputs ask for more (one answer in MBPP+ has 128 million elements)."""

    @property
    def number(self) -> int:
        return int(self.id.rsplit("/", 1)[-1])


PLUS_SECONDS, PLUS_MEMORY = 60.0, 4 << 30  # EvalPlus's own bounds


class MbppSplit(Enum):
    """MBPP's splits, by number."""

    PROMPT = range(1, 11)
    TEST = range(11, 511)
    VALIDATION = range(511, 601)
    TRAIN = range(601, 975)

    def of(self, tasks: Iterable[Task]) -> list[Task]:
        return [task for task in tasks if task.number in self.value]


# ── asking ──────────────────────────────────────────────────────────────────────────────────────────────────────────


class Prompt(ABC):
    @abstractmethod
    def text(self, task: Task) -> str:
        """What the model reads."""

    def messages(self, task: Task) -> list[dict[str, str]]:
        """The same as a chat, for the model's own chat template."""
        return [{"role": "user", "content": self.text(task)}]


class Published(Prompt):
    """The benchmark's own prompt: signature, docstring and doctests of HumanEval; sentence and tests of MBPP."""

    def text(self, task: Task) -> str:
        return task.prompt


class Stripped(Prompt):
    """The words and the function's name only, no signature, no doctests and no tests, as the PRISM paper's code asks LLaDA.

    What arguments come in which order is left for the model to guess, so scores are well below those usually reported.
    """

    def text(self, task: Task) -> str:
        return f"{task.statement}\nThe function is called {task.entry_point}."


class Instruction(Prompt):
    """Another prompt within a request to answer with one block of Python; what chat models are usually asked."""

    def __init__(self, inner: Prompt) -> None:
        self.inner = inner

    def text(self, task: Task) -> str:
        return (
            "Solve this task in Python. Answer with the complete function in one fenced code block.\n\n"
            f"{self.inner.text(task).strip()}\n"
        )


def as_function(task: Task) -> str:
    """The task for models that complete functions: everything up to the closing quotes of the docstring. HumanEval's prompt is
    that; MBPP's words become the docstring of its published solution's signature, after that solution's imports."""
    try:
        defined = [node.name for node in parsed(task.prompt).body if isinstance(node, ast.FunctionDef)]
    except SyntaxError:
        defined = []
    if task.entry_point in defined:
        return task.prompt.rstrip()
    solution = parsed(task.solution).body
    imports = [node for node in solution if isinstance(node, ast.Import | ast.ImportFrom)]
    function = [node for node in solution if isinstance(node, ast.FunctionDef) and node.name == task.entry_point][-1]
    function.body, function.decorator_list = [ast.Expr(ast.Constant(task.statement))], []
    return "\n".join([*map(ast.unparse, imports), *["", ""][: 2 * len(imports)], ast.unparse(function)])


# ── reading ─────────────────────────────────────────────────────────────────────────────────────────────────────────

# Name, then repository, configuration and splits on the hub.
ON_THE_HUB: dict[str, tuple[str, str | None, tuple[str, ...]]] = {
    "humaneval": ("openai/openai_humaneval", None, ("test",)),
    "humaneval+": ("evalplus/humanevalplus", None, ("test",)),
    "mbpp": ("google-research-datasets/mbpp", "full", ("prompt", "test", "validation", "train")),
    "mbpp-sanitized": ("google-research-datasets/mbpp", "sanitized", ("prompt", "test", "validation", "train")),
    "mbpp+": ("evalplus/mbppplus", None, ("test",)),
}


def load_tasks(source: str) -> list[Task]:
    """A file (.json, .jsonl or .jsonl.gz, as published) or a name: humaneval, humaneval+, mbpp, mbpp-sanitized, mbpp+."""
    if Path(source).is_file():
        return read_tasks(Path(source))
    if source not in ON_THE_HUB:
        raise ValueError(f"{source}: neither a file nor one of {', '.join(ON_THE_HUB)}.")
    from datasets import load_dataset

    repository, configuration, splits = ON_THE_HUB[source]
    sets = load_dataset(repository, configuration)
    tasks = sorted((task_of(row) for split in splits for row in sets[split]), key=lambda task: task.number)
    return [replace(task, seconds=PLUS_SECONDS, memory=PLUS_MEMORY) for task in tasks] if "+" in source else tasks


def digest_of(tasks: Iterable[Task]) -> str:
    """Tells sets of tasks apart by what they ask and how it is judged, whatever their files are called."""
    told = [(task.id, task.prompt, task.tests) for task in tasks]
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()[:16]


def read_tasks(path: Path) -> list[Task]:
    tasks = []
    for number, row in enumerate(read_rows(path), start=1):
        try:
            tasks.append(task_of(row))
        except ValueError as error:
            raise ValueError(f"{path}, task {number}: {error}") from error
    return tasks


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a published file: a JSON list, or a JSON object a line, gzipped or not."""
    opened = gzip.open if path.suffix == ".gz" else open
    try:
        with opened(path, "rt", encoding="utf-8") as file:
            text = file.read()
        rows = json.loads(text) if text.lstrip().startswith("[") else [json.loads(line) for line in _lines(text)]
    except (ValueError, OSError, EOFError) as error:
        raise ValueError(f"{path}: not a file of tasks, expected JSON or a JSON object a line ({error}).") from error
    if not rows or not all(isinstance(row, dict) for row in rows):
        raise ValueError(f"{path}: no tasks in it; expected a JSON object for each.")
    return rows


def task_of(row: dict[str, Any]) -> Task:
    """A task from a row of any of the published sets, told apart by their fields."""
    try:
        if "canonical_solution" in row and str(row["task_id"]).startswith("HumanEval"):
            return _human_eval(row)
        if "plus_input" in row:
            return _mbpp_plus(row)
        return _mbpp(row)
    except (KeyError, TypeError) as error:
        raise ValueError(f"A task with the fields {', '.join(row)} is of no set known here ({error!r}).") from error


def _human_eval(row: dict[str, Any]) -> Task:
    prompt, entry_point = row["prompt"], row["entry_point"]
    signature = prompt.index(f"def {entry_point}")
    solution, given = prompt + row["canonical_solution"], prompt[:signature]
    helpers = given if any(isinstance(node, ast.FunctionDef) for node in parsed(given).body) else ""
    task = Task(
        id=row["task_id"],
        prompt=prompt,
        statement=_without_examples(prompt, entry_point),
        entry_point=entry_point,
        tests=f"{helpers}{row['test']}\n\ncheck({entry_point})\n",  # which use them, and not the program's of that name
        solution=solution,
        given=given,
    )
    return _with_plus_tests(task, row, row["base_input"] + row["plus_input"]) if "plus_input" in row else task


def _mbpp(row: dict[str, Any]) -> Task:
    """MBPP, full or sanitized (whose fields have other names), or the hub's MBPP+, whose `test` holds all there is."""
    code = row["code"].replace("\r\n", "\n")
    imports = row.get("test_imports", [])
    setup = row.get("test_setup_code", "").replace("\r\n", "\n")
    tests = "\n".join([*imports, setup, *row["test_list"]]) + "\n"
    statement = row["text"] if "text" in row else row["prompt"]
    return Task(
        id=f"Mbpp/{row['task_id']}",
        prompt=_mbpp_prompt(statement, row["test_list"]),
        statement=statement,
        entry_point=_called(code, row["test_list"]),
        tests=row.get("test", tests),
        solution=code,
    )


def _mbpp_plus(row: dict[str, Any]) -> Task:
    statement, first_test = re.fullmatch(
        r'\s*"""\s*(.*?)\s*((?:assert|import)\b.*?)\s*"""\s*', row["prompt"], re.S
    ).groups()  # type: ignore[union-attr]
    inputs = [*row["base_input"], *row["plus_input"]]  # Mbpp/793 has {} for no further inputs
    task = Task(
        id=row["task_id"],
        prompt=_mbpp_prompt(statement, [first_test]),
        statement=statement,
        entry_point=row["entry_point"],
        tests=row["assertion"],
        solution=row["canonical_solution"],
    )
    return _with_plus_tests(task, row, [with_types(task.number, given) for given in inputs])


def _mbpp_prompt(statement: str, tests: list[str]) -> str:
    """The words of Austin et al. 2021, without their three examples."""
    listed = "\n".join(test.strip() for test in tests)
    task = f"You are an expert Python programmer, and here is your task: {statement}"
    return f"{task} Your code should pass these tests:\n\n{listed}\n"


def _with_plus_tests(task: Task, row: dict[str, Any], inputs: list[Any]) -> Task:
    name, oracle = task.entry_point, Path(code_oracle.__file__).read_text(encoding="utf-8")
    tests = f"{oracle}\n\ncheck_plus({name}, {task.solution!r}, {name!r}, {inputs!r}, {row['atol']!r})\n"
    return replace(task, tests=tests, seconds=PLUS_SECONDS, memory=PLUS_MEMORY)


def _called(code: str, tests: list[str]) -> str:
    """The function of the code that the tests call."""
    defined = [node.name for node in parsed(code).body if isinstance(node, ast.FunctionDef)]
    for node in ast.walk(parsed("\n".join(test.strip() for test in tests))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in defined:
            return node.func.id
    raise ValueError(f"The tests call none of the functions {', '.join(defined)}; first test: {tests[0]}")


def _without_examples(prompt: str, entry_point: str) -> str:
    """The docstring without doctests, lines that call the function, and the headings left without examples."""
    functions = {node.name: node for node in parsed(prompt).body if isinstance(node, ast.FunctionDef)}
    strings = [node.value for node in ast.walk(functions[entry_point]) if isinstance(node, ast.Constant)]
    docstring = inspect.cleandoc(next(text for text in strings if isinstance(text, str)))  # once it follows an import
    kept: list[str] = []
    in_doctest = False
    for line in docstring.splitlines():
        in_doctest = line.lstrip().startswith(">>>") or (in_doctest and bool(line.strip()))
        heading = re.fullmatch(r"\s*(\[input/output\] samples|(for )?examples?( \d+)?)\s*:?\s*", line, re.I)
        call = f"{entry_point}(" in line or line.lstrip().startswith("assert ")  # one of them misspells the name
        if not in_doctest and not heading and not call:
            kept.append(line.rstrip())
    return re.sub(r"\n{3,}", "\n\n", "\n".join(kept)).strip()


def parsed(source: str) -> ast.Module:
    """The source's tree, without warnings about its style ("\\d" in a string that is not raw)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(source)


def _lines(text: str) -> list[str]:
    return [line for line in text.split("\n") if line.strip()]  # splitlines would end a row at U+2028 too


# ── MBPP+ ───────────────────────────────────────────────────────────────────────────────────────────────────────────

# JSON knows no tuples, sets and complex numbers: which tasks want them, and where in their arguments.
TUPLES = {2, 116, 132, 143, 222, 261, 273, 394, 399, 421, 424, 429, 470, 560, 579, 596, 616, 630, 726, 740, 744, 809}
LISTS_OF_TUPLES = {63, 64, 70, 94, 120, 237, 272, 299, 400, 409, 417, 438, 473, 614, 780}
FIRST_IS_LIST_OF_TUPLES = {75, 413, 444, 753}
FIRST_IS_TUPLE = {250, 307, 405, 446, 617, 720, 763, 808}
SECOND_IS_TUPLE = {106, 750}
TUPLES_ALL_THE_WAY = {259, 401, 445, 580, 615, 791}


def with_types(number: int, given: list[Any]) -> list[Any]:
    """The arguments as the task of that number means them."""
    if number in TUPLES:
        return [tuple(argument) for argument in given]
    if number in LISTS_OF_TUPLES:
        return [[tuple(item) for item in argument] for argument in given]
    if number in FIRST_IS_LIST_OF_TUPLES:
        return [[tuple(item) for item in given[0]], *given[1:]]
    if number in FIRST_IS_TUPLE:
        return [tuple(given[0]), *given[1:]]
    if number in SECOND_IS_TUPLE:
        return [given[0], tuple(given[1])]
    if number in TUPLES_ALL_THE_WAY:
        return [_tuples(argument) for argument in given]
    if number == 278:
        return [tuple(tuple(item) if isinstance(item, list) else item for item in given[0])]
    if number == 115:  # the empty ones are dictionaries, as in EvalPlus
        return [[set(item) if isinstance(item, list) and item else {} for item in given[0]]]
    if number == 722:
        return [{key: tuple(value) for key, value in given[0].items()}, *given[1:]]
    if number == 124:
        return [float(given[0]), complex(given[1])]
    return [complex(given[0])] if number == 252 else given


def _tuples(value: Any) -> Any:
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value
