"""The study of Wikipedia at a size that writes nonsense and runs everything, from text and a causal model to the page."""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from stand_ins import nearness
from test_llama import theirs
from texts import essays, write_letters, write_lines, write_tokenizer

from prism.cli import main
from prism.cli.parser import parse
from prism.cli.reproduce import ReproduceWikipedia
from prism.cli.tokenize import Tokenize
from prism.data.text import end_of_text, load_tokenizer, vocabulary_size
from prism.models.attach import PrismModel
from prism.models.dit import DiT
from prism.models.hub import load_backbone, load_model, save_backbone
from prism.models.llama import Llama
from prism.recipes.reproduce.frontier import reached, told
from prism.recipes.reproduce.strengths import best_of
from prism.recipes.reproduce.texts_report import beside_rivals, rivals_table, verdicts
from prism.recipes.reproduce.wikipedia import CANDIDATES, PUBLISHED, SCALES, VARIANTS, WikipediaStudy
from prism.recipes.reproduce.wikipedia_report import WAYS, compared, write_report
from prism.recipes.reproduce.wikipedia_results import TRAINING_FREE, results_of
from prism.recipes.reproduce.workshop import Workshop
from prism.sampling.order import TopProbability

TINY, FULL = SCALES["tiny"], SCALES["full"]
FEW, MANY = TINY.steps[:2], TINY.steps[2:]


def run(*words: str | Path) -> int:
    return main([str(word) for word in words])


def reproduce(root: Path, output: Path, *more: str | Path) -> int:
    given = ["--data", root / "tokens", "--base", root / "base", "--judge", root / "judge"]
    return run("reproduce", "wikipedia", *given, "--output", output, *more)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """`tokens`, the causal model `base` they were made for, and `judge`, of another family and with other words."""
    from transformers import GPT2Config, GPT2LMHeadModel

    path = tmp_path_factory.mktemp("wikipedia")
    tokenizer = load_tokenizer(write_tokenizer(path / "words"))
    causal = theirs("llama", vocab_size=vocabulary_size(tokenizer), tie_word_embeddings=True)
    for weight in causal.parameters():
        torch.nn.init.normal_(weight, std=0.02)
    causal.save_pretrained(path / "base")
    tokenizer.save_pretrained(path / "base")
    GPT2LMHeadModel(GPT2Config(vocab_size=320, n_embd=16, n_layer=1, n_head=2)).save_pretrained(path / "judge")
    tokenizer.save_pretrained(path / "judge")
    lines = write_lines(path / "articles.jsonl", essays(80))
    words = ["--input", lines, "--tokenizer", path / "words", "--output", path / "tokens", "--workers", "1"]
    assert run("tokenize", *words, "--validation", "0.3") == 0
    # nothing here is worth adapting, so what begins with nothing is kept from learning: the evidence must be for the other
    slow = replace(CANDIDATES["from-scratch"], suited=lambda settings: replace(settings, lr=1e-9, muon_lr=1e-9))
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(CANDIDATES, "from-scratch", slow)
        patch.setattr("prism.recipes.reproduce.wikipedia_results.NUCLEI", (0.9,))
        patch.setattr("prism.recipes.reproduce.wikipedia_results.TIMES", (1.28, 2.56))
        patch.setattr("prism.cli.reproduce.require_mauve", lambda otherwise: None)
        patch.setattr("prism.recipes.reproduce.wikipedia_results.require_mauve", lambda: None)
        patch.setattr("prism.evaluation.mauve.clustering", partial(nearness, shape=(TINY.samples, 16)))
        yield path


@pytest.fixture(scope="module")
def done(root: Path) -> Path:
    """The folder of a whole run."""
    assert reproduce(root, root / "run", "--json", root / "run.json") == 0
    return root / "run"


def result(folder: Path, name: str) -> dict[str, Any]:
    return json.loads((folder / "results" / f"{name}.json").read_text())


def study_in(root: Path, folder: Path) -> WikipediaStudy:
    workshop = Workshop(folder, folder / "results")
    return WikipediaStudy(TINY, workshop, root / "tokens", str(root / "base"), str(root / "judge"))


# ── the configuration ───────────────────────────────────────────────────────────────────────────────────────────────


