"""Text from the command line: a LLaDA of two layers with its tokenizer, in the hub's format."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from test_published import llada
from texts import write_letters

import prism
from prism.cli import main
from prism.models.fused import FusedLlama

MASK = 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_letters(llada(tmp_path_factory.mktemp("hub")))


def sampled(folder: Path, tmp_path: Path, *words: str) -> dict[str, Any]:
    out = tmp_path / "out.json"
    given = [] if "--policy" in words else ["--policy", "vanilla"]
    assert main(["sample", "--model", str(folder), *given, *words, "--json", str(out)]) == 0
    return json.loads(out.read_text())


def test_a_prompt_is_continued_in_blocks(folder: Path, tmp_path: Path) -> None:
    words = ["--prompt", "hello", "--new_tokens", "12", "--block", "4", "--eos", "keep", "--count", "3"]
    found = sampled(folder, tmp_path, *words)
    assert [len(tokens) for tokens in found["tokens"]] == [17] * 3
    assert all(text.startswith("hello") for text in found["texts"])
    assert len(set(found["completions"])) == 3
    assert (found["ends"], found["nfe"]) == (["LENGTH"] * 3, 12)
    assert sampled(folder, tmp_path, *words, "--batch", "1")["tokens"] == found["tokens"]
    refreshed = sampled(folder, tmp_path, *words, "--cache", "dual", "--refresh", "1")
    assert refreshed["tokens"] == found["tokens"]
    for cache in ("dual", "prefix"):
        assert all(MASK not in tokens for tokens in sampled(folder, tmp_path, *words, "--cache", cache)["tokens"])


def test_compiled_layers_write_the_same(folder: Path, tmp_path: Path) -> None:
    """In a process of its own: the compiler does not see through the shape checks of the tests."""
    words = ["--prompt", "hello", "--new_tokens", "6", "--block", "3", "--temperature", "0", "--eos", "keep"]
    made = tmp_path / "made"
    command = ["sample", "--model", str(folder), "--policy", "vanilla", *words, "--compile", "true"]
    done = subprocess.run(
        [sys.executable, "-m", "prism", *command, "--json", str(tmp_path / "compiled.json")],
        env={**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(made)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    compiled = json.loads((tmp_path / "compiled.json").read_text())
    assert compiled["tokens"] == sampled(folder, tmp_path, *words)["tokens"]
    assert list(made.rglob("*.cpp")), "the compiler made nothing"


def test_writer_and_judge_are_compiled(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = prism.attach(prism.load_backbone(folder), prism.ProjectionConfig(24))
    model.save(tmp_path / "corrector", base=str(folder))
    compiled: list[FusedLlama] = []
    monkeypatch.setattr(FusedLlama, "compile", lambda backbone, *, dynamic: compiled.append(backbone))
    words = ["--policy", "prism", "--k", "1", "--prompt", "hello", "--new_tokens", "8"]
    sampled(folder, tmp_path, *words, "--corrector", str(tmp_path / "corrector"), "--compile", "true")
    assert len({id(backbone) for backbone in compiled}) == 2


def test_a_text_ends_where_it_is_told_to(folder: Path, tmp_path: Path) -> None:
    words = ["--prompt", "hello", "--new_tokens", "16", "--block", "4", "--count", "6"]
    every = "abcdefghijklmnopqrstuvwxyz"
    stopped = sampled(folder, tmp_path, *words, "--min_tokens", "2", "--stop", *every)
    assert (stopped["ends"], stopped["completions"]) == (["STOP"] * 6, [""] * 6)
    assert stopped["nfe"] == 4
    assert sampled(folder, tmp_path, *words, "--min_tokens", "16")["ends"] == ["LENGTH"] * 6
    assert "EOS" in sampled(folder, tmp_path, *words, "--stop", "[DONE]")["ends"]


def test_a_chat(folder: Path, tmp_path: Path) -> None:
    found = sampled(folder, tmp_path, "--chat", "true", "--system", "be", "--prompt", "hi", "--new_tokens", "4")
    assert found["texts"][0].replace(" ", "").startswith("be<|im_end|><|user|>hi<|im_end|>")


def test_a_corrector_reads_with_the_tokenizer_of_its_backbone(folder: Path, tmp_path: Path) -> None:
    model = prism.attach(prism.load_backbone(folder), prism.ProjectionConfig(24))
    model.save(tmp_path / "corrector", base=str(folder))
    words = ["--policy", "prism", "--k_block", "2", "--prompt", "hello", "--new_tokens", "8", "--eos", "keep"]
    found = sampled(tmp_path / "corrector", tmp_path, *words)
    assert found["texts"][0].startswith("hello")
    assert (len(found["quality"][0]), found["remasks"]) == (13, 2)


def test_a_corrector_with_other_words_is_refused(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same number of ids and the same mask, and all letters mean others."""
    corrector, other = tmp_path / "corrector", tmp_path / "other"
    shutil.copytree(folder, tmp_path / "base")
    for path, base in ((corrector, folder), (other, tmp_path / "base")):
        prism.attach(prism.load_backbone(base), prism.ProjectionConfig(24)).save(path, base=str(base))
    file = tmp_path / "base" / "tokenizer.json"
    words = json.loads(file.read_text())
    words["model"]["vocab"] |= {"a": words["model"]["vocab"]["b"], "b": words["model"]["vocab"]["a"]}
    file.write_text(json.dumps(words))
    given = ["--policy", "prism", "--k", "1", "--prompt", "hello", "--new_tokens", "8", "--eos", "keep"]
    assert sampled(folder, tmp_path, *given, "--corrector", str(corrector))["nfe"] == 16
    assert main(["sample", "--model", str(folder), *given, "--corrector", str(other)]) == 2
    assert f"--corrector {other}: its tokenizer is not that of {folder}" in capsys.readouterr().err


def test_gaps_are_filled(folder: Path, tmp_path: Path) -> None:
    (filled,) = sampled(folder, tmp_path, "--prompt", "he<|mask|><|mask|>o")["tokens"]
    assert (filled[:2], filled[4:], MASK in filled) == ([11, 8], [18], False)
    (longer,) = sampled(folder, tmp_path, "--prompt", "he<|mask|><|mask|>o", "--length", "9")["tokens"]
    assert (longer[:2], longer[4], len(longer), MASK in longer) == ([11, 8], 18, 9, False)
