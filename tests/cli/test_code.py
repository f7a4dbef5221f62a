"""prism evaluate code, from files to a result file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from test_published import llada
from texts import write_letters

import prism
from prism.cli import main
from prism.evaluation.sandbox import available

TASK = {
    "task_id": 11,
    "text": "Write a function to double.",
    "code": "def double(x):\n    return 2 * x",
    "test_setup_code": "",
    "test_list": ["assert double(2) == 4"],
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tasks.jsonl").write_text(json.dumps(TASK) + "\n" + json.dumps({**TASK, "task_id": 600}))
    rows = [{"task_id": f"Mbpp/{n}", "completion": text} for n in (11, 600) for text in (TASK["code"], "def double(x:")]
    (tmp_path / "both.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "one.jsonl").write_text(json.dumps(rows[0]))
    (tmp_path / "text.jsonl").write_text("hello")
    return tmp_path


@pytest.mark.skipif(not available(), reason="this machine can isolate no programs")
def test_evaluate_code(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = folder / "out.json"
    words = ["evaluate", "code", "--tasks", str(folder / "tasks.jsonl"), "--json", str(out)]
    assert main([*words, "--completions", str(folder / "both.jsonl")]) == 0
    assert "50.0 % pass@1 on 2 tasks" in capsys.readouterr().out.replace("\n", " ")
    found = json.loads(out.read_text())
    assert (found["pass@1"], found["syntax_errors"], found["attempts"]) == (0.5, 2, 4)
    assert found["programs"]["Mbpp/11"][0]["report"]["outcome"] == "PASSED"
    assert found["record"]["command"] == "evaluate code"

    assert main([*words, "--completions", str(folder / "one.jsonl"), "--split", "test", "--workers", "1"]) == 0
    assert json.loads(out.read_text())["pass@1"] == 1


def test_compare_code(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One repaired, one introduced, told by task; tasks that only one of them has are left out."""
    rows = [{**TASK, "task_id": n} for n in (11, 12, 13, 600)]
    (folder / "four.jsonl").write_text("\n".join(map(json.dumps, rows)))
    right, wrong = "def double(x):\n    return x + x", "def double(x:\n    return x + x"
    sides = {"before": (wrong, right, right, right), "after": (right, wrong, right)}
    for side, texts in sides.items():
        lines = [
            {"task_id": f"Mbpp/{n}", "completion": text} for n, text in zip((11, 12, 13, 600), texts, strict=False)
        ]
        (folder / f"{side}.jsonl").write_text("\n".join(map(json.dumps, lines)))
    out, page = folder / "out.json", folder / "diffs.md"
    words = ["compare", "code", "--tasks", str(folder / "four.jsonl"), "--json", str(out), "--page", str(page)]
    words += ["--before", str(folder / "before.jsonl"), "--after"]
    assert main([*words, str(folder / "after.jsonl")]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "1 of 1 syntax errors repaired, 1 introduced" in said
    assert "1 over-corrections in 3 of 4 tasks" in said
    assert [(task["package"], task["change"]) for task in json.loads(out.read_text())["tasks"]] == [
        ("Mbpp/11", "repaired"),
        ("Mbpp/12", "broken"),
        ("Mbpp/13", "same"),
    ]
    assert "-def double(x:\n+def double(x):" in page.read_text()
    (folder / "others.jsonl").write_text(json.dumps({"task_id": "Mbpp/700", "completion": right}))
    assert main([*words, str(folder / "others.jsonl")]) == 2
    assert main([*words, str(folder / "none.jsonl")]) == 2
    errors = capsys.readouterr().err
    assert "have no task of" in errors
    assert "its first is Mbpp/11, theirs are Mbpp/11 and Mbpp/700." in " ".join(errors.split())
    assert "--after" in errors


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    return write_letters(llada(tmp_path))


@pytest.mark.skipif(not available(), reason="this machine can isolate no programs")
def test_a_corrector_judges_while_another_writes(folder: Path, llama: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What another corrector judged is another file's."""
    correctors = [folder / "one", folder / "two"]
    for path in correctors:
        prism.attach(prism.load_backbone(llama), prism.ProjectionConfig(24)).save(path, base=str(llama))
    out = folder / "out.json"
    words = ["evaluate", "code", "--tasks", str(folder / "tasks.jsonl"), "--output", str(folder / "s.jsonl")]
    words += ["--model", str(llama), "--new_tokens", "8", "--block", "4", "--k_block", "1", "--eos", "keep"]
    assert main([*words, "--corrector", str(correctors[0]), "--json", str(out)]) == 0
    assert json.loads(out.read_text())["nfe"] == 16
    assert main([*words, "--corrector", str(correctors[1])]) == 2
    assert "was begun with corrector" in capsys.readouterr().err


@pytest.mark.skipif(not available(), reason="this machine can isolate no programs")
def test_a_model_of_boards_writes_no_programs(folder: Path, models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["evaluate", "code", "--tasks", str(folder / "tasks.jsonl"), "--output", str(folder / "s.jsonl")]
    assert main([*words, "--model", str(models / "sudoku")]) == 2
    assert "sudoku has no tokenizer, so it cannot read text" in capsys.readouterr().err
    assert not (folder / "s.jsonl").exists()


@pytest.mark.skipif(not available(), reason="this machine can isolate no programs")
def test_a_model_writes_what_is_judged(folder: Path, llama: Path) -> None:
    """A killed run goes on where it was, another seed is refused, and what is there is judged without being written again."""
    out, file = folder / "out.json", folder / "solutions.jsonl"
    words = ["evaluate", "code", "--tasks", str(folder / "tasks.jsonl"), "--output", str(file), "--json", str(out)]
    words += ["--model", str(llama), "--policy", "vanilla", "--new_tokens", "8", "--block", "4", "--prompt", "stripped"]
    assert main([*words, "--count", "2"]) == 0
    found, written = json.loads(out.read_text()), file.read_text()
    assert (found["tasks"], found["attempts"], found["pass@1"]) == (2, 4, 0)
    assert 4 <= found["nfe"] <= 8
    assert sum(found["ends"].values()) == 4
    rows = [json.loads(line) for line in written.splitlines()]
    assert {row["task_id"] for row in rows[:2]} == {row["task_id"] for row in rows[2:]}
    assert len({row["completion"] for row in rows}) == 4

    lines = written.splitlines(keepends=True)
    file.write_text("".join(lines[:2]) + lines[2][:10])
    assert main([*words, "--count", "2", "--batch", "1"]) == 0

    def timeless(text: str) -> list[dict[str, object]]:
        rows = [{**json.loads(line), "seconds": 0} for line in text.splitlines()]
        return sorted(rows, key=lambda row: row["task_id"])

    assert timeless(file.read_text()) == timeless(written)
    again = file.read_text()
    assert main([*words, "--split", "test"]) == 0
    assert json.loads(out.read_text())["attempts"] == 1
    assert file.read_text() == again
    assert main([*words, "--seed", "1"]) == 2
    assert main([*words, "--chat", "true", "--output", str(folder / "chat.jsonl")]) == 0
    file.write_text("hello\n")
    assert main(words) == 2


@pytest.mark.skipif(not available(), reason="this machine can isolate no programs")
def test_what_was_written_for_another_prompt_is_not_judged(
    folder: Path, llama: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """MBPP, sanitized MBPP and MBPP+ have tasks of the same name that say different things."""
    (folder / "others.jsonl").write_text(json.dumps({**TASK, "text": "Write a function to treble."}))
    (folder / "again.jsonl").write_text(json.dumps(TASK))
    words = ["evaluate", "code", "--output", str(folder / "s.jsonl"), "--model", str(llama), "--policy", "vanilla"]
    words += ["--new_tokens", "4", "--prompt", "stripped", "--tasks"]
    assert main([*words, str(folder / "tasks.jsonl")]) == 0
    written = (folder / "s.jsonl").read_text()
    assert main([*words, str(folder / "others.jsonl")]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "s.jsonl holds completions of Mbpp/11 for another prompt; name another --output." in said
    assert main([*words, str(folder / "again.jsonl")]) == 0
    assert (folder / "s.jsonl").read_text() == written


@pytest.mark.skipif(not available(), reason="this machine can isolate no programs")
def test_with_a_cache_a_file_goes_on_with_the_same_batch(
    folder: Path, llama: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["evaluate", "code", "--tasks", str(folder / "tasks.jsonl"), "--output", str(folder / "s.jsonl")]
    words += ["--model", str(llama), "--policy", "vanilla", "--new_tokens", "4", "--cache", "dual", "--split", "test"]
    assert main(words) == 0
    assert main([*words, "--batch", "2"]) == 2
    assert "was begun with batch=16, not 2" in capsys.readouterr().err


@pytest.mark.skipif(not available(), reason="this machine can isolate no programs")
def test_longer_than_the_model_knows_is_said(folder: Path, llama: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Counted with the longest prompt."""
    brief = {**TASK, "text": "x", "code": "def f(x):\n    return x", "test_list": ["assert f(2) == 2"]}
    (folder / "brief.jsonl").write_text(json.dumps(brief))
    words = ["evaluate", "code", "--tasks", str(folder / "brief.jsonl"), "--model", str(llama), "--policy", "vanilla"]
    words += ["--prompt", "stripped", "--steps", "1", "--output"]
    known = prism.load_backbone(llama).config.length
    assert main([*words, str(folder / "short.jsonl"), "--new_tokens", "1"]) == 0
    assert "trained for" not in capsys.readouterr().out
    assert main([*words, str(folder / "long.jsonl"), "--new_tokens", str(known)]) == 0
    assert f"tokens are more than the {known} the model was trained for" in capsys.readouterr().out


def test_without_isolation_the_option_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for room in ("prism.cli.code", "prism.evaluation.sandbox"):
        monkeypatch.setattr(f"{room}.available", tuple)
    words = ["evaluate", "code", "--tasks", str(folder / "tasks.jsonl"), "--completions", str(folder / "both.jsonl")]
    assert main(words) == 2
    assert "or give --unsafe true to run them with your own rights" in capsys.readouterr().err


def test_pyflakes_is_missed_before_anything_is_written(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    words = ["evaluate", "code", "--tasks", str(folder / "tasks.jsonl"), "--model", str(folder / "nowhere")]
    assert main(words) == 2
    assert "Undefined names are found by pyflakes; run: pip install 'prism-mdm[code]'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ("--tasks {f}/tasks.jsonl", "completions"),
        (
            "--tasks {f}/tasks.jsonl --completions {f}/both.jsonl --steps 4",
            "--steps: with --completions nothing is written",
        ),
        ("--tasks {f}/tasks.jsonl --model {f} --prompt strip", "did you mean 'stripped'"),
        ("--tasks {f}/tasks.jsonl --model {f} --count 0", "--count 0"),
        ("--tasks {f}/tasks.jsonl --model {f} --new_tokens 0", "--new_tokens 0"),
        ("--tasks {f}/tasks.jsonl --model {f} --block 4 --new_tokens 16 --k_block 8", "room to take back 2"),
        ("--tasks {f}/tasks.jsonl --model {f} --system be", "give --chat true too"),
        ("--tasks {f}/tasks.jsonl --model {f} --output {f}", "that is a folder"),
        ("--completions {f}/both.jsonl", "tasks"),
        ("--tasks {f}/tasks.jsonl --completions {f}/none.jsonl", "no such file"),
        ("--tasks {f}/tasks.jsonl --completions {f}/text.jsonl", "line 1"),
        ("--tasks {f}/both.jsonl --completions {f}/both.jsonl", "both.jsonl, task 1: A task with the fields task_id"),
        ("--tasks {f}/text.jsonl --completions {f}/both.jsonl", "not a file of tasks"),
        ("--tasks humanevil --completions {f}/both.jsonl", "neither a file nor one of humaneval"),
        ("--tasks {f}/tasks.jsonl --completions {f}/one.jsonl", "1 of 2 tasks have no completion"),
        ("--tasks {f}/tasks.jsonl --completions {f}/both.jsonl --split tset", "choose from prompt, test"),
        ("--tasks {f}/tasks.jsonl --completions {f}/both.jsonl --split train", "no task"),
        ("--tasks {f}/tasks.jsonl --completions {f}/both.jsonl --seconds 0", "--seconds 0"),
        ("--tasks {f}/tasks.jsonl --completions {f}/both.jsonl --workers -1", "--workers -1"),
    ],
)
@pytest.mark.skipif(not available(), reason="this machine can isolate no programs, which is said first")
def test_bad_words(folder: Path, words: str, complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", "code", *words.format(f=folder).split()]) == 2
    said = capsys.readouterr().err
    assert complaint in said
    assert said.count("\n") == 1
