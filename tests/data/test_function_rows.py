"""Functions as tokens: nothing lost, prompts as a model will be given them, examples for training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from texts import write_tokenizer
from wheels import write_packages

from prism.data.function_corpus import FunctionCorpus, FunctionRecipe, FunctionsError, make_functions
from prism.data.function_rows import FunctionBodies, FunctionRows, WholeFunctions, write_rows
from prism.data.packages import find_packages
from prism.data.text import end_of_text, load_tokenizer

CPU = torch.device("cpu")
LENGTH = 256


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`corpus`; `words`, a tokenizer; `tokens`, made of it with that in files of 400 tokens."""
    path = tmp_path_factory.mktemp("rows")
    packages = find_packages([write_packages(path / "wheels", 8, 4)])
    corpus = make_functions(packages, path / "corpus", FunctionRecipe(held_out=0.2), published={})
    write_rows(corpus, load_tokenizer(write_tokenizer(path / "words")), path / "tokens", part=400)
    return path


@pytest.fixture(scope="module")
def tokenizer(root: Path) -> Any:
    return load_tokenizer(root / "tokens" / "tokenizer")


def test_rows_are_the_functions(root: Path, tokenizer: Any) -> None:
    functions = list(FunctionCorpus.load(root / "corpus").functions("train"))
    rows = FunctionRows.load(root / "tokens", "train", LENGTH)
    assert rows.numbers.tolist() == list(range(len(functions)))
    for function, tokens, prompt in zip(functions, rows.tokens.tolist(), rows.prompts.tolist(), strict=True):
        ids = tokens[: tokens.index(rows.end)]
        assert tokenizer.decode(ids) == function.text
        assert ids[:prompt] == tokenizer(function.prompt, add_special_tokens=False)["input_ids"]
        assert set(tokens[len(ids) :]) == {end_of_text(tokenizer)}


def test_several_files_and_small_numbers(root: Path) -> None:
    index = json.loads((root / "tokens" / "rows.json").read_text())
    files = index["splits"]["train"]["files"]
    assert len(files) > 1
    whole = sum((root / "tokens" / file).stat().st_size for file in files)
    assert whole < 2 * index["splits"]["train"]["tokens"] + 1000 * len(files)


def test_long_functions_are_left_out(root: Path) -> None:
    rows = FunctionRows.load(root / "tokens", "train", LENGTH)
    lengths = (rows.tokens != rows.end).sum(1) + 1
    middle = int(lengths.median())
    shorter = FunctionRows.load(root / "tokens", "train", middle)
    assert shorter.numbers.tolist() == torch.nonzero(lengths <= middle)[:, 0].tolist()
    assert shorter.tokens.shape == (len(shorter), middle)
    with pytest.raises(FunctionsError, match="of at most 5 tokens"):
        FunctionRows.load(root / "tokens", "train", 5)
    with pytest.raises(FunctionsError, match="no 'tests' functions"):
        FunctionRows.load(root / "tokens", "tests", LENGTH)


def test_examples(root: Path) -> None:
    rows = FunctionRows.load(root / "tokens", "train", LENGTH)
    everything, bodies = (kind(rows, seed=3).batch(range(len(rows)), CPU) for kind in (WholeFunctions, FunctionBodies))
    assert everything.free.all()
    assert torch.equal(everything.tokens, bodies.tokens)
    assert sorted(everything.tokens.tolist()) == sorted(rows.tokens.tolist())
    assert bodies.maskable is not None
    assert sorted((~bodies.maskable).sum(1).tolist()) == sorted(rows.prompts.tolist())
    assert (bodies.maskable.int().diff(dim=1) >= 0).all()  # first the prompt, then what is to be written
    assert not torch.equal(WholeFunctions(rows, seed=4).batch(range(len(rows)), CPU).tokens, everything.tokens)


def test_what_is_there_is_kept(root: Path, tmp_path: Path) -> None:
    corpus = FunctionCorpus.load(root / "corpus")
    before = (root / "tokens" / "train-00.safetensors").stat().st_mtime_ns
    counts = write_rows(corpus, load_tokenizer(root / "words"), root / "tokens")
    assert counts["train"]["functions"] == corpus.manifest["splits"]["train"]["functions"]
    assert (root / "tokens" / "train-00.safetensors").stat().st_mtime_ns == before
    other = load_tokenizer(root / "words")
    other.add_tokens(["return"])
    with pytest.raises(FunctionsError, match="another tokenizer"):
        write_rows(corpus, other, root / "tokens")
