"""The study of known truth at a size that writes nonsense and runs everything."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from stand_ins import nearness, tiny_truth

from prism.data.writing import Numbers
from prism.recipes.reproduce.frontier import reached, told
from prism.recipes.reproduce.report import pick
from prism.recipes.reproduce.stories import SCALES, VARIANTS, StoriesStudy
from prism.recipes.reproduce.stories_report import STYLE, _style, _ways, best_rows, write_report
from prism.recipes.reproduce.stories_results import results_of
from prism.recipes.reproduce.strengths import best_of, prism, training_free
from prism.recipes.reproduce.workshop import Workshop
from prism.recipes.sampling import Sampling

TINY = SCALES["tiny"]
MICRO = replace(
    TINY,
    length=12,
    sequences=24,
    held_out=6,
    pretraining=replace(TINY.pretraining, steps=2, evaluate_every=2),
    finetuning=replace(TINY.finetuning, steps=2, evaluate_every=2),
    samples=3,
    raced=5,
    at_once=3,
    steps=(3, 4, 6),
    witnesses=2,
)


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoriesStudy]:
    folder = tmp_path_factory.mktemp("study")
    study = StoriesStudy(MICRO, Workshop(folder / "models", folder / "results"), tiny_truth(), Numbers(13))
    with pytest.MonkeyPatch.context() as patch:
        few = ("S at random", "k=32, n_y=1", "block head", "tuned backbone")
        patch.setattr("prism.recipes.reproduce.stories_results.VARIANTS", {name: VARIANTS[name] for name in few})
        patch.setattr("prism.recipes.reproduce.stories_results.NUCLEI", (0.9,))
        patch.setattr("prism.recipes.reproduce.stories_results.TIMES", (2.56,))
        patch.setattr("prism.recipes.reproduce.stories_results.require_mauve", lambda: None)
        patch.setattr("prism.evaluation.mauve.clustering", nearness)
        for name, make in results_of(study).items():
            study.workshop.result(name, lambda make=make: make(study))  # type: ignore[misc]
        yield study


@pytest.fixture(scope="module")
def page(study: StoriesStudy) -> str:
    """Of all results; its figures and samples.md stand beside it."""
    return write_report(study.workshop.results).read_text()


def _result(study: StoriesStudy, name: str) -> dict[str, Any]:
    return json.loads((study.workshop.results / f"{name}.json").read_text())


def test_every_method_is_tried_at_every_strength(study: StoriesStudy) -> None:
    for steps in MICRO.steps[:2]:
        rows = _result(study, f"sweep_{steps}")["rows"]
        tuned = [row for row in rows if row["weights"] == "prism"]
        assert len(tuned) == len([*training_free(steps, (2.56,)), *prism(steps, (2.56,))])
        assert len({row["name"] for row in rows}) == len(rows)
        assert len(tuned) == len(rows)
        assert all(row["nfe"] == steps for row in tuned if row["method"] in ("vanilla", "prism", "p2-self"))


def test_a_head_that_learnt_with_s_at_random_is_tried_at_every_strength(study: StoriesStudy, page: str) -> None:
    found = _result(study, "heads")
    ours = [row for steps in MICRO.steps[:2] for row in _result(study, f"sweep_{steps}")["rows"]]
    settings = [row["sampling"] for row in ours if row["method"] == "prism"]
    assert [row["sampling"] for row in found["rows"]] == settings
    assert {row["weights"] for row in found["rows"]} == set(found["models"]) == {"S-at-random"}
    assert "| prism (S-at-random) |" in page
    assert "S-at-random: " in page


def test_the_likelihood_loss_is_tried_at_both_lengths_and_told_beside_prism(study: StoriesStudy, page: str) -> None:
    rows = _result(study, "likelihood")["rows"]
    for weights in ("likelihood", "likelihood-twice"):
        for method in ("prism-likelihood", "prism-entropy"):
            steps = [row["steps"] for row in rows if (row["weights"], row["method"]) == (weights, method)]
            assert sorted(steps) == sorted(MICRO.steps)  # one nucleus is tried here
    assert "| prism-likelihood (likelihood-twice) |" in page


def test_excess_is_over_the_truths_own_texts(study: StoriesStudy) -> None:
    result = _result(study, f"sweep_{MICRO.steps[0]}")
    for row in result["rows"]:
        assert row["excess"] == pytest.approx(row["nll"] - result["truth"]["nll"], abs=1e-9)
        assert row["excess_interval"][0] <= row["excess"] <= row["excess_interval"][1]


def test_the_best_setting_is_no_duller_than_the_data() -> None:
    rows = [{"nll": nll, "entropy": entropy} for nll, entropy in ((1.0, 3.0), (2.0, 4.95), (3.0, 5.1), (2.5, 4.96))]
    assert best_of(rows, entropy=5.0)["nll"] == 2.0
    assert best_of(rows, entropy=6.0)["entropy"] == 5.1


def test_more_steps_take_the_strength_that_was_best_with_fewer(study: StoriesStudy) -> None:
    swept, more = _result(study, "sweep_4"), _result(study, "methods_6")
    best = {(row["method"], row["weights"]): row["sampling"] for row in best_rows(swept)}
    assert len(more["rows"]) == len(best)
    for row in more["rows"]:
        fewer = best[row["method"], row["weights"]]
        assert row["steps"] == 6
        assert row["sampling"].get("nucleus") == fewer.get("nucleus")
        if row["method"] == "prism":
            assert row["sampling"]["eta"] == pytest.approx(min(1.0, fewer["eta"] * 4 / 6))


def test_the_start_token_is_always_given(study: StoriesStudy) -> None:
    held_out = study.held_out()
    assert not held_out.free[:, 0].any()
    assert held_out.free[:, 1:].all()
    assert (held_out.tokens[:, 0] == study.truth.start).all()


def test_the_held_out_texts_are_not_learned_from(study: StoriesStudy) -> None:
    learned = {tuple(row) for row in study.corpus(study.scale.sequences).tolist()}
    assert not learned & {tuple(row) for row in study.held_out().tokens.tolist()}


def test_a_part_of_the_corpus_is_its_beginning(study: StoriesStudy) -> None:
    part, whole = study.corpus(7), study.corpus(study.scale.sequences)
    assert torch.equal(part, whole[:7])
    assert study.corpus(7).data_ptr() == whole.data_ptr()  # not written again


def test_remask_budgets_are_made_equal(study: StoriesStudy) -> None:
    result = _result(study, "equal_remasks")
    remasks = {row["method"]: row["remasks"] for row in result["rows"]}
    assert remasks["prism"] == pytest.approx(result["target"])
    assert remasks["p2-self"] == pytest.approx(result["target"])


def test_an_order_of_commitment_is_told_apart(study: StoriesStudy, page: str) -> None:
    rows = _result(study, "ordered")["rows"]
    assert len({row["name"] for row in rows}) == len(rows)
    assert {row["method"] for row in rows if "order" not in row["sampling"]} == {"p2-joint"}  # which has no other
    assert not {row["name"] for row in rows} & {row["name"] for row in _result(study, "sweep_3")["rows"]}
    assert "by confidence" in page


def test_knowledge_is_told_by_time(study: StoriesStudy, page: str) -> None:
    result = _result(study, "knowledge")
    run = result["runs"]["vanilla"]
    assert run["tokens"] == sum(sum(curve["count"]) for curve in run["by_fifth_filled"])
    assert set(result["detection"]["auroc"]) == {"quality", "own", "likelihood"}
    for name, some in result["runs"].items():
        fifths = ", ".join(f"{curve['ece']:.3f}" for curve in some["by_fifth_filled"])
        assert f"| {name} | {some['against_likelihood']['ece']:.3f} | {fifths} | {some['tokens']} |" in page
    found, other = result["detection"], _result(study, "knowledge_at_random")["detection"]
    assert other["against_truth"]["predicted"] != found["against_truth"]["predicted"]  # another head
    assert other["auroc"]["own"] == found["auroc"]["own"]  # on the same backbone


def test_mauve_is_told_of_every_run(study: StoriesStudy) -> None:
    names = [row["name"] for row in _result(study, "mauve")["rows"]]
    told = set(names)
    assert len(names) == len(told)  # a run of several results is compared once
    assert {row["name"] for row in _result(study, "sweep_3")["rows"]} <= told


def test_the_report_shows_what_was_measured(study: StoriesStudy, page: str) -> None:
    for figure in ("steps.svg", "frontier.svg", "knowledge.svg"):
        assert (study.workshop.results / figure).is_file()
    for heading in (
        "best setting",
        "Likelihood and diversity",
        "Does the head know",
        "same number",
        "Other ways to tune",
        "PRISM against every method that needs no training",
        "The best of them again",
    ):
        assert heading in page
    best = min(best_rows(_result(study, "sweep_3")), key=lambda row: row["nll"])
    assert f"| {best['excess']:.3f} [" in page
    rules = [part.rpartition(", ")[2] for part in page.split("pretrained: ")[1].split(".\n")[0].split("; ")]
    assert rules[1:] == ["S by confidence", "S at random"]


def test_other_ways_stand_beside_the_first_at_their_own_entropy(study: StoriesStudy, page: str) -> None:
    rows = _result(study, "ablations")["rows"]
    row = pick(rows, weights="variant-block-head", method="prism", steps=3)[0]
    main = reached(pick(rows, weights="variant-S-at-random", method="prism", steps=3), row["entropy"])
    line = next(line for line in page.splitlines() if line.startswith("| block-head | 3 | prism |"))
    assert line.endswith(f"| {row['nll']:.3f} | {told(main)} |")


def test_the_other_ways_that_are_named_are_those_that_are_there(study: StoriesStudy) -> None:
    rows = _result(study, "ablations")["rows"]
    told = _ways(rows)
    assert "changed: `k-32-n_y-1`, `block-head`, `tuned-backbone`." in told
    assert "backbone of `S-at-random` (N = 3, 4), `tuned-backbone` (N = 3, 4)." in told
    assert "published" not in told
    assert "settings were measured" not in told
    some = [row for row in rows if row["weights"] != "variant-block-head"]
    last = next(row for row in reversed(some) if row["method"] == "prism")
    told = _ways([row for row in some if row is not last])
    assert "block-head" not in told
    assert "Of `tuned-backbone` with N = 4, 2 of 3 settings were measured." in told
    old = [{**row, "weights": "variant-the-papers"} for row in pick(rows, weights="variant-tuned-backbone")]
    assert "`as-published`: a block head, the whole backbone" in _ways([*rows, *old])
    assert "variant-as-published" in study.variant("as published").parts  # the name it is told by


def test_more_steps_are_tabled_with_their_head_and_backbone(study: StoriesStudy, page: str) -> None:
    lines = page.partition("A backbone is named")[2].partition("\n## ")[0].splitlines()
    lines = [line for line in lines if line.startswith("| 6 |")]
    rows = [*_result(study, "methods_6")["rows"], *pick(_result(study, "likelihood")["rows"], steps=6)]
    assert len(lines) == len(rows)
    loss = _result(study, "training")["models"]["pretrained"]["chosen"]["loss"]
    assert all(f", {loss:.4f} |" in line for line in lines)
    assert sum("| prism | a head, S by confidence |" in line for line in lines) == 1
    assert sum("| prism-entropy | no head, the likelihood loss for twice as long |" in line for line in lines) == 1
    scores = {row["name"]: row for row in _result(study, "mauve")["rows"]}
    assert all(
        any(f"{row['excess']:.3f} [" in one and f"{scores[row['name']]['mauve']:.3f} [" in one for one in lines)
        for row in rows
    )


def test_no_two_lines_of_a_figure_look_alike() -> None:
    tuned = [
        f"prism-{kind} ({weights})"
        for kind in ("likelihood", "entropy")
        for weights in ("likelihood", "likelihood-twice")
    ]
    labels = [*STYLE, "prism (S-at-random)", *tuned]
    labels = [
        label for label in labels if label not in ("prism-likelihood", "prism-entropy")
    ]  # never on the main weights
    assert len({_style(label) for label in labels}) == len(labels)


def test_the_page_tells_of_its_files(study: StoriesStudy, tmp_path: Path) -> None:
    shutil.copytree(study.workshop.results, tmp_path / "results")
    for name, commit in (("race_3", None), ("race_4", "0123456789+"), ("phases", "abcdef0123")):
        result = _result(study, name)
        result["record"]["commit"] = commit
        (tmp_path / "results" / f"{name}.json").write_text(json.dumps(result))
    told = {"note": "A note.", "by_hand": {"texts": "merged"}, "sources": [{"what": "w", "which": "x", "licence": "y"}]}
    (tmp_path / "results" / "provenance.json").write_text(json.dumps(told))
    page = write_report(tmp_path / "results").read_text()
    assert "\n\nA note.\n\n## How the models" in page
    last = page.partition("## Where the figures come from")[2]
    assert "`race_3`" in last.partition("No commit is recorded")[2].partition(".")[0]
    assert "`race_4`" in last.partition("not committed")[2].partition(".")[0]
    lines = {line.split(" | ")[0]: line for line in last.splitlines()}
    assert lines["| `race_3.json`"].endswith("| not recorded |  |")
    assert lines["| `race_4.json`"].endswith("| `0123456` with changes |  |")
    assert lines["| `phases.json`"].endswith("| `abcdef0` |  |")
    assert lines["| `texts.json`"].endswith("| merged |")
    assert "| `training.json`" in lines
    assert "| w | x | y |" in last
    assert "provenance.json" not in last  # which is no run's


def test_results_of_another_training_say_so(study: StoriesStudy, page: str, tmp_path: Path) -> None:
    assert "another training" not in page
    shutil.copytree(study.workshop.results, tmp_path / "results")
    for name in ("ablations", "methods_6", "likelihood"):
        result = _result(study, name)
        result["record"]["model"]["backbone"] = {"trained": "2001-02-03T00:00:00", "held_out_loss": 1.5}
        (tmp_path / "results" / f"{name}.json").write_text(json.dumps(result))
    page = write_report(tmp_path / "results").read_text()
    assert page.count("another training of the same backbone (2001-02-03, held-out loss 1.5000)") == 3
    assert "N = 6: Measured on another" in page
    assert "the likelihood loss: Measured on another" in page


@pytest.mark.usefixtures("page")
def test_texts_to_read_are_those_that_were_judged(study: StoriesStudy) -> None:
    told = _result(study, "texts")
    row = _result(study, "sweep_3")["rows"][0]
    run = study.write(study.load(study.tuned()), Sampling(**row["sampling"]))
    assert told["runs"][row["name"]] == list(map(Numbers(13).text, run.tokens.tolist()))
    assert told["truth"] == list(map(Numbers(13).text, study.own().tokens[:3].tolist()))
    assert told["truth"][0].split()[0] == str(study.truth.start)
    assert told["truth"][0][:20] in (study.workshop.results / "samples.md").read_text()


def test_the_truths_own_features_are_kept(study: StoriesStudy) -> None:
    assert study.own(3) is study.own()  # nor are the texts written twice
    found = study.own_features(3)
    own = study.own().tokens
    states = study.truth.llama(torch.from_numpy(own)).detach().numpy()
    np.testing.assert_allclose(found.last, states[:, -1], rtol=1e-3, atol=1e-4)  # kept in 16 bits
    np.testing.assert_allclose(found.mean, states.mean(1), rtol=1e-3, atol=1e-4)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StoriesStudy, "own", lambda self, *_, **__: pytest.fail("written again"))
        np.testing.assert_array_equal(study.own_features(3).mean, found.mean)


def test_only_methods_that_need_no_training_are_judged_by(study: StoriesStudy) -> None:
    swept = _result(study, "sweep_3")
    also = {**swept, "rows": [*swept["rows"], *_result(study, "likelihood")["rows"]]}
    assert {row["weights"] for row in best_rows(also, trained=False)} == {"prism"}
    assert len(best_rows(also)) > len(best_rows(also, trained=False))


def test_the_best_are_told_apart_by_more_texts_than_they_were_chosen_by(study: StoriesStudy) -> None:
    swept, raced = (_result(study, f"{kind}_3")["rows"] for kind in ("sweep", "race"))
    best = best_rows(_result(study, "sweep_3"), trained=False)
    best = sorted(best, key=lambda row: (row["method"] != "prism", row["nll"]))[:4]
    assert [(row["method"], row["weights"]) for row in raced] == [(row["method"], "prism") for row in best]
    assert all(row["samples"] == 5 for row in raced)
    assert not {row["name"] for row in raced} & {row["name"] for row in swept}
