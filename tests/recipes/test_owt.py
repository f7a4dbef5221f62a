"""The OpenWebText experiment on a tiny checkpoint in the hub's format, with a tiny judge: it all runs, nothing is learned."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from stand_ins import nearness
from texts import essays, write_letters, write_lines, write_tokenizer
from tiny_models import HEADS, dit, write_mdlm

from prism.cli import main
from prism.cli.parser import parse
from prism.cli.reproduce import ReproduceOwt, _beside_the_papers
from prism.cli.tokenize import Tokenize
from prism.data.text import end_of_text, load_tokenizer, vocabulary_size
from prism.evaluation.mauve import require_mauve
from prism.models.attach import PrismModel, attach
from prism.models.heads import BlockConfig
from prism.models.hub import load_model, save_model
from prism.recipes.reproduce.owt import ROWS, SCALES, TABLE, Ingredients, OwtStudy, prism, remdm, results_of
from prism.recipes.reproduce.owt_report import PUBLISHED, STEPS, cell, line, rows_of
from prism.recipes.reproduce.workshop import Workshop
from prism.sampling.draw import Draw
from prism.sampling.order import TopProbability
from prism.sampling.remask import Binomial
from prism.schedule import Phase

TINY, PAPER = SCALES["tiny"], SCALES["paper"]


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Folders with the names the hub has them under, and the working directory beside them: the command's own defaults."""
    from transformers import GPT2Config, GPT2LMHeadModel

    root = tmp_path_factory.mktemp("hub")
    tokenizer = load_tokenizer(write_tokenizer(root / "gpt2"))
    size = vocabulary_size(tokenizer)
    write_mdlm(root / "kuleshov-group" / "mdlm-owt", vocab_size=size + 1, mask_id=size, length=TINY.length)
    torch.manual_seed(0)
    settings = GPT2Config(vocab_size=size, n_embd=16, n_layer=1, n_head=2, n_positions=64)
    GPT2LMHeadModel(settings).save_pretrained(root / "gpt2-large")
    tokenizer.save_pretrained(root / "gpt2-large")
    write_lines(root / "articles.jsonl", essays(80))
    (root / "Skylion007" / "openwebtext").mkdir(parents=True)
    write_lines(root / "Skylion007" / "openwebtext" / "train.jsonl", essays(80))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        patch.setattr("prism.cli.reproduce.require_mauve", lambda otherwise: None)
        patch.setattr("prism.evaluation.mauve.clustering", partial(nearness, shape=(TINY.samples, 16)))
        yield root


def reproduce(*more: str | Path) -> int:
    words = ("reproduce", "owt", "--scale", "tiny", "--data", "articles.jsonl", *more)
    return main([str(word) for word in words])


@pytest.fixture(scope="module")
def done(hub: Path) -> Path:
    """The folder of a whole run."""
    assert reproduce("--output", hub / "run", "--json", hub / "run.json") == 0
    return hub / "run"


def result(run: Path, name: str) -> dict[str, Any]:
    return json.loads((run / "results" / f"{name}.json").read_text())


def tokens_of(samples: Path) -> list[list[int]]:
    return [json.loads(sample)["tokens"] for sample in samples.read_text().splitlines()]


# ── the configuration ───────────────────────────────────────────────────────────────────────────────────────────────


def test_left_alone_it_is_the_papers_configuration() -> None:
    command = parse(["reproduce", "owt"])
    assert isinstance(command, ReproduceOwt)
    assert (command.checkpoint, command.judge) == ("kuleshov-group/mdlm-owt", "gpt2-large")
    scale, loss = command._scale(), command._scale().loss
    assert scale == PAPER
    assert scale.tokens == 163_840_000
    assert (scale.length, scale.samples, scale.steps) == (1024, 5000, STEPS)
    assert (loss.k, loss.ys, loss.regulariser, loss.order, loss.draw) == (32, 1, 0.5, TopProbability(), Draw())
    assert (scale.finetuning.lr, scale.finetuning.weight_decay) == (1.5e-4, 0.0)


def test_both_readings_of_the_batch_see_the_same_tokens() -> None:
    other = PAPER.in_batches_of(256)
    assert (PAPER.finetuning.steps, PAPER.finetuning.batch, PAPER.finetuning.warmup) == (10_000, 16, 2_500)
    assert (other.finetuning.steps, other.finetuning.batch, other.finetuning.accumulate) == (625, 256, 16)
    assert other.tokens == PAPER.tokens
    assert PAPER.in_batches_of(24).finetuning.accumulate == 2  # 12 at a time: no more than fit, and all alike


