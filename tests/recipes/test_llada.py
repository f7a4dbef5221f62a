"""The study of LLaDA on a tiny model in the hub's format: tuned, writing with every method, judged, put beside the paper."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from launching import ROOT, Share, configuration, in_two_processes
from test_llama import both_ways
from test_published import llada
from texts import chat_tokenizer, write_conversations

from prism.cli import main
from prism.cli.code import EvaluateCode
from prism.cli.parser import parse
from prism.cli.reproduce import ReproduceLlada
from prism.cli.train import Finetune
from prism.data.code import task_of
from prism.evaluation.samples import Together
from prism.evaluation.sandbox import available
from prism.models.attach import PrismModel
from prism.models.hub import load_model
from prism.recipes.reproduce.llada import METHODS, SCALES, Benchmark, LladaStudy, Run, Scale, accumulate, check_tasks
from prism.recipes.reproduce.llada_report import PUBLISHED, TRANSFER, best_of, main_table
from prism.recipes.reproduce.workshop import Workshop
from prism.sampling.remask import Anywhere, Centred, LowConfidence, LowQuality

TINY, PAPER = SCALES["tiny"], SCALES["paper"]
MASK = 5
HUMANEVAL = {
    "prompt": 'def double(x):\n    """Twice x."""\n',
    "entry_point": "double",
    "canonical_solution": "    return 2 * x\n",
    "test": "def check(candidate):\n    assert candidate(2) == 4\n",
}
MBPP = {
    "text": "Write a function to double.",
    "code": "def double(x):\n    return 2 * x",
    "test_setup_code": "",
    "test_list": ["assert double(2) == 4"],
}

TASK = task_of({**HUMANEVAL, "task_id": "HumanEval/0"})

isolated = pytest.mark.skipif(not available(), reason="this machine can isolate no programs")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`llada`, `chat.jsonl` and the tasks; `models`, made from those by the command line, and `results`."""
    path = tmp_path_factory.mktemp("hub")
    model = both_ways(vocab_size=320, mask_id=MASK, length=256, head_size=6)
    llada(path, model, vocab_size=320, embedding_size=320, mask_token_id=MASK)
    chat_tokenizer().save_pretrained(path / "llada")
    write_conversations(path / "chat.jsonl", 10)
    (path / "humaneval.jsonl").write_text(
        "\n".join(json.dumps({**HUMANEVAL, "task_id": f"HumanEval/{n}"}) for n in (0, 1))
    )
    (path / "mbpp.jsonl").write_text(json.dumps({**MBPP, "task_id": 11}))
    assert main(words(path)) == 0
    return path


def words(path: Path, *others: str) -> list[str]:
    given = {
        "--scale": "tiny",
        "--model": path / "llada",
        "--data": path / "chat.jsonl",
        "--humaneval": path / "humaneval.jsonl",
        "--mbpp": path / "mbpp.jsonl",
        "--output": path / "models",
        "--results": path / "results",
    }
    return ["reproduce", "llada", *(str(word) for pair in given.items() for word in pair), *others]


def study(scale: Scale, path: Path = Path("here"), together: Together | None = None, **others: Any) -> LladaStudy:
    tasks = {name: Benchmark(name, ()) for name in ("humaneval", "mbpp")}
    given = {"say": lambda _: pytest.fail("nothing is to be run"), **others}
    workshop = Workshop(path / "models", path / "results")
    return LladaStudy(scale, workshop, "GSAI-ML/LLaDA-8B-Instruct", None, tasks, given["say"], together or Share(0, 1))


# ── end to end ──────────────────────────────────────────────────────────────────────────────────────────────────────


@isolated
def test_every_method_writes_every_task(root: Path) -> None:
    for benchmark, tasks in (("humaneval", 2), ("mbpp", 1)):
        for steps, ks in TINY.sweep.items():
            rows = json.loads((root / "results" / f"{benchmark}_{steps}.json").read_text())["rows"]
            assert [(row["method"], row["k_block"]) for row in rows] == [
                ("MDM", None),
                *((method, k) for method in METHODS if method != "MDM" for k in ks),
            ]
            assert all(row["tasks"] == tasks and row["nfe"] <= steps and row["pass@1"] == 0 for row in rows)
            assert rows[0]["remasks"] == rows[0]["gain"] == 0
            full = [row for row in rows[1:] if row["ends"] == {"LENGTH": tasks}]
            assert all(row["remasks"] == row["k_block"] * TINY.new_tokens / TINY.block for row in full)
            assert full


