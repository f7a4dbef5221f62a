"""Programming tasks judged: published solutions pass, changed ones fail, and the counting is right."""

from __future__ import annotations

import ast
import json
import re
from itertools import combinations
from pathlib import Path

import pytest

from prism.data.code import Task, parsed, read_tasks
from prism.data.code_oracle import all_floats, check_plus, close, right
from prism.evaluation.code import Attempt, CodeRun, evaluate_code, read_completions
from prism.evaluation.sandbox import Isolation, Outcome, Report, available, strongest
from prism.evaluation.statistics import rate

SHARED = next(
    (up / "shared/data/code" for up in Path(__file__).parents if (up / "shared/data/code").is_dir()), Path("none")
)
there = pytest.mark.skipif(not SHARED.is_dir(), reason="the published tasks are not at hand (shared/data/code)")

DOUBLE = Task(
    "Mbpp/1", "Write a function to double.\n", "Write a function to double.", "double", "assert double(2) == 4\n", ""
)
GREET = Task("Mbpp/2", "Write a greeting.\n", "Write a greeting.", "greet", "assert greet() == 'hello'\n", "")


def solved(tasks: list[Task], isolation: Isolation | None = None) -> dict[str, Report]:
    run = evaluate_code(
        tasks, {task.id: [task.solution] for task in tasks}, isolation=isolation or strongest(unsafe=True)
    )
    return {name: attempts[0].report for name, attempts in run.attempts.items()}


def failures(reports: dict[str, Report]) -> dict[str, str]:
    return {name: f"{r.outcome.value}: {r.detail}" for name, r in reports.items() if not r.passed}


class WrongReturns(ast.NodeTransformer):
    """Returns of one function, changed; functions within it are left alone."""

    def __init__(self, name: str) -> None:
        self.name = name

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        if node.name == self.name:
            self.name = ""
            return self.generic_visit(node)
        return node

    def visit_Return(self, node: ast.Return) -> ast.Return:
        return ast.Return(ast.Tuple([ast.Constant("changed"), node.value or ast.Constant(None)], ast.Load()))


def mutated(task: Task) -> Task:
    tree = ast.fix_missing_locations(WrongReturns(task.entry_point).visit(parsed(task.solution)))
    return Task(task.id, task.prompt, task.statement, task.entry_point, task.tests, ast.unparse(tree), task.given)


# ── the published tasks ─────────────────────────────────────────────────────────────────────────────────────────────


@there
def test_human_eval() -> None:
    assert failures(solved(read_tasks(SHARED / "HumanEval.jsonl.gz"))) == {}


HELPED = {  # wrong, and right by the helper that comes with it
    "HumanEval/32": "def poly(xs, x):\n    return 0.0\n\n\ndef find_zero(xs):\n    return 1.0\n",
    "HumanEval/38": "def encode_cyclic(s):\n    return s\n\n\ndef decode_cyclic(s):\n    return s\n",
    "HumanEval/50": "def encode_shift(s):\n    return s\n\n\ndef decode_shift(s):\n    return s\n",
}


@there
def test_published_helpers_cannot_be_redefined() -> None:
    """The tests of three tasks use what their prompts define: theirs, whatever the program makes of it."""
    tasks = [task for task in read_tasks(SHARED / "HumanEval.jsonl.gz") if task.id in HELPED]
    run = evaluate_code(
        tasks, {name: [text] for name, text in HELPED.items()}, isolation=strongest(unsafe=True), workers=1
    )
    assert [attempts[0].report.outcome for attempts in run.attempts.values()] == [Outcome.FAILED] * 3


@there
def test_human_eval_under_landlock() -> None:
    if Isolation.LANDLOCK not in available():
        pytest.skip("this machine has no Landlock")
    assert failures(solved(read_tasks(SHARED / "HumanEval.jsonl.gz")[::4], Isolation.LANDLOCK)) == {}


@there
def test_mbpp() -> None:
    """All 974 of them, in about 45 s on one core."""
    assert failures(solved(read_tasks(SHARED / "mbpp.jsonl"))) == {}


@there
@pytest.mark.parametrize("name", ["HumanEval.jsonl.gz", "mbpp.jsonl", "sanitized-mbpp.json"])
def test_changed_solutions_fail(name: str) -> None:
    tasks = read_tasks(SHARED / name)[::12]
    reports = solved([mutated(task) for task in tasks])
    passed = {name for name, report in reports.items() if report.passed}
    assert passed == set()


