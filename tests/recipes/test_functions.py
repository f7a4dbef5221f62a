"""The study of functions at a size that writes nonsense and runs everything."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from test_llama import theirs
from texts import write_tokenizer
from wheels import write_packages

from prism.cli import main
from prism.models.hub import load_backbone, load_model
from prism.models.llama import Llama
from prism.recipes.reproduce.functions import SCALES, FunctionsStudy
from prism.recipes.reproduce.functions_results import ORDERS, contenders
from prism.recipes.reproduce.workshop import Workshop

TINY = SCALES["tiny"]


def run(*words: str | Path) -> int:
    return main([str(word) for word in words])


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`wheels` and `corpus`, the functions in them; `models`, made from those by the command line, and `results`."""
    path = tmp_path_factory.mktemp("study")
    write_packages(path / "wheels", 10, 4)
    write_tokenizer(path / "words")
    made = ["--output", path / "corpus", "--tokenizer", path / "words", "--workers", "1", "--held_out", "0.2"]
    assert run("functions", "--packages", path / "wheels", *made, "--json", path / "made.json") == 0
    assert run("reproduce", "functions", *_study(path)) == 0
    return path


def _study(path: Path) -> list[str | Path]:
    return ["--data", path / "corpus", "--output", path / "models", "--results", path / "results"]


def test_every_method_writes_every_function(root: Path) -> None:
    study = FunctionsStudy(TINY, Workshop(root / "models", root / "results"), root / "corpus", None)
    for steps in TINY.steps:
        rows = json.loads((root / "results" / f"methods_{steps}.json").read_text())["rows"]
        assert len(rows) == len(ORDERS) * len(contenders(study))
        assert {row["functions"] for row in rows} == {TINY.functions}
        assert all(row["nfe"] <= steps for row in rows)
        remasks = {row["method"]: row["remasks"] for row in rows}
        assert remasks["vanilla"] == 0
        assert remasks["prism K=2"] > 0
    assert load_model(study.tuned()).quality_head is not None


def test_the_originals_are_sound(root: Path) -> None:
    found = json.loads((root / "results" / "originals.json").read_text())
    assert found["sound"] == found["exact"] == 1


def test_report_and_diffs(root: Path) -> None:
    page = (root / "results" / "README.md").read_text()
    assert "| the originals |" in page
    assert "steps.svg" in page
    rows = json.loads((root / "results" / f"corrections_{TINY.steps[0]}.json").read_text())["rows"]
    for row in rows:
        assert row["page"] in page
        assert sum(row["changes"].values()) == TINY.functions
        assert "each written twice" in (root / "results" / row["page"]).read_text()


def test_held_out_functions_are_held_out(root: Path) -> None:
    study = FunctionsStudy(TINY, Workshop(root / "models", root / "results"), root / "corpus", None)
    functions, rows = study.test
    assert [study.tokenizer.decode(row[:prompt]) for row, prompt in zip(rows.tokens, rows.prompts, strict=True)] == [
        function.prompt for function in functions
    ]
    packages = study.corpus.manifest["packages"]
    assert {packages[function.package]["side"] for function in functions} == {"test"}
    assert (rows.prompts <= TINY.longest_prompt).all()


def test_again_makes_nothing_anew(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FunctionsStudy, "write", lambda *_, **__: pytest.fail("written again"))
    assert run("reproduce", "functions", *_study(root)) == 0


def test_other_settings_are_refused(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("reproduce", "functions", *_study(root), "--base", root) == 2
    assert "other settings" in capsys.readouterr().err


def test_a_causal_model_is_adapted(root: Path, tmp_path: Path) -> None:
    theirs("llama", vocab_size=320).save_pretrained(tmp_path / "causal")
    workshop = Workshop(tmp_path / "models", tmp_path / "results")
    study = FunctionsStudy(TINY, workshop, root / "corpus", str(tmp_path / "causal"))
    model = load_backbone(study.pretrained())
    assert isinstance(model, Llama)
    assert model.facts.mask_id == 320
    theirs("llama", vocab_size=100).save_pretrained(tmp_path / "small")
    other = FunctionsStudy(TINY, Workshop(tmp_path / "m", tmp_path / "r"), root / "corpus", str(tmp_path / "small"))
    with pytest.raises(ValueError, match="make them anew with its own tokenizer"):
        other.pretrained()


def test_functions_command(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = json.loads((root / "made.json").read_text())
    assert sum(split["functions"] for split in made["splits"].values()) == 40
    assert made["tokens"]["train"]["functions"] == made["splits"]["train"]["functions"]
    assert run("functions", "--output", tmp_path / "c") == 2
    assert "--packages: name wheels" in capsys.readouterr().err
    assert run("functions", "--packages", tmp_path / "none", "--output", tmp_path / "c") == 2
    assert "no such file or folder" in capsys.readouterr().err
    assert not (tmp_path / "c").exists()
