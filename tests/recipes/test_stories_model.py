"""The embedded text model, from a causal model of random weights to a folder of the package."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
import torch
from stand_ins import tiny_truth
from test_causal import write_llama2c
from texts import write_llama2c_tokenizer

from prism.data.llama2c import Llama2c
from prism.data.text import TextError, load_tokenizer
from prism.models.attach import PrismModel
from prism.models.hub import load_model
from prism.recipes.reproduce.workshop import Workshop
from prism.recipes.stories_model import CONTEXT, SCALES, StoriesModel

TINY = SCALES["tiny"]
DOCS = Path(__file__).resolve().parents[2] / "docs"


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def ingredients(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`truth.bin` and `tokenizer.bin`: 281 tokens, so that one in so many begins another story."""
    path = tmp_path_factory.mktemp("truth")
    write_llama2c(path / "truth.bin", tiny_truth(281).llama)
    write_llama2c_tokenizer(path / "tokenizer.bin", [f" {letter}" for letter in "abcdefghijklmnopqrstuv"])
    return path


@pytest.fixture(scope="module")
def made(ingredients: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of the script; its model lies in `prism/model`."""
    output = tmp_path_factory.mktemp("made") / "stories"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.cpu_count", lambda: 1)
        _make(ingredients, output)
        yield output


def _make(ingredients: Path, output: Path) -> Path:
    files = ["--truth", str(ingredients / "truth.bin"), "--tokenizer", str(ingredients / "tokenizer.bin")]
    return script("embed_text").main([*files, "--output", str(output), "--scale", "tiny"])


def test_a_model_with_a_head_and_its_tokenizer(made: Path) -> None:
    model, tokenizer = load_model(made / "prism" / "model"), load_tokenizer(made / "prism" / "model")
    assert isinstance(model, PrismModel)
    assert model.quality_head is not None
    assert model.facts.mask_id == tokenizer.mask_token_id
    assert model.facts.vocab_size == TINY.vocabulary == len(tokenizer)


def test_what_is_there_is_not_made_again(made: Path, ingredients: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {
        path: path.stat().st_mtime_ns for path in made.rglob("*") if path.suffix in (".npy", ".bin", ".safetensors")
    }
    assert len(before) == 6
    assert _make(ingredients, made) == made / "prism" / "model"
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert "training" not in capsys.readouterr().out


def test_killed_before_the_tuning_it_goes_on(
    made: Path, ingredients: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stage asks for what the ones before it left, and writes no corpus twice."""
    shutil.copytree(made, tmp_path / "killed")
    shutil.rmtree(tmp_path / "killed" / "prism")
    monkeypatch.setattr("prism.recipes.stories_model.corpus", None)
    path = _make(ingredients, tmp_path / "killed")
    again, first = (load_model(folder).state_dict() for folder in (path, made / "prism" / "model"))
    assert all(torch.equal(again[name], tensor) for name, tensor in first.items())


def test_embedded_it_is_half_the_size_and_nearly_the_same(made: Path, tmp_path: Path) -> None:
    source, place = made / "prism" / "model", tmp_path / "assets" / "stories"
    size = script("embed").embed(source, place)
    assert 2 * size == pytest.approx(sum(path.stat().st_size for path in source.rglob("*.safetensors")), rel=0.1)
    assert (place / "tokenizer.json").read_bytes() == (source / "tokenizer.json").read_bytes()
    tokens = torch.arange(2, 2 + TINY.length)[None]
    with torch.no_grad():
        before, after = (load_model(path, dtype=torch.float32).predict(tokens).quality for path in (source, place))
    torch.testing.assert_close(before, after, atol=0.02, rtol=0)


def test_only_whole_stories_are_learned(made: Path, ingredients: Path) -> None:
    language = Llama2c.load(ingredients / "tokenizer.bin")
    model = StoriesModel(TINY, Workshop(made, made), tiny_truth(281), language)
    assert model.written.shape == (TINY.sequences, CONTEXT)
    stories = {story for story in language.documents(model.written) if story}
    assert sum(split.documents for split in model.tokens.splits.values()) == len(stories)
    end = model.tokenizer.eos_token_id
    for row in model._examples(seed=0).tokens.tolist():
        text = model.tokenizer.decode(row[: row.index(end)] if end in row else row)
        assert any(story == text or (end not in row and story.startswith(text.rstrip("�"))) for story in stories)


def test_the_tokenizer_must_be_the_truths(ingredients: Path, tmp_path: Path) -> None:
    language = Llama2c.load(ingredients / "tokenizer.bin")
    with pytest.raises(TextError, match="281 tokens and the truth 300; name its own"):
        StoriesModel(replace(TINY, sequences=1), Workshop(tmp_path, tmp_path), tiny_truth(300), language)
