"""Programming tasks as they are published. The files lie above the repository, in shared/, and are not ours to ship."""

from __future__ import annotations

import ast
import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest

from prism.data.code import (
    Instruction,
    MbppSplit,
    Published,
    Stripped,
    Task,
    as_function,
    load_tasks,
    parsed,
    read_tasks,
    task_of,
    with_types,
)

SHARED = next(
    (up / "shared/data/code" for up in Path(__file__).parents if (up / "shared/data/code").is_dir()), Path("none")
)
there = pytest.mark.skipif(not SHARED.is_dir(), reason="the published tasks are not at hand (../shared/data/code)")

HUMAN_EVAL = {
    "task_id": "HumanEval/7",
    "prompt": (
        "import math\n\ndef half(x):\n    return x / 2\n\n"
        'def area(r: float) -> float:\n    """ The area of a circle.\n\n    Examples:\n    >>> area(1)\n    3.14\n\n'
        '    area(2) ==> 12.57\n    Radii are positive.\n    """\n'
    ),
    "entry_point": "area",
    "canonical_solution": "    return math.pi * r * r\n",
    "test": "def check(candidate):\n    assert candidate(0) == 0\n",
}
MBPP = {
    "task_id": 601,
    "text": "Write a function to double.",
    "code": "def helper(x):\r\n  return x\r\ndef double(x):\r\n  return helper(2 * x)",
    "test_setup_code": "",
    "test_list": ["assert list(double([1])) == [1, 1]", "assert double(2) == 4"],
}


def test_human_eval() -> None:
    task = task_of(HUMAN_EVAL)
    assert (task.id, task.number, task.entry_point) == ("HumanEval/7", 7, "area")
    assert task.statement == "The area of a circle.\n\nRadii are positive."
    assert task.given.endswith("return x / 2\n\n")
    assert task.tests.endswith("check(area)\n")
    assert task.tests.startswith(task.given)  # a helper of the prompt is the tests' own
    scope: dict[str, Any] = {}
    exec(task.solution + task.tests, scope)


def test_mbpp() -> None:
    task = task_of(MBPP)
    assert (task.id, task.entry_point, task.statement) == ("Mbpp/601", "double", "Write a function to double.")
    assert task.tests.split("\n")[1:-1] == MBPP["test_list"]
    assert "\r" not in task.solution
    assert [split.name for split in MbppSplit if split.of([task])] == ["TRAIN"]


def test_prompts() -> None:
    human, mbpp = task_of(HUMAN_EVAL), task_of(MBPP)
    assert Published().text(human) == HUMAN_EVAL["prompt"]
    assert "assert double(2) == 4" in Published().text(mbpp)
    assert Stripped().text(human) == "The area of a circle.\n\nRadii are positive.\nThe function is called area."
    assert Stripped().text(mbpp) == "Write a function to double.\nThe function is called double."
    [message] = Instruction(Stripped()).messages(mbpp)
    assert message["role"] == "user"
    assert Stripped().text(mbpp) in message["content"]


def test_functions_to_be_completed() -> None:
    """They end with the closing quotes of a docstring, and the published body makes them a solution again."""
    human, mbpp = task_of(HUMAN_EVAL), task_of({**MBPP, "code": "import re\nfrom os import path\n" + MBPP["code"]})
    assert as_function(human) == HUMAN_EVAL["prompt"].rstrip()
    assert as_function(mbpp) == (
        'import re\nfrom os import path\n\n\ndef double(x):\n    """Write a function to double."""'
    )
    for task, body in ((human, "\n    return math.pi * r * r"), (mbpp, "\n    return 2 * x")):
        exec(as_function(task) + body + "\n" + task.tests.replace("assert list(double([1])) == [1, 1]", ""), {})


def test_a_row_ends_where_its_line_does(tmp_path: Path) -> None:
    """U+2028 and its like end a line for Python's splitlines and none in JSON."""
    row = {"task_id": 1, "text": "Split\u2028at\u2029each\u0085end.", "code": "def f(): pass", "test_list": ["f()"]}
    file = tmp_path / "tasks.jsonl"
    file.write_text(json.dumps(row, ensure_ascii=False) + "\n", encoding="utf-8")
    assert [task.statement for task in read_tasks(file)] == [row["text"]]


def test_bad_files(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"neither a file nor one of humaneval, .*mbpp\+"):
        load_tasks("humanevil")
    for name, content, complaint in (
        ("text.jsonl", b"hello\n", "not a file of tasks"),
        ("zip.jsonl.gz", b"hello\n", "not a file of tasks"),
        ("half.jsonl.gz", gzip.compress(json.dumps(MBPP).encode(), mtime=0)[:-20], "not a file of tasks"),
        ("empty.jsonl", b"", "no tasks"),
        ("other.jsonl", b'{"question": 1}\n', "of no set known here"),
        ("list.jsonl", b"[3]", "no tasks in it"),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ValueError, match=complaint):
            load_tasks(str(tmp_path / name))


def test_types_that_json_lacks() -> None:
    assert with_types(2, [[3, 4], [5]]) == [(3, 4), (5,)]
    assert with_types(63, [[[3, 4], [5]]]) == [[(3, 4), (5,)]]
    assert with_types(115, [[[1, 1], []]]) == [[{1}, {}]]
    assert with_types(252, ["(1+2j)"]) == [1 + 2j]
    assert with_types(259, [[[1, [2]]]]) == [((1, (2,)),)]
    assert with_types(3, [[3, 4]]) == [[3, 4]]


@there
@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("HumanEval.jsonl.gz", 164),
        ("HumanEvalPlus.jsonl.gz", 164),
        ("mbpp.jsonl", 974),
        ("sanitized-mbpp.json", 427),
        ("MbppPlus.jsonl.gz", 378),
    ],
)
def test_published_files(name: str, count: int) -> None:
    tasks = read_tasks(SHARED / name)
    assert len({task.id for task in tasks}) == len(tasks) == count
    for task in tasks:
        assert re.search(rf"def {task.entry_point}\b", task.solution), task.id
        assert len(task.statement) > 10, task.id
        assert ">>>" not in task.statement, task.id
        assert "assert " not in task.statement, task.id
        assert f"{task.entry_point}(" not in task.statement, task.id
        if "Plus" not in name:  # those take seconds, and run elsewhere
            parsed(task.tests)


@there
@there
@pytest.mark.parametrize("name", ["HumanEval.jsonl.gz", "mbpp.jsonl"])
def test_every_published_task_can_be_completed(name: str) -> None:
    for task in read_tasks(SHARED / name):
        text = as_function(task)
        assert text[-3:] in ('"""', "'''"), text
        function = parsed(text).body[-1]
        assert isinstance(function, ast.FunctionDef)
        assert function.name == task.entry_point


@there
def test_splits() -> None:
    tasks: list[Task] = read_tasks(SHARED / "mbpp.jsonl")
    assert [len(split.of(tasks)) for split in MbppSplit] == [10, 500, 90, 374]