def test_the_rows_are_the_papers() -> None:
    assert [row.method for row in TABLE.values()] == ["MDLM", "ReMDM-conf", "ReMDM", "PRISM"]
    for steps in STEPS:
        sampling = prism(steps)
        policy = sampling.build_policy()
        assert policy.remasker.amount == Binomial(2.56 / steps)
        assert policy.remasker.phase == Phase(on=0.5)
        assert all(row.sampling(steps).nucleus == 0.9 for row in ROWS.values())
        assert (remdm(steps).policy, remdm(steps).eta) == (
            ("remdm-cap", 0.04) if steps < 1024 else ("remdm-loop", 0.02)
        )


def test_the_published_figures_are_those_of_the_paper() -> None:
    """Skipped where the paper does not lie beside the repository."""
    paper = Path(__file__).resolve().parents[2] / ".." / "shared" / "paper" / "prism.tex"
    if not paper.is_file():
        pytest.skip("the paper is not here")
    text = paper.read_text().partition("\\label{tab:remdm-exp-owt}")[2].partition("\\end{table*}")[0]
    for name, row in TABLE.items():
        line = next(line for line in text.splitlines() if re.match(rf"{row.method}(\$|\s)", line))
        numbers = [float(number) for number in re.findall(r"\d+\.\d+", line)]
        assert numbers == [value for metric in ("mauve", "perplexity", "entropy") for value in PUBLISHED[name][metric]]


# ── a run ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_every_row_is_written_and_judged(done: Path) -> None:
    written = json.loads((done.parent / "run.json").read_text())
    assert written["results"] == list(results_of(TINY, with_mauve=True))
    for steps in TINY.steps:
        rows = {name: result(done, f"{name}_{steps}") for name in ROWS}
        scores = result(done, f"mauve_{steps}")["rows"] + result(done, f"mauve_other_weights_{steps}")["rows"]
        assert [score["row"] for score in scores] == list(rows)
        assert all(0 < score["mauve"] <= 1 for score in scores)
        for name, row in rows.items():
            assert (row["row"], row["steps"], row["samples"]) == (name, steps, TINY.samples)
            assert row["nfe"] <= steps  # a row without masks ends early where nothing can be taken back
            assert row["perplexity_interval"][0] <= row["perplexity"] <= row["perplexity_interval"][1]
            assert row["entropy"] > 0
            samples = (done / "samples" / f"{name}_{steps}.jsonl").read_text().splitlines()
            assert len(samples) == TINY.samples
        assert rows["mdlm"]["remasks"] == 0
        assert rows["prism"]["nfe"] == steps
        assert rows["prism"]["remasks"] > 0


def test_rows_write_with_the_weights_they_name(done: Path) -> None:
    """The checkpoint as it came, or the tuned one; never the other."""
    settings = {
        name: json.loads((done / "samples" / f"{name}_4.jsonl.settings.json").read_text())["weights"] for name in ROWS
    }
    for tuned in (False, True):
        assert len({digest for name, digest in settings.items() if ROWS[name].tuned is tuned}) == 1
    assert settings["mdlm"] != settings["prism"]


def test_the_papers_head_on_all_of_the_checkpoint(done: Path) -> None:
    model, base = load_model(done / "prism" / "model"), load_model("kuleshov-group/mdlm-owt")
    assert isinstance(model, PrismModel)
    assert isinstance(model.head_config, BlockConfig)
    learned = model.backbone.state_dict()
    assert all(not torch.equal(learned[name], weight) for name, weight in base.state_dict().items())
    told = result(done, "training")
    assert told["tokens"] == told["steps"] * told["batch"] * TINY.length == 4 * 8 * 16
    assert told["epochs"] == pytest.approx(32 / told["sequences"])


def test_sequences_begin_and_end_as_the_checkpoint_learned_them(done: Path) -> None:
    study = OwtStudy(TINY, Workshop(done, done / "results"), Ingredients(data="articles.jsonl"))
    end = end_of_text(study.tokenizer)
    for rows in (study.training_windows.read(range(5)), study.held_out(range(TINY.held_out)).tokens):
        assert rows.shape[1] == TINY.length
        assert (rows[:, [0, -1]] == end).all()
    assert study.references.shape == (TINY.samples, 16)
    chosen_on, compared = (study.held_out(rows).tokens.tolist() for rows in (range(4), range(4, 10)))
    assert not {tuple(row) for row in chosen_on} & {tuple(row) for row in compared}