@isolated
def test_the_model_was_tuned_by_the_recipe(root: Path) -> None:
    model = load_model(root / "models" / "prism")
    assert isinstance(model, PrismModel)
    assert model.lora is not None
    assert model.lora.targets == ("q_proj", "k_proj", "v_proj")
    story = json.loads((root / "models" / "finetune.json").read_text())
    assert story["record"]["settings"]["recipe"] == "llada"
    assert story["record"]["settings"]["k"] == 8


@isolated
def test_the_tuned_model_judges_what_the_untuned_one_writes(root: Path) -> None:
    """Two forward passes a step, and counted; the one that writes is not the one that was tuned."""
    rows = json.loads((root / "results" / "transfer.json").read_text())["rows"]
    swept = [("PRISM", n, k) for n, ks in TINY.sweep.items() for k in ks]
    wanted = [*(("MDM", n, None) for n in TINY.sweep), *swept]
    assert [(row["method"], row["steps"], row["k_block"]) for row in rows] == wanted
    forwards = {"MDM": 1, "PRISM": 2}
    full = [row for row in rows if row["ends"] == {"LENGTH": 2}]
    assert {row["method"] for row in full} == set(forwards)
    assert all(row["nfe"] == forwards[row["method"]] * row["steps"] for row in full)
    assert all(row["remasks"] == (row["k_block"] or 0) * TINY.new_tokens / TINY.block for row in full)
    for name in ("humaneval_8_vanilla_untuned", "humaneval_8_prism_1_untuned"):
        settings = json.loads((root / "models" / "runs" / f"{name}.json").read_text())["record"]["settings"]
        assert settings["model"] == str(root / "llada")
        assert settings["corrector"] == (str(root / "models" / "prism") if "prism" in name else None)
    page = (root / "results" / "README.md").read_text()
    assert page.count("| 8 | untuned, judged by the tuned |") == len(TINY.sweep[8])
    assert page.count(f"| {TRANSFER['PRISM']} |") == len(swept)


@isolated
def test_what_is_repaired_is_counted_and_shown(root: Path) -> None:
    rows = json.loads((root / "results" / "corrections.json").read_text())["rows"]
    assert [(row["steps"], row["k_block"]) for row in rows] == [(n, k) for n, ks in TINY.sweep.items() for k in ks]
    page = (root / "results" / "README.md").read_text()
    for row in rows:
        name = f"humaneval_{row['steps']}_prism_{row['k_block']}"
        of_run = next(
            found
            for found in json.loads((root / "results" / f"humaneval_{row['steps']}.json").read_text())["rows"]
            if (found["method"], found["k_block"]) == ("PRISM", row["k_block"])
        )
        assert row["functions"] == len(row["tasks"]) == 2
        assert row["changes"]["repaired"] == of_run["syntax"]["repaired"]
        assert row["syntax_errors_after"] == of_run["syntax_errors"]
        before, after = (
            [json.loads(line)["completion"] for line in path.read_text().splitlines()]
            for path in (
                root / "models" / "runs" / f"{stem}.jsonl" for stem in (f"humaneval_{row['steps']}_vanilla", name)
            )
        )
        shown = (root / "results" / row["page"]).read_text()
        assert ("```diff" in shown) == (sorted(before) != sorted(after))
        repaired = f"{row['changes']['repaired']} of {row['syntax_errors_before']}"
        assert f"| {row['steps']} | [{row['k_block']}]({row['page']}) | {repaired} | 19 of 26 |" in page


@isolated
def test_the_page_stands_beside_the_paper(root: Path) -> None:
    page = (root / "results" / "README.md").read_text()
    assert page.count("| HumanEval | 2 | 8 | PRISM |") == 1
    assert page.count("| HumanEval | 8 | PRISM |") == len(TINY.sweep[8])
    assert (root / "results" / "steps.svg").is_file()


