"""lm-eval with a LLaDA of two layers, in the hub's format, on tasks from a file."""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from test_published import llada
from texts import write_letters

import prism
from prism.cli import main
from prism.cli.harness import runs_programs
from prism.data.writing import Text, writing_for
from prism.evaluation.likelihood import Passage, likelihood_bounds

lm_eval = pytest.importorskip("lm_eval", reason="lm-eval is not installed: pip install 'prism-mdm[harness]'")
pytestmark = pytest.mark.filterwarnings("default")  # lm-eval's and its many dependencies' own

ROOT = Path(__file__).resolve().parents[2]
QUESTIONS = [{"question": word, "good": word[::-1], "bad": "zq"} for word in ("hello", "ab", "the")]
COMMON = """
dataset_path: json
dataset_kwargs:
  data_files:
    test: {data}
test_split: test
doc_to_text: "{{{{question}}}}"
"""
WRITES = """
task: tiny_writes
output_type: generate_until
doc_to_target: "{{good}}"
generation_kwargs: {until: ["zz"], max_gen_toks: 8}
metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]
"""
CHOOSES = """
task: tiny_chooses
output_type: multiple_choice
doc_to_choice: "{{[good, bad]}}"
doc_to_target: 0
metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]
"""
ROLLS = """
task: tiny_rolls
output_type: loglikelihood_rolling
doc_to_target: "{{question}}"
metric_list: [{metric: word_perplexity, aggregation: weighted_perplexity, higher_is_better: false}]
"""
RUNS = WRITES.replace("tiny_writes", "tiny_runs") + "unsafe_code: true\ntag: tiny_tagged\n"
GROUP = "group: tiny_group\ntask: [tiny_chooses, {group: tiny_inner, task: [{task: tiny_runs, num_fewshot: 1}]}]\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("harness")
    write_letters(llada(root))
    (root / "questions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in QUESTIONS))
    (root / "tasks").mkdir()
    (root / "tasks" / "group.yaml").write_text(GROUP)
    for task in (WRITES, CHOOSES, ROLLS, RUNS):
        name = task.split()[1]
        (root / "tasks" / f"{name}.yaml").write_text(task.strip() + COMMON.format(data=root / "questions.jsonl"))
    return root


@pytest.fixture
def words(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    settings = ["--policy", "vanilla", "--block", "4", "--samples", "4", "--json", str(tmp_path / "out.json")]
    return ["--model", str(folder / "llada"), "--include", str(folder / "tasks"), *settings]


@pytest.mark.parametrize("way", [["evaluate", "harness", "--task"], ["evaluate", "--harness"]])
def test_tasks_of_every_kind(way: list[str], words: list[str], tmp_path: Path) -> None:
    assert main([*way, "tiny_writes,tiny_chooses,tiny_rolls", *words]) == 0
    found = json.loads((tmp_path / "out.json").read_text())
    assert found["results"]["tiny_writes"]["exact_match,none"] == 0
    assert 0 <= found["results"]["tiny_chooses"]["acc,none"] <= 1
    assert found["results"]["tiny_rolls"]["word_perplexity,none"] > 1
    assert found["questions"]["tiny_writes"]["effective"] == 3
    assert 4 <= found["nfe"] <= 8
    assert found["record"]["model"]["parameters"] > 0


def test_chats_and_limits(words: list[str], tmp_path: Path) -> None:
    chat = ["--chat", "true", "--system", "be", "--limit", "1", "--fewshot", "0"]
    assert main(["evaluate", "harness", "--task", "tiny_writes", *words, *chat]) == 0
    assert json.loads((tmp_path / "out.json").read_text())["questions"]["tiny_writes"]["effective"] == 1


@pytest.mark.parametrize(
    ("more", "complaint"),
    [
        ("--task nonsense", "knows no such task"),
        ("--task tiny_writes --samples 0", "--samples 0"),
        ("--task tiny_writes --limit 0", "--limit 0"),
        ("--task tiny_writes --system be", "give --chat true too"),
        ("--task tiny_writes --include nowhere", "no such folder"),
        ("--task tiny_writes --new_tokens 0", "--new_tokens 0: must be at least 1"),
        (
            "--task tiny_writes --policy random --block 8 --k 9",
            "A task asks for answers of 8 tokens. --k 9 is more than the 8 positions to generate",
        ),
    ],
)
def test_bad_words(more: str, complaint: str, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", "harness", *words, *more.split()]) == 2
    assert complaint in capsys.readouterr().err


def test_tasks_that_run_programs_are_refused_before_anything_is_loaded(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("prism.cli.command.load_model", lambda *_, **__: pytest.fail("loaded in vain"))
    assert main(["evaluate", "harness", "--task", "tiny_writes,tiny_runs", *words]) == 2
    assert "--task tiny_runs: it runs what is written" in capsys.readouterr().err


def test_which_tasks_run_programs(folder: Path) -> None:
    """Behind groups and tags too, and of lm-eval's own."""
    from lm_eval.tasks import TaskManager

    index = TaskManager(include_path=folder / "tasks", include_defaults=False).task_index
    tasks = ["tiny_writes", "tiny_chooses", "tiny_rolls", "tiny_runs", "tiny_tagged", "tiny_group", "nowhere"]
    assert [task for task in tasks if runs_programs(index, task)] == ["tiny_runs", "tiny_tagged", "tiny_group"]
    theirs = TaskManager(include_path=Path(lm_eval.__file__).parent / "tasks" / "humaneval", include_defaults=False)
    assert runs_programs(theirs.task_index, "humaneval")


@pytest.fixture(scope="module")
def harness(folder: Path) -> Any:
    from prism.evaluation.harness import HarnessModel

    model = prism.load_model(folder / "llada")
    writing = writing_for(folder / "llada", 30, 32)
    assert isinstance(writing, Text)
    writer = prism.Writer(model, writing, prism.Pair(prism.Counted()), new_tokens=6, block=3)
    return HarnessModel(writer, length=32, samples=16)


def asked(*args: Any) -> Any:
    return SimpleNamespace(args=args)


def test_generation_is_the_writers(harness: Any) -> None:
    """Each request with its own stop strings and length, whatever the others want."""
    requests = [
        asked("hello", {}),
        asked("abc", {"until": ["a", "e"], "max_gen_toks": 9}),
        asked("xyz", {"until": "q"}),
    ]
    found = harness.generate_until(requests)
    noise = prism.Noise.rows(0, 3)
    for number, (stop, new_tokens) in enumerate([((), 6), (("a", "e"), 9), (("q",), 6)]):
        writer = replace(harness.writer, stop=stop, new_tokens=new_tokens)
        (alone,) = writer.write([requests[number].args[0]], prism.Noise(noise.keys[number : number + 1]))
        assert found[number] == alone.text
    assert len(harness.costs) == 3


def test_likelihoods_are_the_bounds(harness: Any) -> None:
    letters = harness.text.prompt
    pairs = [("hello", "abc"), ("", "xyz")]
    passages = [Passage(letters("hello"), letters("abc")), Passage([], letters("xyz"))]
    found = harness.loglikelihood([asked(*pair) for pair in pairs])
    expected = likelihood_bounds(harness.writer.model, passages, samples=16)
    assert [bound for bound, _ in found] == pytest.approx(expected, rel=1e-4)
    assert all(bound < 0 and math.isfinite(bound) for bound, _ in found)


def test_what_greedy_decoding_writes_is_known(harness: Any) -> None:
    """Of two texts as long, the one it writes and another; a mask at a time, the surest first."""
    greedy = replace(
        harness.writer,
        policy=prism.Pair(prism.Counted(prism.TopProbability())),
        draw=prism.Draw(temperature=0.0),
        new_tokens=3,
    )
    letters = harness.text.prompt("abcdefghijklmnopqrstuvwxyz")
    prompts = ["hello", "cab", "xyz", "a", "zebra"]
    written = replace(greedy, steps=None, block=None, eos=prism.Eos(stops=False))(
        [harness.text.prompt(p) for p in prompts]
    )
    (prompt, found) = next((p, w) for p, w in zip(prompts, written, strict=True) if set(w.tokens) <= set(letters))
    other = found.text[:2] + ("a" if found.text[2] != "a" else "b")
    answers = harness.loglikelihood([asked(prompt, found.text), asked(prompt, other)])
    assert [same for _, same in answers] == [True, False]


def test_long_texts_roll_over_windows(harness: Any) -> None:
    """Every token is judged once, and never with more than the model can see."""
    text = "abcdefghijklmnopqrstuvwxyz" * 3
    windows = harness._windows(harness.text.prompt(text))
    assert sum((window.tokens for window in windows), []) == harness.text.prompt(text)  # noqa: RUF017
    assert all(len(window.prompt) + len(window.tokens) <= 32 for window in windows)
    assert [len(window.prompt) for window in windows] == [0, 16, 16, 16]
    (found,) = harness.loglikelihood_rolling([asked(text)])
    assert found < 0


def test_a_long_context_loses_its_beginning_and_it_is_said(harness: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(harness, "tell", said.append)
    alphabet = "abcdefghijklmnopqrstuvwxyz"
    assert [len(prompt) for prompt in harness._fitted([list(range(40)), [1]], [6, 6])] == [26, 1]
    harness.generate_until([asked(text, {"max_gen_toks": 7}) for text in (alphabet, alphabet[1:], "a")])
    harness.loglikelihood([asked(alphabet, alphabet[:7]), asked("a", "b"), asked("b", "c")])
    of_two, of_three = (f"1 of {count} questions lose their beginning" for count in (2, 3))
    assert [line.partition(":")[0] for line in said] == [of_two, of_three, of_three]
    with pytest.raises(ValueError, match="more than the model's 32"):
        harness.loglikelihood([asked("", alphabet + "abcdefg")])


def test_an_answer_leaves_room_for_its_question(harness: Any) -> None:
    with pytest.raises(ValueError, match="Answers of 32 tokens leave no room for a question in the model's 32"):
        harness.generate_until([asked("ab", {"max_gen_toks": 32})])


def test_every_length_of_answers_is_checked_first(harness: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[int] = []
    monkeypatch.setattr(harness, "check", checked.append)
    harness.generate_until([asked("ab", {"max_gen_toks": 3}), asked("b", {}), asked("c", {"max_gen_toks": 3})])
    assert checked == [3, 6]


def test_tasks_have_four_names_for_a_length(harness: Any) -> None:
    names = ["max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens"]
    for place, name in enumerate(names):
        later = {other: 20 + number for number, other in enumerate(names[place + 1 :])}
        options = {**later, **dict.fromkeys(names[:place]), name: "5"}
        assert harness._wanted(options) == ((), 5)
    assert harness._wanted({}) == ((), 6)


def test_masks_in_a_question_are_refused(harness: Any) -> None:
    for ask in (
        lambda: harness.generate_until([asked("a<|mask|>b", {})]),
        lambda: harness.loglikelihood([asked("a<|mask|>b", "c")]),
        lambda: harness.loglikelihood_rolling([asked("a<|mask|>b")]),
    ):
        with pytest.raises(ValueError, match=r"A question holds '<\|mask\|>', the model's mask"):
            ask()


def test_writing_can_be_watched(harness: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    def watch(what: str, total: int) -> Any:
        seen.append((what, total))
        return nullcontext(seen.append)

    monkeypatch.setattr(harness, "watch", watch)
    requests = [asked("ab", {"max_gen_toks": count}) for count in (3, 4, 3)]
    harness.generate_until(requests, disable_tqdm=True)
    assert seen == []
    harness.generate_until(requests)
    assert seen == [("texts", 3), 1, 2, 3]


@pytest.fixture(scope="module")
def plugin() -> Any:
    from prism.cli.plugin import PrismInHarness

    return PrismInHarness


def test_the_plugin_s_settings(folder: Path, plugin: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    settings = f"model={folder / 'llada'},policy=vanilla,block=4,samples=2,stop=abc,temperature=1"
    model = plugin.create_from_arg_string(settings, {"batch_size": 3, "device": "cuda:0"})
    writer = model.writer
    assert (writer.batch, writer.block, writer.stop, writer.draw.temperature) == (3, 4, ("abc",), 1.0)
    assert (model.samples, str(writer.device)) == (2, "cpu")
    model = plugin(model=str(folder / "llada"), policy="vanilla", batch=4, batch_size=1, stop=("a", "b"))
    assert (model.writer.batch, model.writer.stop) == (4, ("a", "b"))


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"steps": "abc"}, "--steps: expected int, got 'abc'"),
        ({"seed": "x"}, "--seed: expected int, got 'x'"),
        ({"stop": (1,)}, "--stop: expected str, got '1'"),
        ({"samples": 0}, "--samples 0: must be at least 1"),
        ({"new_tokens": 0}, "--new_tokens 0: must be at least 1"),
        ({"block": 0}, "--block 0: at least 1 position"),
        ({"steps": 0}, "--steps 0: take at least 1 forward pass"),
        ({"batch_size": 0}, "--batch 0"),
        ({"batch_size": "auto"}, "give batch_size=N"),
        ({"stpes": 3}, "There is no setting 'stpes' (did you mean 'steps'?)"),
        ({"model": None}, "Name a --model"),
    ],
)
def test_the_plugin_checks_its_settings(
    settings: dict[str, Any], complaint: str, folder: Path, plugin: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before it loads anything."""
    monkeypatch.setattr("prism.cli.command.load_model", lambda *_, **__: pytest.fail("loaded in vain"))
    with pytest.raises(ValueError, match=re.escape(complaint)):
        plugin(**{"model": str(folder / "llada"), "policy": "vanilla", **settings})


def test_lm_eval_s_own_command_as_documented(folder: Path, tmp_path: Path) -> None:
    """With its default device, which few machines that run tests have."""
    (line,) = re.findall(r"^python (-c .*)$", (ROOT / "docs" / "writing.md").read_text(encoding="utf-8"), re.MULTILINE)
    words = shlex.split(line)
    own = {"--model_args": f"model={folder / 'llada'},policy=vanilla,block=4", "--tasks": "tiny_writes"}
    for flag, value in own.items():
        words[words.index(flag) + 1] = value
    words += ["--include_path", str(folder / "tasks"), "--output_path", str(tmp_path / "out.json")]
    environment = {**os.environ, "HF_DATASETS_CACHE": str(tmp_path / "cache"), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, check=False, env=environment, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    (results,) = tmp_path.glob("out_*.json")
    assert json.loads(results.read_text())["results"]["tiny_writes"]["exact_match,none"] == 0
