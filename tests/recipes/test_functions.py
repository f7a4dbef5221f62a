"""The study of functions at a size that writes nonsense and runs everything."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_llama import theirs
from texts import write_tokenizer
from wheels import write_packages

from prism.cli import main
from prism.data.function_corpus import FunctionCorpus
from prism.data.text import load_tokenizer, vocabulary_size
from prism.evaluation.functions import Cost, FunctionsRun
from prism.evaluation.record import Stopwatch
from prism.evaluation.sandbox import Isolation
from prism.evaluation.statistics import Interval
from prism.models.attach import base_weights
from prism.models.hub import load_backbone, load_model
from prism.models.llama import Llama
from prism.recipes.reproduce.functions import AT_RANDOM, HEAD_ALONE, SCALES, FunctionsStudy, HeldOut
from prism.recipes.reproduce.functions_results import (
    DOUBTING,
    ORDERS,
    caches,
    chosen,
    contenders,
    heads,
    methods,
    rivals,
    training_free,
)
from prism.recipes.reproduce.report import pick
from prism.recipes.reproduce.sudoku_results import name_of
from prism.recipes.reproduce.workshop import Workshop
from prism.recipes.sampling import Sampling

TINY = SCALES["tiny"]
TASKS = [
    {"task_id": 11, "text": words, "code": "def double(x):\n    return 2 * x", "test_list": ["assert double(2) == 4"]}
    for words in ("Double a number.", "Double a number. " * 400)  # the second leaves no room for a body
]
TASKS[1]["task_id"] = 12


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
    (path / "tasks.jsonl").write_text("\n".join(json.dumps(row) for row in TASKS))
    assert run("reproduce", "functions", *_study(path)) == 0
    return path


def _study(path: Path) -> list[str | Path]:
    tasks = ["--tasks", path / "tasks.jsonl"]
    return ["--data", path / "corpus", "--output", path / "models", "--results", path / "results", *tasks]


def test_every_method_writes_every_function(root: Path) -> None:
    study = _there(root)
    for steps in TINY.steps:
        rows = _found(root, f"methods_{steps}")
        asked = [(o, name_of(way)) for o in ORDERS for way in contenders(study, study.tuned(), o, steps)]
        assert [(row["order"], row["method"]) for row in rows] == asked
        assert {row["functions"] for row in rows} == {TINY.functions}
        assert all(row["nfe"] <= steps for row in rows)
        assert all((row["remasks"] == 0) == (row["method"] == "vanilla") for row in rows)
    assert load_model(study.tuned()).quality_head is not None


def test_prism_is_compared_with_every_other(root: Path) -> None:
    study = _there(root)
    rows, weights = _found(root, "rivals"), {"the same": study.tuned(), "before tuning": study.before()}
    assert [(row["weights"], row["steps"], row["order"], row["method"]) for row in rows] == [
        (told, steps, order, name_of(way))
        for steps in sorted(TINY.steps)[:2]
        for order in ORDERS
        for told, path in list(weights.items())[: 2 if order == "random" else 1]
        for way in training_free(study, path, order, steps)
    ]
    for row in rows:
        policy = next(
            way for way in contenders(study, study.tuned(), row["order"], row["steps"]) if way.policy == "prism"
        )
        assert row["prism"] == name_of(policy)
        ways = training_free(study, weights[row["weights"]], row["order"], row["steps"])
        other = next(way for way in ways if name_of(way) == row["method"])
        functions = study.compared if row["order"] == "random" else study.test
        [ours] = study.write(study.tuned(), policy, held_out=functions)
        [theirs] = study.write(weights[row["weights"]], other, held_out=functions)
        assert {name: row[name] for name in theirs.summary()} == theirs.summary()
        gain = ours.share(lambda one: one.parses).value - theirs.share(lambda one: one.parses).value
        assert gain == pytest.approx(row["gain_parses"])
    assert "against every other with the fewest forward passes" in (root / "results" / "README.md").read_text()


def test_what_prism_alone_can_write_is_its_lead(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = _there(root)

    def write(writer: Path, *ways: Sampling, held_out: HeldOut) -> list[FunctionsRun]:
        functions, _ = study.to_write(held_out)
        bodies = {"prism": [function.body for function in functions]}
        return [FunctionsRun.of(functions, bodies.get(way.policy, ["\n    return ("] * len(functions))) for way in ways]

    monkeypatch.setattr(study, "write", write)
    rows = rivals(study)["rows"]
    assert {(row["gain_parses"], row["gain_sound"]) for row in rows} == {(1.0, 1.0)}
    assert {tuple(row["gain_parses_of_packages_interval"]) for row in rows} == {(1.0, 1.0)}


def test_ways_to_tune_are_compared(root: Path) -> None:
    """Where the backbone learnt, too, others write with its weights; where it did not, they write as before."""
    found, study = json.loads((root / "results" / "heads.json").read_text()), _there(root)
    rows, ways = found["rows"], {"head-alone": ["prism"], "S-at-random": ["prism"]}
    ways |= {name: ["vanilla", "p2-self", "prism"] for name in ("prism", "the-papers")}
    assert set(found["ways"]) == set(TINY.variants) == set(ways)
    ways["before tuning"] = ["vanilla", "remdm-cap", "remdm-conf", "remdm-conf-topk", "p2-self"]
    for steps in sorted(TINY.steps)[:2]:
        for weights, policies in ways.items():
            path = study.conditioned() if weights == "before tuning" else study.tuned(weights)
            asked = [
                name_of(chosen(study, path, policy, "random", steps)) if policy in DOUBTING else policy
                for policy in policies
            ]
            assert [row["method"] for row in pick(rows, weights=weights, steps=steps)] == asked
    main = {row["method"]: row for row in _methods(root) if row["order"] == "random"}
    here = [row for row in rows if row["weights"] == "prism" and row["steps"] == TINY.steps[0]]
    assert [{name: row[name] for name in main["vanilla"]} for row in here] == [main[row["method"]] for row in here]
    page = (root / "results" / "README.md").read_text()
    assert "| S-at-random | prism K=" in page
    assert "| the-papers | vanilla |" in page


def test_where_only_a_head_learns_nothing_is_written_twice(root: Path, tmp_path: Path) -> None:
    """The backbone is the one all began from, so the rivals' bodies are there already."""
    scale = replace(TINY, variants={"prism": HEAD_ALONE, "S-at-random": AT_RANDOM}, steps=(4,), functions=2, compared=2)
    workshop = Workshop(tmp_path / "models", tmp_path / "results")
    study = FunctionsStudy(scale, workshop, root / "corpus", None)
    methods(4)(study)
    before = _written(study)
    found = heads(study)["rows"]
    assert [row["weights"] for row in found] == [*["before tuning"] * 5, "prism", "S-at-random"]
    rivals(study)
    others = [name for name in _written(study) - before if "S-at-random" not in name]
    assert not others
    assert study.before() == study.pretrained()