def test_our_figures_stand_beside_the_papers(done: Path) -> None:
    page = (done / "results" / "README.md").read_text()
    assert (done / "results" / "steps.svg").is_file()
    assert "512 tokens in 4 steps of 8 sequences" in page
    row, score = result(done, "prism_4"), result(done, "mauve_4")["rows"][3]
    assert f"| 4 | PRISM | tuned | {score['mauve']:.3f} [" in page
    assert f"{row['perplexity']:.1f} [" in page
    assert page.count("| PRISM |") == len(TINY.steps)


def test_published_figures_stand_only_where_they_belong() -> None:
    about = {"method": "ReMDM", "steps": 256, "sampling": {"policy": "remdm-cap", "eta": 0.04}, "remasks": 5000.0}
    ours = {"perplexity": 31.0, "perplexity_interval": [30.0, 32.0], "entropy": 5.3, "entropy_interval": [5.2, 5.4]}
    score = {"row": "remdm", "steps": 256, "mauve": 0.2, "mauve_interval": [0.1, 0.3]}
    found = {
        "remdm-tuned_256": {"row": "remdm-tuned", "weights": "tuned", **about, **ours},
        "remdm_256": {"row": "remdm", "weights": "checkpoint", **about, **ours},
        "mauve_256": {"rows": [score]},
    }
    first, second = rows_of(found)
    ours = ["31.0 [30.0, 32.0]", "5.30 [5.20, 5.40]"]
    method = "ReMDM (cap, η=0.04)"
    scores = ["0.200 [0.100, 0.300]", "0.216"]
    assert line(first) == ["256", method, "checkpoint", *scores, ours[0], "30.5", ours[1], "5.34", "5000"]
    assert line(second) == ["256", method, "tuned", "–", "–", ours[0], "–", ours[1], "–", "5000"]
    assert cell(first, "mauve") == "0.200 (0.216)\n0.100–0.300"
    assert cell(second, "perplexity") == "31.0\n30.0–32.0"
    assert cell(second, "mauve") == cell(None, "mauve") == "–"


def test_the_table_is_printed_and_fits_a_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All that the paper's table has, in 80 columns, nothing cut off."""
    rows = [
        {"row": name, "method": row.method, "weights": "tuned" if row.tuned else "checkpoint", "steps": steps}
        for name, row in TABLE.items()
        for steps in STEPS
    ]
    ours = {metric: {metric: 0.5, f"{metric}_interval": [0.4, 0.6]} for metric in ("mauve", "perplexity", "entropy")}
    sampling = {"sampling": {"policy": "remdm-cap", "eta": 0.04}, "remasks": 1.0}
    for row in rows:
        judged = row | sampling | ours["perplexity"] | ours["entropy"]
        (tmp_path / f"{row['row']}_{row['steps']}.json").write_text(json.dumps(judged))
    (tmp_path / "mauve.json").write_text(json.dumps({"rows": [row | ours["mauve"] for row in rows]}))
    _beside_the_papers(tmp_path)
    said = capsys.readouterr().out
    assert max(map(len, said.splitlines())) <= 80
    for name, figures in PUBLISHED.items():
        for metric, decimals in (("mauve", 3), ("perplexity", 1), ("entropy", 2)):
            line = "".join(rf" +0\.50* \({value:.{decimals}f}\)" for value in figures[metric])
            assert re.search(rf"{TABLE[name].method}{line}", said), (name, metric)


# ── going on, and other ingredients ─────────────────────────────────────────────────────────────────────────────────


