"""lm-eval with a LLaDA of two layers, in the hub's format, on tasks from a file."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from test_published import llada
from texts import write_letters

import prism
from prism.cli import main
from prism.data.writing import Text, writing_for
from prism.evaluation.likelihood import Passage, likelihood_bounds

pytest.importorskip("lm_eval", reason="lm-eval is not installed: pip install 'prism-mdm[harness]'")
pytestmark = pytest.mark.filterwarnings("default")  # lm-eval's and its many dependencies' own

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


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("harness")
    write_letters(llada(root))
    (root / "questions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in QUESTIONS))
    (root / "tasks").mkdir()
    for task in (WRITES, CHOOSES, ROLLS):
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
    ],
)
def test_bad_words(more: str, complaint: str, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", "harness", *words, *more.split()]) == 2
    assert complaint in capsys.readouterr().err


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


def test_a_long_context_loses_its_beginning(harness: Any) -> None:
    assert len(harness._room(list(range(40)), 6)) == 26
    with pytest.raises(ValueError, match="more than the model's 32"):
        harness._room([], 33)


def test_lm_eval_finds_the_model_by_name(folder: Path) -> None:
    code = (
        "import prism.cli.plugin\nfrom lm_eval.api.registry import get_model\n"
        f"model = get_model('prism').create_from_arg_string('model={folder / 'llada'},policy=vanilla,block=4,samples=2',"
        " {'batch_size': 3, 'device': 'cpu'})\n"
        "print(type(model).__name__, model.writer.batch, model.writer.block, model.samples)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["PrismInHarness", "3", "4", "2"], done.stderr