def test_at_full_scale_it_is_what_was_asked_for() -> None:
    assert (FULL.length, FULL.steps, FULL.swept) == (512, (16, 32, 64, 128), (16, 32, 64))
    assert FULL.samples >= 1000
    assert (PUBLISHED.k, PUBLISHED.ys, PUBLISHED.regulariser, PUBLISHED.order) == (8, 4, 0.5, TopProbability())
    assert FULL.tokens(FULL.adaptation) == 294_912_000
    assert FULL.tokens(FULL.adaptation) == 50 * FULL.tokens(FULL.tuning)


def test_prism_sees_no_more_than_its_share() -> None:
    with pytest.raises(ValueError, match=r"more than 1/50 of the 294,912,000 .* at most 360 steps of 32 sequences"):
        replace(FULL, tuning=replace(FULL.tuning, steps=361))


# ── a run ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_every_result_is_made(root: Path, done: Path) -> None:
    made = json.loads((root / "run.json").read_text())["results"]
    assert made == list(results_of(study_in(root, done)))
    assert made[0] == "evidence"
    assert made[-1] == "mauve"


def test_the_evidence_decides(root: Path, done: Path) -> None:
    told = result(done, "evidence")
    assert [row["name"] for row in told["rows"]] == list(CANDIDATES)
    assert told["tokens"] == 4 * 8 * 16
    best = min(told["rows"], key=lambda row: row["bound"])
    assert told["chosen"] == best["name"]
    for row in told["rows"]:
        assert row["bound_interval"][0] <= row["bound"] <= row["bound_interval"][1]
        model = load_backbone(done / f"evidence-{row['name']}" / "model")
        assert isinstance(model, DiT if row["name"] == "from-scratch" else Llama)
        if isinstance(model, Llama):
            assert model.config.shifted == (row["name"] == "adapted-shifted")
        assert model.facts.mask_id == 320
    chosen = load_backbone(done / f"evidence-{best['name']}" / "model")
    adapted = load_backbone(done / "adapted" / "model")
    assert isinstance(adapted, Llama)
    assert adapted.config == chosen.config


def test_the_backbone_learns_only_where_it_is_to(done: Path) -> None:
    adapted = load_backbone(done / "adapted" / "model").state_dict()
    for name, variant in VARIANTS.items():
        model = load_model(done / name / "model")
        assert isinstance(model, PrismModel)
        assert type(model.head_config) is variant.head
        assert (model.lora is None) == (variant.rank is None)
        own = load_backbone(done / name / "model" / "backbone").state_dict()
        same = [torch.equal(own[key], weight) for key, weight in adapted.items()]
        assert not any(same) if variant.tune_backbone else all(same)
    told = result(done, "training")["models"]
    assert told["prism"]["tokens"] * 50 <= told["adapted"]["tokens"]


def test_sequences_begin_and_end_with_a_given_token(root: Path, done: Path) -> None:
    study = study_in(root, done)
    end = end_of_text(study.tokenizer)
    batch = study._examples(0).batch(range(5), torch.device("cpu"))
    for some in (batch, study.held_out()):
        assert some.tokens.shape[1] == TINY.length
        assert (some.tokens[:, [0, -1]] == end).all()
        assert not some.free[:, [0, -1]].any()
        assert some.free[:, 1:-1].all()
    state = study.blank(3)
    assert (state.tokens[:, [0, -1]] == end).all()
    assert state.masked[:, 1:-1].all()
    for file in (done / "samples").glob("*.jsonl"):
        rows = [json.loads(one)["tokens"] for one in file.read_text().splitlines()]
        assert len(rows) == TINY.samples
        assert all(row[0] == row[-1] == end and study.tokenizer.mask_token_id not in row for row in rows)


def test_no_text_is_compared_with_that_weights_were_chosen_on(root: Path, done: Path) -> None:
    study = study_in(root, done)
    sets = [study.held_out().tokens.tolist(), study.texts(), study.learnt()]
    together = {tuple(row) for some in sets for row in some}
    assert len(together) == sum(map(len, sets))