@there
@pytest.mark.parametrize(("name", "first"), [("HumanEvalPlus.jsonl.gz", 7), ("MbppPlus.jsonl.gz", 3)])
def test_a_few_of_the_plus_tasks(name: str, first: int) -> None:
    """Every twentieth of those with small inputs, from where none of them is slow."""
    tasks = [task for task in read_tasks(SHARED / name) if len(task.tests) < 20_000][first::20]
    assert failures(solved(tasks)) == {}
    assert all(not report.passed for report in solved([mutated(task) for task in tasks[::4]]).values())


@there
@pytest.mark.slow
@pytest.mark.parametrize("name", ["sanitized-mbpp.json", "HumanEvalPlus.jsonl.gz", "MbppPlus.jsonl.gz"])
def test_all_of_the_others(name: str) -> None:
    """On two cores about 15 s, 35 s and 3 minutes; one task of MBPP+ wants 4 GiB twice over."""
    assert failures(solved(read_tasks(SHARED / name))) == {}


# ── counting ────────────────────────────────────────────────────────────────────────────────────────────────────────


def run_of(*passed: list[bool]) -> CodeRun:
    def attempt(task: int, good: bool) -> Attempt:
        report = Report(Outcome.PASSED if good else Outcome.FAILED, "", 0.1, 0.1, 0.01, "")
        return Attempt(f"Mbpp/{task}", "", True, [], report)

    attempts = {f"Mbpp/{n}": [attempt(n, good) for good in tried] for n, tried in enumerate(passed)}
    return CodeRun(attempts, Isolation.NONE, 1.0)


@pytest.mark.parametrize("k", [1, 2, 3, 5])
def test_pass_at_k_is_the_share_of_choices_that_hold_a_success(k: int) -> None:
    tries = ([True, False, False, True, False], [False] * 5, [True] * 5)
    shares = [sum(any(some) for some in combinations(t, k)) / len(list(combinations(t, k))) for t in tries]
    chance = run_of(*tries).pass_at(k)
    assert chance.value == pytest.approx(sum(shares) / 3)
    assert chance.low <= chance.value <= chance.high


def test_one_attempt_at_each_task_has_wilsons_interval() -> None:
    """Percentiles would say 100 to 100 of five tasks solved, and 0 to 0 of none."""
    assert run_of(*[[True]] * 5).pass_at(1) == rate(5, 5)
    assert run_of(*[[False, False]] * 5).pass_at(2) == rate(0, 5)
    assert run_of([True], [False], [True]).pass_at(1) == rate(2, 3)
    assert run_of([True, False], [True]).pass_at(1) != rate(2, 2)
    assert run_of(*[[True]] * 5).summary()["pass@1_interval"] == [rate(5, 5).low, 1.0]


def test_equal_chances_have_wilsons_interval_too() -> None:
    """Whichever tasks are drawn again, a quarter of the attempts is right: percentiles would say 25 to 25."""
    chance = run_of(*[[False, True, False, False]] * 4).pass_at(1)
    assert chance == rate(1.0, 4)
    assert chance.low < 0.1 < 0.6 < chance.high
    assert run_of([True, False], [True, True, False, False]).pass_at(1) == rate(1.0, 2)


def test_pass_at_more_than_there_are() -> None:
    with pytest.raises(ValueError, match="pass@3 needs at least 3 attempts at every task; there are 2"):
        run_of([True, True, False], [True, False]).pass_at(3)


def test_evaluation_counts_what_is_wrong() -> None:
    completions = {
        "Mbpp/1": ["```python\ndef double(x):\n    return 2 * x\n```", "def double(x):\n    return 2 *\n"],
        "Mbpp/2": ["def greet():\n    return helo()\n", "def greet():\n    return 'goodbye'\n"],
    }
    seen: list[int] = []
    run = evaluate_code([DOUBLE, GREET], completions, isolation=strongest(unsafe=True), done=seen.append)
    summary = run.summary()
    assert [attempt.report.passed for attempt in run.attempts["Mbpp/1"]] == [True, False]
    assert (summary["pass@1"], summary["tasks"], summary["attempts"]) == (0.25, 2, 4)
    assert (summary["syntax_errors"], summary["undefined_names"]) == (1, 1)
    assert summary["outcomes"] == {"PASSED": 1, "FAILED": 3}
    assert run.attempts["Mbpp/2"][0].undefined == ["helo"]
    assert run.attempts["Mbpp/1"][1].report.detail.startswith("SyntaxError")
    assert sorted(seen) == [1, 2, 3, 4]