@isolated
def test_again_makes_nothing_anew(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Finetune, "run", lambda *_: pytest.fail("tuned again"))
    monkeypatch.setattr(EvaluateCode, "judged", lambda *_: pytest.fail("written again"))
    assert main(words(root)) == 0
    for name in ("mbpp_8", "transfer", "corrections"):
        (root / "results" / f"{name}.json").unlink()
    assert main(words(root, "--only", "mbpp_8,corrections,transfer")) == 0
    assert all((root / "results" / f"{name}.json").is_file() for name in ("mbpp_8", "transfer", "corrections"))


@isolated
@pytest.mark.parametrize(
    ("others", "said"),
    [
        (["--model", "other"], "was begun with other settings"),
        (["--only", "mbpp_9"], "Unknown result (--only) 'mbpp_9' (did you mean 'mbpp_8'?)"),
        (["--data", "nowhere.jsonl"], "--data nowhere.jsonl: no such file"),
        (["--mbpp", "mpbb"], "--mbpp mpbb: neither a file nor one of humaneval"),
        (["--scale", "small"], "choose from paper, tiny"),
        (["--humaneval", "{root}/chat.jsonl"], "--humaneval: "),
        (["--results", "{root}/chat.jsonl"], "--results"),
        (
            ["--humaneval", "{root}/mbpp.jsonl"],
            "mbpp.jsonl: Mbpp/11 is none of the benchmark's tasks, HumanEval/0 to HumanEval/163",
        ),
        (["--mbpp", "{root}/humaneval.jsonl"], "HumanEval/0 is none of the benchmark's tasks, Mbpp/1 to Mbpp/974"),
    ],
)
def test_bad_words(root: Path, others: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words(root, *(word.format(root=root) for word in others))) == 2
    assert said in capsys.readouterr().err