def test_every_method_is_told_by_other_texts_than_its_setting_was_found_by(done: Path) -> None:
    entropy = result(done, "data")["entropy"]
    for steps in FEW:
        swept, told = result(done, f"sweep_{steps}")["rows"], result(done, f"methods_{steps}")["rows"]
        assert [row["method"] for row in told[:-1]] == list(
            dict.fromkeys(row["method"] for row in swept if row["method"] in TRAINING_FREE)
        )
        assert {row["method"] for row in told} == {*TRAINING_FREE, "prism"}
        for row in told:
            best = best_of([other for other in swept if other["method"] == row["method"]], entropy)
            assert {**row["sampling"], "seed": 1} == best["sampling"]
            assert (best["samples"], row["samples"]) == (TINY.screened, TINY.samples)
            assert row["nfe"] <= steps
            assert row["perplexity_interval"][0] <= row["perplexity"] <= row["perplexity_interval"][1]
            assert row["weights"] == "prism"


def test_more_steps_take_the_best_rival_and_its_strength(done: Path) -> None:
    fewer, entropy = result(done, f"methods_{FEW[1]}")["rows"], result(done, "data")["entropy"]
    rival = best_of(fewer[:-1], entropy)
    for steps in MANY:
        rows = result(done, f"methods_{steps}")["rows"]
        assert [row["method"] for row in rows] == [rival["method"], "prism"]
        assert {row["steps"] for row in rows} == {steps}
        eta = min(1.0, fewer[-1]["sampling"]["eta"] * FEW[1] / steps)
        assert rows[-1]["sampling"]["eta"] == pytest.approx(eta)


def test_ablations_share_what_is_written(done: Path) -> None:
    rows = result(done, "ablations")["rows"]
    assert [(row["weights"], row["method"]) for row in rows] == [
        (name, method)
        for name in VARIANTS
        for _ in FEW
        for method in (("prism", "p2-self") if name in ("prism-paper", "prism-lora") else ("prism",))
    ]
    main, again = result(done, f"methods_{FEW[0]}")["rows"][-1], rows[0]
    assert again["name"] == main["name"]
    assert again["texts"] == main["texts"]


def test_knowledge_is_told_by_time(done: Path) -> None:
    told = result(done, "knowledge")
    for run in told["runs"].values():
        assert run["tokens"] == sum(sum(curve["count"]) for curve in run["by_fifth_filled"])
    assert set(told["detection"]["auroc"]) == {"quality", "own", "likelihood"}


def test_the_page(done: Path) -> None:
    page, texts = ((done / "results" / name).read_text() for name in ("README.md", "samples.md"))
    for figure in ("frontier.svg", "steps.svg", "knowledge.svg"):
        assert figure in page
        assert (done / "results" / figure).stat().st_size > 1000
    for heading in (
        "How to begin",
        "How the models",
        "best setting",
        "against every other",
        "Does the head",
        "PRISM in other ways",
        "Where the figures come from",
    ):
        assert heading in page
    row = result(done, f"methods_{FEW[0]}")["rows"][-1]
    score = next(one for one in result(done, "mauve")["rows"] if one["name"] == row["name"])
    assert f"{row['perplexity']:.1f} [" in page
    assert f"{score['mauve']:.3f} [" in page
    assert texts.count("## prism,") == len(TINY.steps)
    assert "<|endoftext|>" in texts


def test_other_ways_stand_beside_the_main_one_at_their_own_entropy(done: Path) -> None:
    """Less likely at the same strength may only be more diverse."""
    page = (done / "results" / "README.md").read_text()
    lines = [line for line in page.splitlines() if line.startswith(tuple(f"| {name} |" for name in (*VARIANTS, *WAYS)))]
    rows = result(done, "ablations")["rows"]
    for row, line in zip(rows, lines[-len(rows) :], strict=True):
        swept = [one for one in result(done, f"sweep_{row['steps']}")["rows"] if one["method"] == "prism"]
        assert line.split(" | ")[-1] == f"{told(reached(swept, row['entropy']))} |"
    assert "| prism-paper |" not in page  # whose k and n_y are not the paper's
    assert "`prism-published`, a block head and the whole backbone" in page
    assert "written anew" not in page


def test_a_row_that_was_written_twice_is_told(done: Path, tmp_path: Path) -> None:
    shutil.copytree(done / "results", tmp_path / "results")
    found = result(done, "ablations")
    found["rows"][0]["nll"] += 0.01
    (tmp_path / "results" / "ablations.json").write_text(json.dumps(found))
    page = write_report(tmp_path / "results").read_text()
    assert f"The row of `prism` with N = {FEW[0]} was written anew" in page