def test_every_task_wants_a_completion_and_no_other() -> None:
    with pytest.raises(ValueError, match="1 of 2 tasks have no completion, Mbpp/2"):
        evaluate_code([DOUBLE, GREET], {"Mbpp/1": ["x"]})
    with pytest.raises(
        ValueError, match="have no completion, Mbpp/1 the first, and there are some for '1', which is no"
    ):
        evaluate_code([DOUBLE], {"1": ["x"], "0": ["x"]})
    with pytest.raises(ValueError, match="for what is no task here: Mbpp/9; leave them out"):
        evaluate_code([DOUBLE], {"Mbpp/1": ["x"], "Mbpp/9": ["x"]})
    with pytest.raises(ValueError, match="no task here: Mbpp/9 and 1 more"):
        evaluate_code([DOUBLE], {"Mbpp/1": ["x"], "Mbpp/9": ["x"], "Mbpp/8": ["x"]})


@pytest.mark.parametrize("end", ["\u2028", "\u2029", "\u0085"])
def test_a_row_ends_where_its_line_does(tmp_path: Path, end: str) -> None:
    """Some characters end a line for Python's splitlines and none in JSON."""
    file = tmp_path / "completions.jsonl"
    row = {"task_id": "Mbpp/1", "completion": f"'{end}'"}
    file.write_text(f"{json.dumps(row, ensure_ascii=False)}\r\n", encoding="utf-8", newline="")
    assert read_completions(file) == {"Mbpp/1": [f"'{end}'"]}


def test_reading_completions(tmp_path: Path) -> None:
    file = tmp_path / "completions.jsonl"
    rows = [{"task_id": "Mbpp/1", "completion": "a"}, {"task_id": "Mbpp/1", "solution": "b"}]
    file.write_text("\n\n".join(map(json.dumps, rows)))
    assert read_completions(file) == {"Mbpp/1": ["a", "b"]}
    for content, complaint in (("", "no completions"), ("{}", "line 1"), ('{"task_id": 1}', "line 1"), ("[", "line 1")):
        file.write_text(content)
        with pytest.raises(ValueError, match=complaint):
            read_completions(file)
    file.write_bytes(b'{"task_id": "\xff"}')
    with pytest.raises(ValueError, match=re.escape(f"{file}: not text in UTF-8 (invalid start byte)")):
        read_completions(file)
    for wrong in (None, ["a"], 7, {"text": "a"}):
        file.write_text("\n".join(json.dumps(row) for row in (rows[0], {**rows[0], "completion": wrong})))
        with pytest.raises(ValueError, match=r"line 2: the completion is .*; it must be a string"):
            read_completions(file)


# ── EvalPlus's comparisons ──────────────────────────────────────────────────────────────────────────────────────────


def test_nearness() -> None:
    assert close(1.0 + 1e-8, 1.0, 1e-6)
    assert close([1, (2.0, 3.0)], [1.0, (2.0, 3.0 + 1e-7)], 1e-6)
    assert not close([1.0], [1.0, 2.0], 1e-6)
    assert not close("1", 1.0, 1e-6)
    assert close(float("inf"), float("inf"), 1e-6)
    assert all_floats((1.0, 2.0))
    assert not all_floats([])
    assert not all_floats([1, 2.0])


@pytest.mark.parametrize(
    ("name", "given", "answer", "expected", "verdict"),
    [
        ("other", [1], 1, 1, True),
        ("other", [1], [1], (1,), False),
        ("other", [1], 1.0000001, 1.0, True),
        ("find_zero", [[-2, 1]], 2.0, 2.5, True),
        ("find_zero", [[-2, 1]], 2.5, 2.5, False),
        ("are_equivalent", [1, 2], None, True, True),
        ("sum_div", [8], 0, 7, True),
        ("surface_Area", [3, 4], 35, 33, True),
        ("digit_distance_nums", [1, 256], 12, 7, True),
        ("similar_elements", [[1], [2]], [2, 1, 1], (1, 2), True),
        ("check_str", ["a"], True, "match", True),
        ("check_str", ["a"], None, "match", False),
        ("check_str", ["a"], "match", None, False),
    ],
)
def test_special_oracles(name: str, given: list[object], answer: object, expected: object, verdict: bool) -> None:
    assert right(name, given, answer, expected, 1e-6) is verdict


def test_the_first_wrong_answer_is_named() -> None:
    check_plus(abs, "def f(x): return abs(x)", "f", [[1], [-2]], 0.0)
    with pytest.raises(AssertionError, match=r"f\(-2\) == 2, got -2"):
        check_plus(lambda x: x, "def f(x): return abs(x)", "f", [[1], [-2]], 0.0)


def test_what_is_done_to_the_inputs_makes_no_answer_right() -> None:
    def forgetful(factors: list[int]) -> float:
        factors.clear()  # of which every number is a root
        return 7.0

    with pytest.raises(AssertionError, match=r"find_zero\(\[-2, 1\]\) == 2, got 7"):
        check_plus(forgetful, "def find_zero(xs): return 2", "find_zero", [[[-2, 1]]], 1e-6)
