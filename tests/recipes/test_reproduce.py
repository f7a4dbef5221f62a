"""The Sudoku reproduction at a size that solves nothing and runs everything."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from prism.cli import main
from prism.data import sudoku
from prism.recipes.reproduce import sudoku as reproduction
from prism.recipes.reproduce.sudoku import SCALES, VARIANTS, SudokuStudy
from prism.recipes.reproduce.sudoku_report import write_report
from prism.recipes.reproduce.sudoku_results import PRISM, TRAINING_FREE, results_of
from prism.recipes.reproduce.workshop import Workshop

TINY = SCALES["tiny"]
MICRO = replace(
    TINY,
    pretraining=replace(TINY.pretraining, steps=4, evaluate_every=2),
    finetuning=replace(TINY.finetuning, steps=4, evaluate_every=2),
    ablation=replace(TINY.ablation, steps=2, evaluate_every=2),
    short=replace(TINY.short, steps=2, evaluate_every=2),
    boards=64,
    validation=8,
    puzzles=2,
    watched=2,
    at_once=4,
    clues=72,
    steps=(9, 5),
)

NOWHERE = Workshop(Path("unused"), Path("unused"))


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SudokuStudy]:
    folder = tmp_path_factory.mktemp("study")
    study = SudokuStudy(MICRO, Workshop(folder / "models", folder / "results"), {})
    with pytest.MonkeyPatch.context() as patch:
        few = ("paper", "no regulariser", "block head", "projection head", "frozen backbone", "n_y=4")
        patch.setattr("prism.recipes.reproduce.sudoku_results.VARIANTS", {name: VARIANTS[name] for name in few})
        make_all(study)
        yield study


def make_all(study: SudokuStudy) -> None:
    for name, make in results_of(study).items():
        study.workshop.result(name, lambda make=make: make(study))  # type: ignore[misc]


def test_every_method_is_measured_in_both_orders(study: SudokuStudy) -> None:
    for steps in MICRO.steps:
        rows = json.loads((study.workshop.results / f"methods_{steps}.json").read_text())["rows"]
        tuned = [row for row in rows if row["weights"] == "prism"]
        assert len(tuned) == 2 * len(TRAINING_FREE + PRISM)
        assert {row["order"] for row in rows} == {"random", "margin"}
        assert {row["steps"] for row in rows} == {steps}
        assert all(row["nfe"] == steps for row in tuned)
        vanilla, others = tuned[0], tuned[1:]
        assert vanilla["remasks"] == 0
        assert "gain" not in vanilla
        assert all(low <= row["gain"] <= high for row in others[:5] for low, high in [row["gain_interval"]])


def test_repeated_failures_are_shares_of_others(study: SudokuStudy) -> None:
    rows = json.loads((study.workshop.results / "repeated.json").read_text())["rows"]
    assert [row["temperature"] for row in rows] == 4 * [1.0] + 4 * [0.0]
    failures = {}
    for row in rows[:4]:
        failures[row["method"]] = 1 - sum(row["solved_by_seed"]) / (8 * row["boards"])
        assert row["success"]["value"] == pytest.approx(1 - failures[row["method"]])
    best = min(failures["remdm-conf-topk K=4"], failures["p2-self K=4"])
    assert failures["vanilla"] > 0
    assert best > 0
    assert rows[3]["of_vanilla"]["value"] == pytest.approx(failures["prism K=4"] / failures["vanilla"])
    assert rows[3]["of_best_training_free"]["value"] == pytest.approx(failures["prism K=4"] / best)


def test_remask_budgets_are_made_equal(study: SudokuStudy) -> None:
    result = json.loads((study.workshop.results / "equal_remasks.json").read_text())
    remasks = {row["method"]: row["remasks"] for row in result["rows"]}
    assert remasks["prism K=4"] == result["target"]
    assert remasks["remdm-cap"] == pytest.approx(result["target"], rel=0.25)  # two boards: the noise of a binomial


def test_judged_by_another_costs_two_forward_passes(study: SudokuStudy) -> None:
    rows = json.loads((study.workshop.results / "transfer.json").read_text())["rows"]
    judged = [row for row in rows if "judged" in row["who"]]
    assert judged
    assert all(row["nfe"] == 2 * row["steps"] for row in judged)
    assert all(row["nfe"] == row["steps"] for row in rows if "alone" in row["who"])


def test_the_chosen_checkpoint_has_the_lowest_held_out_loss(study: SudokuStudy) -> None:
    for name in ("pretrained", "prism", "likelihood"):
        story = json.loads((study.workshop.models / name / "training.json").read_text())
        losses = [line["evaluation/loss"] for line in story["history"] if "evaluation/loss" in line]
        assert len(losses) == 2
        assert story["chosen"]["loss"] == min(losses)


def test_nothing_is_made_twice(study: SudokuStudy, monkeypatch: pytest.MonkeyPatch) -> None:
    def must_not_train(*args: object, **settings: object) -> None:
        raise AssertionError("trained again")

    monkeypatch.setattr("prism.recipes.reproduce.workshop.train", must_not_train)
    again = SudokuStudy(MICRO, study.workshop, {})
    before = {path: path.stat().st_mtime_ns for path in study.workshop.results.glob("*.json")}
    make_all(again)
    assert again.tuned() == study.tuned()
    assert before == {path: path.stat().st_mtime_ns for path in study.workshop.results.glob("*.json")}


def test_the_report_shows_what_was_measured(study: SudokuStudy) -> None:
    page = write_report(study.workshop.results).read_text()
    for figure in ("fine_tuning.svg", "steps.svg", "knowledge.svg", "board.svg"):
        assert (study.workshop.results / figure).is_file()
    for heading in ("All methods", "Fewer forward passes", "same number of remasks", "Does the head know", "stranger"):
        assert heading in page
    for row in json.loads((study.workshop.results / "methods_9.json").read_text())["rows"]:
        assert f"| {row['method']} |" in page or f"{row['method']} (" in page
    drawn = (study.workshop.results / "steps.svg").read_bytes()
    write_report(study.workshop.results)
    assert (study.workshop.results / "steps.svg").read_bytes() == drawn


def test_no_training_board_is_a_solution() -> None:
    """With the evaluation's own solutions first in the stream, as if the seeds had met."""
    first = sudoku.boards(4, reproduction.BOARD_SEED)
    given = first.copy()
    given[:, 40:] = 0
    study = SudokuStudy(replace(MICRO, boards=16), NOWHERE, {"given": given})
    boards = sudoku.from_tokens(study.boards.numpy().astype(np.uint8))
    solutions = np.concatenate([sudoku.solve(puzzles).solution for puzzles in study.puzzles.values()])
    assert not {board.tobytes() for board in boards} & {board.tobytes() for board in solutions}
    assert len(boards) == 16 + MICRO.validation