def test_a_verdict_needs_likelihood_mauve_and_diversity() -> None:
    def row(method: str, nll: float, mauve: float, entropy: float) -> dict[str, Any]:
        intervals = {"nll_interval": [nll - 0.1, nll + 0.1], "mauve_of_means_interval": [mauve - 0.1, mauve + 0.1]}
        return {"method": method, "nll": nll, "mauve_of_means": mauve, "entropy": entropy, **intervals}

    rows = [
        row("near", 3.15, 0.6, 4.8),
        row("worse", 4.0, 0.2, 5.3),
        row("better", 2.0, 0.9, 5.3),
        row("prism", 3, 0.5, 4.85),
    ]
    found = {one["rival"]: one for one in verdicts(rows, 5.2)}
    told = {
        name: [one[part] for part in ("likelier", "mauve", "mauve_of_means", "entropy", "diverse")]
        for name, one in found.items()
    }
    assert told == {
        "near": ["yes, intervals overlap", "–", "no, intervals overlap", 4.8, True],
        "worse": ["yes", "–", "yes", 5.3, False],
        "better": ["no", "–", "no", 5.3, False],
    }


def test_a_rival_at_its_likeliest_meets_prism_as_diverse_as_that() -> None:
    def row(method: str, nll: float, entropy: float) -> dict[str, Any]:
        told = {"method": method, "nll": nll, "nll_interval": [nll - 0.1, nll + 0.1], "entropy": entropy}
        return {**told, "nucleus": 1.0, "sampling": {}}

    ours = [row("prism", 1.0, 4.0), row("prism", 2.0, 4.3), row("prism", 2.5, 4.35)]
    rows = [*ours, row("near", 2.1, 4.38), row("near", 3.0, 5.0), row("plain", 0.5, 3.0), row("better", 1.5, 4.31)]
    assert {rival["method"]: (rival["nll"], mine and mine["nll"]) for rival, mine in beside_rivals(rows)} == {
        "near": (2.1, 2.0),  # and not 1.0, which is too plain
        "plain": (0.5, None),
        "better": (1.5, 2.0),
    }
    lines = [line.split(" | ") for line in rivals_table({8: rows}, "nll", "nats").splitlines()[2:]]
    told = {line[1]: line[5:9] for line in lines}
    assert told["near"] == ["p=1", "2.000 [1.900, 2.100]", "4.300", "yes, intervals overlap"]
    assert told["better"][-1] == "no"
    assert told["plain"][:2] == ["none, the nearest has 4.000", "–"]


# ── going on, elsewhere ─────────────────────────────────────────────────────────────────────────────────────────────