@isolated
def test_a_file_of_tasks_that_has_changed_is_noticed(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tasks = root / "humaneval.jsonl"
    before = tasks.read_text()
    tasks.write_text(before.replace("== 4", "== 5"))
    assert main(words(root)) == 2
    tasks.write_text(before)
    assert "was begun with other settings" in capsys.readouterr().err


def test_the_paper_s_scale_asks_for_all_tasks() -> None:
    tasks = [replace(TASK, id=f"HumanEval/{n}") for n in range(164)]
    check_tasks("humaneval", tasks, whole=PAPER.whole)
    check_tasks("humaneval", tasks[:2], whole=TINY.whole)
    with pytest.raises(ValueError, match="2 of the benchmark's 164 tasks are missing, HumanEval/162 the first"):
        check_tasks("humaneval", tasks[:162], whole=PAPER.whole)
    with pytest.raises(ValueError, match="974 of the benchmark's 974 tasks are missing, Mbpp/1 the first"):
        check_tasks("mbpp", [], whole=PAPER.whole)


@isolated
@pytest.mark.parametrize("flag", ["--humaneval", "--mbpp"])
def test_without_a_hub_nothing_is_tuned(
    root: Path, tmp_path: Path, flag: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The tasks are there before the tuning begins, or the option is named that takes a file."""

    def unreachable(*_: Any) -> None:
        raise ConnectionError("no way to the hub\nat all")

    monkeypatch.setattr("datasets.load_dataset", unreachable)
    monkeypatch.setattr(Finetune, "run", lambda *_: pytest.fail("tuned in vain"))
    assert main(words(root, "--output", str(tmp_path / "models"), flag, flag[2:])) == 2
    said = capsys.readouterr().err
    assert (
        f"{flag} {flag[2:]}: cannot be had from the hub (no way to the hub); name the published file: {flag} FILE"
        in said
    )
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "datasets" else object())
    assert main(words(root, "--output", str(tmp_path / "models"), flag, flag[2:])) == 2
    assert f"{flag} {flag[2:]}: sets of the hub are read with datasets" in capsys.readouterr().err
    assert not (tmp_path / "models").exists()


@isolated
def test_a_command_that_cannot_be_is_known_before_the_tuning(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Finetune, "run", lambda *_: pytest.fail("tuned in vain"))
    monkeypatch.setitem(SCALES, "tiny", replace(TINY, sweep={16: (1, 40)}))
    assert main(words(root, "--output", str(tmp_path / "models"), "--results", str(tmp_path / "results"))) == 2
    assert "--k_block 40" in capsys.readouterr().err


# ── the paper's configuration ───────────────────────────────────────────────────────────────────────────────────────


def test_the_paper_s_fine_tuning() -> None:
    command = parse(study(PAPER, together=Share(0, 12)).finetune_words())
    assert isinstance(command, Finetune)
    assert (command.dataset, command.dataset_config) == ("OpenCoder-LLM/opc-sft-stage2", "educational_instruct")
    assert (command.batch, command.accumulate, command.resume) == (144, 3, True)
    assert (command.k, command.regulariser, command.lora_rank, command.lr) == (8, 0.5, 256, 1e-4)
    rows = 118_278 - command.held_out
    assert command.steps * command.batch / rows == pytest.approx(100, abs=0.1)


@pytest.mark.parametrize(
    ("processes", "parts"), [(1, 36), (2, 18), (8, 6), (12, 3), (16, 3), (24, 2), (36, 1), (144, 1)]
)
def test_micro_batches_share_a_batch_and_fit(processes: int, parts: int) -> None:
    assert accumulate(PAPER, processes) == parts


def test_a_batch_that_cannot_be_shared(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("WORLD_SIZE", "10")
    assert main(["reproduce", "llada", "--unsafe", "true"]) == 2
    assert "A batch of 144 cannot be shared equally by 10 processes" in capsys.readouterr().err


def test_the_paper_s_sweep() -> None:
    """K_block in {4, 6} at N = 256, {8, 10, 12, 14, 16} at 512 and 1024; 32 blocks of 1,024 tokens, the likeliest token."""
    found: dict[tuple[str, int], set[int | None]] = {}
    for run in study(PAPER).all_runs():
        command = parse(study(PAPER).evaluate_words(run))
        assert isinstance(command, EvaluateCode)
        command.check_length(command.new_tokens)
        assert command.new_tokens // (command.block or 1) == 32
        assert command.build_draw().temperature == 0
        found.setdefault((run.method, run.steps), set()).add(command.k_block)
        remasker = getattr(command.build_policy(), "remasker", None)
        kinds = {"ReMDM": Anywhere, "ReMDM-conf": LowConfidence, "PRISM": LowQuality}
        if run.method in kinds:
            assert isinstance(remasker, kinds[run.method])
            assert remasker.amount == Centred(run.k_block)
    longer = {8, 10, 12, 14, 16}
    for method in ("ReMDM", "ReMDM-conf", "PRISM"):
        assert [found[method, n] for n in (256, 512, 1024)] == [{4, 6}, longer, longer]
    assert found["MDM", 256] == {None}


def test_transfer_is_asked_of_humaneval_at_every_n() -> None:
    """The model as it came writes, the tuned one judges where there is something to judge."""
    runs, here = study(PAPER).transferred(), study(PAPER)
    assert {(run.benchmark, run.method, run.untuned) for run in runs} == {
        ("humaneval", "MDM", True),
        ("humaneval", "PRISM", True),
    }
    assert len(runs) == 3 + 2 + 5 + 5
    assert len({run.name for run in here.all_runs()}) == len(here.all_runs()) == 93
    for run in runs:
        command = parse(here.evaluate_words(run))
        assert isinstance(command, EvaluateCode)
        assert command.model == "GSAI-ML/LLaDA-8B-Instruct"
        assert command.corrector == (str(here.tuned) if run.method == "PRISM" else None)
    assert here.needed(["corrections"]) == [
        run
        for run in here.all_runs()
        if run.benchmark == "humaneval" and run.method in ("MDM", "PRISM") and not run.untuned
    ]
    assert here.needed(["tuning"]) == []


def test_published_figures_are_those_of_the_paper() -> None:
    """Table 1: a sum over each row of its figures, to catch a slip of the pen."""
    sums = {name: sum(sum(PUBLISHED[b][name].values()) for b in PUBLISHED) for name in METHODS}
    assert {name: round(total, 1) for name, total in sums.items()} == {
        "PRISM": 192.9,
        "ReMDM": 184.6,
        "ReMDM-conf": 177.9,
        "MDM": 174.2,
    }


def test_the_best_of_a_sweep() -> None:
    """Of equals the one that takes back least; the paper's figure stands beside it."""
    rows = [
        {
            "method": name,
            "k_block": k,
            "steps": 256,
            "tasks": 164,
            "pass@1": solved,
            "pass@1_interval": [solved - 0.05, solved + 0.05],
        }
        for name, k, solved in (
            ("MDM", None, 0.2),
            ("ReMDM", 4, 0.25),
            ("ReMDM-conf", 4, 0.2),
            ("PRISM", 6, 0.3),
            ("PRISM", 4, 0.3),
        )
    ]
    assert best_of(rows[3:])["k_block"] == 4
    line = "| HumanEval | 164 | 256 | PRISM | 30.0 [25.0, 35.0] | 4 | 28.0 |"
    assert line in main_table({"humaneval_256": {"rows": rows}})


# ── several processes ───────────────────────────────────────────────────────────────────────────────────────────────


def test_every_run_falls_to_one_process(tmp_path: Path) -> None:
    """And whoever needs another one's finds it when that is done."""
    made: list[tuple[int, str]] = []

    def saying(rank: int) -> Any:
        def say(words: list[str]) -> dict[str, Any]:
            command = parse(words)
            assert isinstance(command, EvaluateCode)
            made.append((rank, command.file().name))
            return {"rank": rank}

        return say

    shares = [study(PAPER, tmp_path, Share(rank, 5), say=saying(rank)) for rank in range(5)]
    runs = shares[0].all_runs()
    for share in shares:
        share.make_share(runs)
    assert sorted(name for _, name in made) == sorted(f"{run.name}.jsonl" for run in runs)
    spent = [
        sum(run.steps for n, run in enumerate(runs) if n % 5 == rank and run.benchmark == "mbpp") for rank in range(5)
    ]
    assert max(spent) < 1.3 * min(spent)
    assert shares[0].made(Run("mbpp", "MDM", 256)) == shares[4].made(Run("mbpp", "MDM", 256))
    assert len(made) == len(runs)


@isolated
def test_two_processes_tune_together_and_share_the_writing(root: Path, tmp_path: Path) -> None:
    """The same figures as one process, whoever wrote them."""
    where = ["--output", str(tmp_path / "models"), "--results", str(tmp_path / "results")]
    said = in_two_processes(configuration("ddp"), ["-m", "prism", *words(root, *where, "--only", "mbpp_16,tuning")])
    assert said.count("| MBPP | 1 | 16 | PRISM |") == 1  # one of them speaks
    one, two = (json.loads((path / "results" / "mbpp_16.json").read_text())["rows"] for path in (root, tmp_path))
    assert [row["method"] for row in one] == [row["method"] for row in two]
    runs = {
        "_".join(filter(None, ("mbpp_16", METHODS[row["method"]], row["k_block"] and str(row["k_block"]))))
        for row in one
    }
    kept = {f"{name}{end}" for name in runs for end in (".json", ".jsonl", ".jsonl.settings.json")}
    assert {path.name for path in (tmp_path / "models" / "runs").iterdir()} == kept


# ── what the documents say ──────────────────────────────────────────────────────────────────────────────────────────


def test_the_documented_commands_are_commands() -> None:
    """Those of the page and of the SLURM example, whatever launches them."""
    texts = [(ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("llada.md", "llada.slurm")]
    found = [
        shlex.split(words, comments=True)
        for text in texts
        for words in re.findall(r"prism (reproduce llada[^\n'`]*)", text.replace("\\\n", " "))
    ]
    assert len(found) == 3
    for one in found:
        assert isinstance(parse([re.sub(r"\$\w+", "x", word) for word in one]), ReproduceLlada)