def test_it_goes_on_where_it_was_killed(done: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A result that is not there yet is made from the samples that are; what is there is left alone."""
    run, kept = tmp_path / "run", done / "samples" / "prism_8.jsonl"
    shutil.copytree(done, run)
    (run / "results" / "prism_8.json").unlink()
    half = kept.read_bytes()[: len(kept.read_bytes()) // 2]  # in the middle of a line
    (run / "samples" / "prism_8.jsonl").write_bytes(half)
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*.json") if path.parent.name == "results"}
    assert reproduce("--output", run) == 0
    assert (run / "samples" / "prism_8.jsonl").read_text().count("\n") == TINY.samples
    assert tokens_of(run / "samples" / "prism_8.jsonl") == tokens_of(kept)
    again, first = result(run, "prism_8"), result(done, "prism_8")
    assert again["perplexity"] == pytest.approx(first["perplexity"])
    assert all(path.stat().st_mtime_ns == time for path, time in before.items())
    capsys.readouterr()
    assert reproduce("--output", run, "--batch", "16") == 2
    assert "was begun with other settings" in capsys.readouterr().err


def test_a_folder_of_tokens_or_a_dataset_of_the_hub(done: Path, tmp_path: Path) -> None:
    """Both give the sequences that the file gave: the same text, tokens and split."""
    before = result(done, "training")
    few = ["--only", "training", "--mauve", "false"]
    assert reproduce("--output", tmp_path / "tokens", "--data", done / "tokens", *few) == 0
    assert result(tmp_path / "tokens", "training")["chosen"] == before["chosen"]
    assert not (tmp_path / "tokens" / "tokens").exists()
    pytest.importorskip("datasets", reason="the extra `text` is not installed")
    assert reproduce("--output", tmp_path / "hub", "--data", Ingredients.data, *few) == 0
    assert result(tmp_path / "hub", "training")["chosen"] == before["chosen"]


def test_without_mauve(hub: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Told before anything is loaded, with both ways out; and not asked for where no MAUVE is wanted."""
    monkeypatch.setattr("prism.cli.reproduce.require_mauve", require_mauve)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "mauve" else object())
    command = parse(["reproduce", "owt", "--scale", "tiny", "--checkpoint", "nowhere"])
    with pytest.raises(ValueError, match=r"pip install 'prism-mdm\[mauve\]', or leave it out: --mauve false"):
        command.check()
    parse(["reproduce", "owt", "--scale", "tiny", "--mauve", "false"]).check()
    parse(["reproduce", "owt", "--scale", "tiny", "--only", "training,prism_4"]).check()
    assert not any("mauve" in name for name in results_of(TINY, with_mauve=False))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_the_papers_scale_needs_a_gpu(hub: Path) -> None:
    with pytest.raises(ValueError, match="needs a GPU and this machine has none; --scale tiny"):
        parse(["reproduce", "owt"]).check()


def test_what_does_not_fit_is_told(done: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_lines(tmp_path / "short.jsonl", essays(3))
    write_mdlm(tmp_path / "small", vocab_size=30, mask_id=29)
    write_letters(tmp_path / "letters")
    save_model(attach(dit(), HEADS[0], tune_backbone=True), tmp_path / "tuned")
    bad: list[tuple[list[str | Path], str]] = [
        (["--data", tmp_path / "short.jsonl"], "held-out sequences of 16 tokens, and 10 are needed"),
        (["--data", tmp_path / "absent.jsonl"], "absent.jsonl: no such file"),
        (["--checkpoint", tmp_path / "small"], "the tokens 0..319 and the checkpoint knows 0..29 with the mask 29"),
        (["--checkpoint", tmp_path / "small", "--only", "mdlm_4"], "name the tokenizer it was trained with"),
        (["--checkpoint", tmp_path / "tuned"], "has a corrector already"),
        (["--data", done / "tokens", "--tokenizer", tmp_path / "letters"], "was made with another tokenizer"),
        (["--only", "prism_5"], "did you mean 'prism_8'"),
    ]
    for number, (words, complaint) in enumerate(bad):
        assert reproduce("--output", tmp_path / str(number), *words) == 2
        said = capsys.readouterr().err
        assert complaint in said, words
        assert "(a bug?" not in said


def test_the_commands_of_its_page(hub: Path, tmp_path: Path) -> None:
    """All are commands, and the one for a machine without GPU and hub runs as it stands."""
    page = (Path(__file__).resolve().parents[2] / "docs" / "openwebtext.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```bash\n(.*?)```", page, re.DOTALL)
    commands = [shlex.split(line, comments=True) for block in blocks for line in block.splitlines()]
    ours = [words for name, *words in commands if name == "prism"]
    assert all(isinstance(parse(words), ReproduceOwt | Tokenize) for words in ours)
    tiny = [words for words in ours if "tiny" in words]
    assert len(tiny) == 1
    assert main([*tiny[0], "--output", str(tmp_path / "run")]) == 0
    assert "PRISM" in (tmp_path / "run" / "results" / "README.md").read_text()