def test_our_puzzles_have_thirty_clues_and_one_solution() -> None:
    puzzles = SudokuStudy(replace(TINY, puzzles=20), NOWHERE, {}).puzzles["own"]
    assert ((puzzles > 0).sum(1) == 30).all()
    assert (sudoku.solve(puzzles).count == 1).all()


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(SCALES, "tiny", MICRO)
    monkeypatch.chdir(tmp_path)
    assert main(["reproduce", "sudoku", "--only", "fine_tuning"]) == 0
    assert (tmp_path / "runs/sudoku-tiny/results/README.md").is_file()
    monkeypatch.setitem(SCALES, "tiny", replace(MICRO, boards=65))
    assert main(["reproduce", "sudoku", "--only", "fine_tuning"]) != 0
    assert "begun with other settings" in capsys.readouterr().err


def test_settings_that_made_nothing_may_be_mended(tmp_path: Path) -> None:
    workshop = Workshop(tmp_path, tmp_path / "results")
    workshop.begin({"model": "mistyped"})
    (tmp_path / "prism").mkdir()  # where the training that never began would have been
    workshop.begin({"model": "right"})
    (tmp_path / "prism" / "chosen.json").write_text("{}")
    workshop.begin({"model": "right"})
    with pytest.raises(ValueError, match="begun with other settings"):
        workshop.begin({"model": "mistyped"})


def test_results_are_of_the_models_beside_them(tmp_path: Path) -> None:
    Workshop(tmp_path / "one", tmp_path / "results").begin({})
    Workshop(tmp_path / "one", tmp_path / "results").result("table", dict)
    Workshop(tmp_path / "one", tmp_path / "results").begin({})
    with pytest.raises(ValueError, match="holds results of models that are not in"):
        Workshop(tmp_path / "other", tmp_path / "results").begin({})