def test_mauve_needs_no_model(root: Path, done: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine that has the results and what was kept, and nothing else that was made."""
    shutil.copytree(done / "results", tmp_path / "run" / "results")
    shutil.copytree(done / "samples", tmp_path / "run" / "samples", ignore=shutil.ignore_patterns("*.jsonl*"))
    (tmp_path / "run" / "results" / "mauve.json").unlink()
    for name in ("wikipedia.load_judge", "wikipedia.to_sample", "workshop.train"):
        monkeypatch.setattr(f"prism.recipes.reproduce.{name}", lambda *_, **__: pytest.fail("a model was asked for"))
    assert reproduce(root, tmp_path / "run", "--only", "mauve") == 0
    assert result(tmp_path / "run", "mauve")["rows"] == result(done, "mauve")["rows"]
    found = {path.stem: json.loads(path.read_text()) for path in (done / "results").glob("*.json")}
    assert all("mauve" in row for rows in compared(found).values() for row in rows)
    assert not any("mauve" in row for rows in compared(found, "sweep").values() for row in rows)


def test_mauve_without_held_out_features(
    root: Path, done: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(done / "results", tmp_path / "results")
    (tmp_path / "results" / "mauve.json").unlink()
    assert reproduce(root, tmp_path, "--only", "mauve") == 2
    assert "has no features of held-out text; make them first" in capsys.readouterr().err


def test_weights_made_elsewhere(root: Path, done: Path, tmp_path: Path) -> None:
    """Put in place, even in bfloat16, they are tuned, and nobody asks for evidence."""
    made = load_backbone(done / "adapted" / "model", dtype=torch.bfloat16)
    save_backbone(made, tmp_path / "adapted" / "model")
    study = study_in(root, tmp_path)
    assert study.adapted() == tmp_path / "adapted" / "model"
    assert {weight.dtype for weight in load_model(study.tuned()).parameters()} == {torch.float32}
    assert not (tmp_path / "results" / "evidence.json").exists()


def test_it_goes_on_where_it_was_killed(root: Path, done: Path, tmp_path: Path) -> None:
    """In the middle of a run's texts."""
    folder, name = tmp_path / "run", f"methods_{FEW[0]}"
    shutil.copytree(done, folder)
    (folder / "results" / f"{name}.json").unlink()
    file = next(iter(sorted((folder / "samples").glob(f"prism__prism*N_{FEW[0]}.jsonl"))))
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    (folder / "rows" / f"{file.stem}.json").unlink()
    assert reproduce(root, folder, "--only", name) == 0
    tokens = [json.loads(one)["tokens"] for one in file.read_text().splitlines()]
    assert tokens == [json.loads(one)["tokens"] for one in whole.splitlines()]
    first, again = (result(where, name)["rows"][-1] for where in (done, folder))
    assert again["perplexity"] == pytest.approx(first["perplexity"])


def test_a_table_goes_on_with_the_row_it_was_killed_in(
    root: Path, done: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, name = tmp_path / "run", f"sweep_{FEW[0]}"
    shutil.copytree(done, folder)
    (folder / "results" / f"{name}.json").unlink()
    missing = next(iter(sorted((folder / "rows").glob(f"prism__p2-self*N_{FEW[0]}_seed_1.json"))))
    missing.unlink()
    screened, screen = [], WikipediaStudy.screen
    monkeypatch.setattr(WikipediaStudy, "screen", lambda *given: screened.append(given[-1].policy) or screen(*given))
    assert reproduce(root, folder, "--only", name) == 0
    assert screened == ["p2-self"]
    first, again = (result(where, name)["rows"] for where in (done, folder))
    assert [row["name"] for row in again] == [row["name"] for row in first]
    assert missing.exists()


def test_what_does_not_fit_is_told(root: Path, done: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    theirs("llama", vocab_size=30).save_pretrained(tmp_path / "letters")
    write_letters(tmp_path / "letters")
    lines = write_lines(tmp_path / "short.jsonl", essays(3))
    words = ["--input", lines, "--tokenizer", root / "words", "--output", tmp_path / "short", "--workers", "1"]
    assert run("tokenize", *words, "--validation", "0.5") == 0
    bad: list[tuple[list[str | Path], str]] = [
        (["--data", tmp_path / "short"], "held-out sequences of 16 tokens, and 10 are needed"),
        (["--base", tmp_path / "letters"], "was made with another tokenizer"),
        (["--base", root / "absent.gguf"], "has no absent.gguf"),
        (["--judge", root / "base"], "is the base itself"),
        (["--scale", "paper"], "choose from full, tiny"),
        (["--only", "methods_5"], "did you mean 'methods_"),
    ]
    for number, (more, complaint) in enumerate(bad):
        assert reproduce(root, tmp_path / str(number), *more) == 2
        said = capsys.readouterr().err
        assert complaint in said, more
        assert "(a bug?" not in said
    assert reproduce(root, done, "--scale", "full", "--only", "mauve") == 2


def test_without_mauve(monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
    from prism.evaluation.mauve import require_mauve

    monkeypatch.setattr("prism.cli.reproduce.require_mauve", require_mauve)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "mauve" else object())
    words = ["reproduce", "wikipedia", "--data", str(root), "--base", "base", "--judge", "judge"]
    with pytest.raises(ValueError, match=r"pip install 'prism-mdm\[mauve\]', or name the other results: --only"):
        parse(words).check()
    parse([*words, "--only", "training,methods_32"]).check()


def test_the_commands_of_its_page() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "wikipedia.md").read_text(encoding="utf-8")
    block = page.partition("```bash\n")[2].partition("```")[0]
    commands = [parse(shlex.split(one, comments=True)[1:]) for one in block.splitlines()]
    assert [type(command) for command in commands] == [Tokenize] + [ReproduceWikipedia] * 3