def test_a_model_s_time_is_its_own(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock starts when what it begins from is there, which may have to be trained first."""
    study, told = FunctionsStudy(TINY, Workshop(tmp_path, tmp_path), root / "corpus", None), []

    class Told(Stopwatch):
        def __init__(self) -> None:
            told.append("clock")
            super().__init__()

    begin = study._begin
    monkeypatch.setattr(study, "_begin", lambda: (told.append("made"), begin())[1])
    monkeypatch.setattr("prism.recipes.reproduce.workshop.Stopwatch", Told)
    study.pretrained()
    assert told == ["made", "clock"]


def _written(study: FunctionsStudy) -> set[str]:
    return {path.name for path in (study.tuned().parent / "written").iterdir()}


def test_the_amount_is_chosen_on_the_validation_side(root: Path) -> None:
    """That with which most of its bodies parse, whatever becomes of the test functions."""
    study, verdicts = _there(root), {}

    class Written:
        def __init__(self, parsing: float) -> None:
            self.parsing = parsing

        def share(self, having: object) -> Interval:
            return Interval(self.parsing, 0.0, 1.0)

    def write(writer: Path, *ways: Sampling, held_out: HeldOut) -> list[Written]:
        verdicts.update({name_of(way): held_out.split for way in ways})
        return [Written({None: 0.1, 0.1: 0.3, 0.3: 0.2}[way.doubt]) for way in ways]

    study.write = write  # type: ignore[method-assign, assignment]
    assert chosen(study, study.tuned(), "p2-self", "random", 4) == Sampling(
        "p2-self", order="random", steps=4, doubt=0.1
    )
    assert set(verdicts.values()) == {"validation"}
    assert len(verdicts) == len(TINY.ks) + len(TINY.doubts["random"])


def test_what_learns_in_each_way_to_tune(root: Path) -> None:
    study, before = _there(root), load_backbone(_there(root).conditioned()).state_dict()
    for name, variant in TINY.variants.items():
        model = load_model(study.tuned(name))
        assert type(model.head_config) is variant.head
        assert (model.lora is None) == (variant.rank is None)
        told = study.workshop.story(study.tuned(name))["loss"]
        assert told["regulariser"] == variant.regulariser
        assert told["rounds"] == variant.rounds
        assert told["order"]["class"] == ("AwayFrom" if variant.order is None else type(variant.order).__name__)
        weights = base_weights(model.backbone.state_dict())
        assert all(torch.equal(weights[key], value) for key, value in before.items())  # LoRA stands beside them


def test_the_model_is_asked_in_place_of_its_head(root: Path) -> None:
    found, policies = json.loads((root / "results" / "asked.json").read_text()), {"vanilla", "remdm-cap", "remdm-conf"}
    policies |= {"remdm-conf-topk", "p2-self", "prism"}
    ways = {(row["steps"], row["order"], row["method"].split()[0]) for row in found["rows"]}
    assert ways == {(n, order, policy) for n in TINY.asked_steps for order in ORDERS for policy in policies}
    for run in found["runs"]:
        assert run["nfe"] == run["steps"] * (1 + TINY.length)
        told = json.loads((root / "results" / f"methods_{run['steps']}.json").read_text())["rows"]
        name = run["method"].removesuffix(", asked")
        prism = next(row for row in told if row["method"] == name and row["order"] == run["order"])
        assert run["remasks"] == prism["remasks"] > 0 or "p<" in name
        gain = next(row for row in found["rows"] if row["method"] == name and row["order"] == run["order"])
        assert run["parses"] - prism["parses"] == pytest.approx(gain["gain_parses"])
    assert "What a perfect head would do" in (root / "results" / "README.md").read_text()


def test_whose_functions_they_are(root: Path) -> None:
    found = json.loads((root / "results" / "corpus.json").read_text())
    assert sum(about["functions"] for about in found["packages"].values()) == 40
    assert {about["licence"] for about in found["packages"].values()} == {"MIT"}
    assert "| MIT | 10 | 40 |" in (root / "results" / "README.md").read_text()


def test_the_originals_are_sound(root: Path) -> None:
    found = json.loads((root / "results" / "originals.json").read_text())
    assert found["sound"] == found["exact"] == 1
    assert found["record"]["settings"]["functions"] == TINY.functions


def test_report_and_diffs(root: Path) -> None:
    page = (root / "results" / "README.md").read_text()
    assert "| the originals |" in page
    for figure in ("steps.svg", "sweep.svg", "doubts.svg", "transfer.svg"):
        assert figure in page
        assert (root / "results" / figure).stat().st_size > 1000
    rows = json.loads((root / "results" / f"corrections_{TINY.steps[0]}.json").read_text())["rows"]
    for row in rows:
        assert row["page"] in page
        assert sum(row["changes"].values()) == len(row["tasks"]) == TINY.functions
        assert "each written twice" in (root / "results" / row["page"]).read_text()


def test_the_sweep_holds_every_method_with_every_amount(root: Path) -> None:
    rows, study = _found(root, "sweep"), _there(root)
    found = {(row["steps"], row["order"], row["policy"], row["k"], row["doubt"]) for row in rows}
    runs = [(steps, order) for steps in TINY.steps for order in ORDERS]
    wanted = {(*one, policy, k, 0) for one in runs for policy in ("random", *DOUBTING) for k in TINY.ks}
    wanted |= {(*one, policy, 0, p) for one in runs for policy in DOUBTING for p in TINY.doubts[one[1]]}
    assert found == wanted | {(*one, "vanilla", 0, 0) for one in runs}
    for row in rows:
        assert row["nfe"] == row["steps"]
        assert row["functions"] == TINY.validation
        alike = pick(rows, steps=row["steps"], order=row["order"], k=row["k"])
        assert {row["remasks"]} == {one["remasks"] for one in alike} or not row[
            "k"
        ]  # they differ in which tokens go back
        assert row["remasks"] > 0 or row["policy"] == "vanilla" or row["doubt"]
    assert any(row["remasks"] > 0 for row in rows if row["doubt"])
    ours = pick(rows, chosen=True, order="random", steps=TINY.steps[0])
    assert [row["method"] for row in ours] == [
        name_of(chosen(study, study.tuned(), policy, "random", TINY.steps[0])) for policy in DOUBTING
    ]
    assert "**0.0 [" in (root / "results" / "README.md").read_text()


def _methods(root: Path) -> list[dict[str, Any]]:
    return json.loads((root / "results" / f"methods_{TINY.steps[0]}.json").read_text())["rows"]


def test_blocks(root: Path) -> None:
    found = json.loads((root / "results" / "blocks.json").read_text())
    ways = {(row["steps"], row["policy"], row["k_block"]) for row in found["rows"]}
    counted = {(n, p, k) for n in TINY.block_steps for p in DOUBTING for k in TINY.k_blocks}
    assert ways == counted | {(n, "vanilla", 0) for n in TINY.block_steps}
    assert all((row["remasks"] > 0) == (row["policy"] != "vanilla") for row in found["rows"])
    assert "(blocks.svg)" in (root / "results" / "README.md").read_text()
    assert (root / "results" / "blocks.svg").is_file()


def test_caches_are_compared_with_none(root: Path) -> None:
    rows = json.loads((root / "results" / "caches.json").read_text())["rows"]
    kinds = ["none", "dual cache", f"dual cache, all anew every {TINY.refresh} steps", "prefix cache"]
    assert [(row["policy"], row["cache"]) for row in rows] == [
        (p, kind) for p in ("vanilla", "prism") for kind in kinds
    ]
    assert len({row["nfe"] for row in rows}) == 1
    blocks = {(row["method"], row["k_block"], row["steps"]): row for row in _found(root, "blocks")}
    for row in rows:
        if row["cache"] == "none":  # written once
            same = blocks[row["method"], row["k_block"], row["steps"]]
            assert all(row[name] == same[name] for name in ("sound", "parses", "lines", "remasks", "seconds"))
            assert row["gain"] == 0


def _found(root: Path, result: str) -> list[dict[str, Any]]:
    return json.loads((root / "results" / f"{result}.json").read_text())["rows"]


def test_tasks_are_run(root: Path) -> None:
    rows = _found(root, "solved_tasks.jsonl")
    study, steps = _there(root), TINY.solving_steps[0]
    asked = [(o, c) for o in ORDERS for c in contenders(study, study.tuned(), o, steps)]
    assert [(row["order"], row["method"]) for row in rows] == [(o, name_of(c)) for o, c in asked]
    assert {(row["tasks_of"], row["tasks"], row["asked"], row["pass@1"]) for row in rows} == {
        ("tasks.jsonl", 2, 1, 0.0)
    }
    assert "| 1 of 2 |" in (root / "results" / "README.md").read_text()
    assert all(row["nfe"] <= TINY.solving_steps[0] for row in rows)


def test_a_right_body_solves_its_task(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other task, for whose prompt there is no room, fails."""
    study = _there(root)
    cost = Cost(*(np.zeros(1, dtype=int) for _ in range(3)), seconds=0.0)
    monkeypatch.setattr(study, "_written", lambda *_: (["\n    return x + x"], cost))
    run, _ = study.solve("tasks.jsonl", study.tuned(), Sampling("vanilla", steps=4))
    assert [attempt.report.passed for attempts in run.attempts.values() for attempt in attempts] == [True, False]


def test_tasks_that_are_not_there_are_told_at_once(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--data", root / "corpus", "--output", tmp_path / "models", "--tasks", "humanevil"]
    assert run("reproduce", "functions", *words) == 2
    assert "neither a file nor one of" in capsys.readouterr().err
    assert not (tmp_path / "models").exists()


def test_other_tasks_are_other_results(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Named later they are made and stand beside those that are there; others of the same name are not taken for them."""
    others = tmp_path / "others.jsonl"
    others.write_text(json.dumps({**TASKS[0], "task_id": 13}))
    words = ["--data", root / "corpus", "--output", root / "models", "--results", tmp_path / "results", "--tasks"]
    shutil.copytree(root / "results", tmp_path / "results")
    assert run("reproduce", "functions", *words, f"{root / 'tasks.jsonl'},{others}") == 0
    rows = json.loads((tmp_path / "results" / "solved_others.jsonl.json").read_text())["rows"]
    assert {(row["tasks_of"], row["tasks"]) for row in rows} == {("others.jsonl", 1)}
    page = (tmp_path / "results" / "README.md").read_text()
    assert "| tasks.jsonl |" in page
    assert "| others.jsonl |" in page
    others.write_text(json.dumps({**TASKS[0], "task_id": 14}))
    assert run("reproduce", "functions", *words, others) == 2
    assert "tells of other tasks than the others.jsonl given now" in " ".join(capsys.readouterr().err.split())
    (tmp_path / "tasks.jsonl").write_text(others.read_text())
    assert run("reproduce", "functions", *words, f"{root / 'tasks.jsonl'},{tmp_path / 'tasks.jsonl'}") == 2
    assert "Two files of tasks are called tasks.jsonl" in capsys.readouterr().err
    others.write_text(json.dumps({**TASKS[0], "task_id": 700}))
    assert run("reproduce", "functions", *words, others) == 2
    assert "no task of MBPP's test split" in capsys.readouterr().err


def test_without_isolation_nothing_is_begun(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for room in ("prism.cli.code", "prism.evaluation.sandbox"):
        monkeypatch.setattr(f"{room}.available", tuple)
    words = ["--data", root / "corpus", "--output", tmp_path / "models"]
    assert run("reproduce", "functions", *words, "--tasks", root / "tasks.jsonl") == 2
    assert "or give --unsafe true to run them with your own rights" in capsys.readouterr().err
    assert not (tmp_path / "models").exists()
    assert run("reproduce", "functions", *words, "--unsafe", "true") == 2
    assert "without --tasks no program is run" in capsys.readouterr().err
    tasks = [str(root / "tasks.jsonl")]
    study = FunctionsStudy(TINY, Workshop(root / "models", tmp_path), root / "corpus", None, tasks, unsafe=True)
    done, _ = study.solve("tasks.jsonl", study.tuned(), Sampling("vanilla", order="confidence", steps=4))
    assert done.isolation is Isolation.NONE


def _there(root: Path) -> FunctionsStudy:
    workshop = Workshop(root / "models", root / "results")
    return FunctionsStudy(TINY, workshop, root / "corpus", None, [str(root / "tasks.jsonl")])


def test_a_judge_of_another_costs_a_second_forward_pass(root: Path) -> None:
    rows = json.loads((root / "results" / "transfer.json").read_text())["rows"]
    steps = TINY.transfer_steps
    for order in ORDERS:
        passes = [(row["who"], row["steps"], row["nfe"]) for row in rows if row["order"] == order]
        assert passes[:2] == [("A alone", steps, steps)] * 2
        assert passes[2:] == [
            ("B alone", steps, steps),
            ("B alone", steps, steps),
            ("B judged by A", steps, 2 * steps),
            ("B judged by A", steps // 2, steps),
        ]
    assert all(row["remasks"] > 0 for row in rows if "judged" in row["who"])


def test_what_was_written_is_kept(root: Path, tmp_path: Path) -> None:
    """Another folder of results, and all models gone but their names."""
    for name in ("pretrained", "conditioned", "prism"):
        (tmp_path / "models" / name / "model").mkdir(parents=True)
    shutil.copytree(root / "models" / "prism" / "written", tmp_path / "models" / "prism" / "written")
    study = FunctionsStudy(TINY, Workshop(tmp_path / "models", tmp_path / "results"), root / "corpus", None)
    sampling = chosen(study, study.tuned(), "prism", "random", TINY.steps[0])
    [run] = study.write(study.tuned(), sampling)
    there = next(row for row in _methods(root) if row["method"] == name_of(sampling))
    assert {name: there[name] for name in run.summary()} == run.summary()


def test_held_out_functions_are_held_out(root: Path) -> None:
    study = FunctionsStudy(TINY, Workshop(root / "models", root / "results"), root / "corpus", None)
    assert study.compared.count > study.test.count
    first, (more, _) = study.to_write(study.test)[0], study.to_write(study.compared)
    assert first == more[: study.test.count] != more
    for held_out in (study.validation, study.compared):
        functions, rows = study.to_write(held_out)
        prompts = [study.tokenizer.decode(row[:prompt]) for row, prompt in zip(rows.tokens, rows.prompts, strict=True)]
        assert prompts == [function.prompt for function in functions]
        packages = study.corpus.manifest["packages"]
        assert {packages[function.package]["side"] for function in functions} == {held_out.split}
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
    assert len(caches(study)["rows"]) == 8
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


def test_a_tokenizer_is_made_from_what_is_learnt_from(root: Path, tmp_path: Path) -> None:
    """Each corpus has its own; made again it is the same, or the tokens would be refused."""
    shutil.copytree(root / "corpus", tmp_path / "corpus", ignore=shutil.ignore_patterns("tokens"))
    made = ["functions", "--output", tmp_path / "corpus", "--vocabulary", "400"]
    assert run(*made) == run(*made) == 0
    tokens = tmp_path / "corpus" / "tokens"
    tokenizer = load_tokenizer(tokens / "tokenizer")
    assert vocabulary_size(tokenizer) == 400
    assert json.loads((tokens / "rows.json").read_text())["vocab_size"] == 400
    function = next(FunctionCorpus.load(tmp_path / "corpus").functions("test"))
    assert tokenizer.decode(tokenizer.encode(function.text)) == function.text
