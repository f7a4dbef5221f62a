"""Text judged from the command line: by a causal model, against held-out text, and by a known truth."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from launching import ON_CPU, Threads, in_two_processes
from stand_ins import tiny_truth
from test_causal import write_llama2c
from texts import essays, write_lines, write_llama2c_tokenizer, write_tokenizer
from tiny_models import write_mdlm

import prism
from prism.cli import main, text
from prism.data.text import load_tokenizer, vocabulary_size
from prism.evaluation.judge import Judge, load_judge
from prism.evaluation.mauve import Clustering, Mauve
from prism.evaluation.statistics import Interval
from prism.models.causal import load_llama2c
from prism.models.hub import save_backbone
from prism.recipes.known_truth import write_corpus

MODEL = ["--hidden_size", "16", "--layers", "1", "--heads", "2", "--length", "16"]
TRAINING = ["--held_out", "4", "--batch", "4", "--steps", "2"]


def run(*words: str | Path) -> int:
    return main([str(word) for word in words])


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`tokens`; `base`, a model trained on them; `judge`, a tiny GPT-2 with the same tokenizer."""
    from transformers import GPT2Config, GPT2LMHeadModel

    path = tmp_path_factory.mktemp("judged")
    lines = write_lines(path / "essays.jsonl", essays(80))
    words = ["tokenize", "--input", lines, "--tokenizer", write_tokenizer(path / "words"), "--output", path / "tokens"]
    assert run(*words, "--workers", "1", "--validation", "0.4") == 0
    assert run("pretrain", "--data", path / "tokens", "--output", path / "base", *MODEL, *TRAINING) == 0
    tokenizer = load_tokenizer(path / "words")
    torch.manual_seed(0)
    settings = GPT2Config(vocab_size=vocabulary_size(tokenizer), n_embd=16, n_layer=1, n_head=2, n_positions=64)
    GPT2LMHeadModel(settings).save_pretrained(path / "judge")
    tokenizer.save_pretrained(path / "judge")
    return path


def lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def words(root: Path, *more: str | Path) -> list[str]:
    start = ["evaluate", "text", "--model", root / "base", "--judge", root / "judge", "--policy", "vanilla"]
    return [str(word) for word in (*start, "--steps", "4", "--batch", "4", *more)]


def evaluate(root: Path, out: Path, *more: str | Path) -> Any:
    assert main([*words(root, *more), "--json", str(out)]) == 0
    return json.loads(out.read_text())


def judge(root: Path, out: Path, *more: str | Path) -> Any:
    assert run("evaluate", "text", "--judge", root / "judge", "--json", out, *more) == 0
    return json.loads(out.read_text())


def test_generated_and_judged(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, samples = tmp_path / "out.json", tmp_path / "s.jsonl"
    found = evaluate(root, out, "--samples", "10", "--save", samples)
    rows = lines(samples)
    assert [row["row"] for row in rows] == list(range(10))
    assert all(len(row["tokens"]) == 16 for row in rows)
    judged = load_judge(str(root / "judge"), end="<|endoftext|>").likelihood([row["text"] for row in rows])
    assert found["nll"] == pytest.approx(sum(nll for nll, _ in judged) / sum(count for _, count in judged), rel=1e-4)
    assert found["judged_tokens"] == sum(count for _, count in judged)
    assert found["nfe"] == 4
    assert found["perplexity_interval"][0] < found["perplexity"] < found["perplexity_interval"][1]
    assert {"entropy", "distinct_2", "distinct_3", "repetition_4", "perplexity_per_text"} <= found.keys()
    assert found["judge"]["context"] == 64
    assert "perplexity" in capsys.readouterr().out

    again = judge(root, out, "--texts", samples)
    assert again["perplexity"] == pytest.approx(found["perplexity"], rel=1e-4)
    assert again["diversity_of"] == "the judge's tokens"
    assert judge(root, out, "--texts", samples, "--samples", "3")["samples"] == 3


def test_texts_longer_than_the_model_learnt_are_told_of(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for length, told in ((16, False), (17, True)):
        evaluate(root, tmp_path / "out.json", "--samples", "2", "--length", str(length))
        said = " ".join(capsys.readouterr().out.split())
        assert ("17 tokens are more than the 16 the model was trained for" in said) is told


def test_a_tokenizer_from_elsewhere(root: Path, tmp_path: Path) -> None:
    """As MDLM's checkpoint needs it, which comes without."""
    one = evaluate(root, tmp_path / "a.json", "--samples", "4")
    elsewhere = ["--model", root / "base" / "backbone", "--tokenizer", root / "words"]
    assert evaluate(root, tmp_path / "b.json", "--samples", "4", *elsewhere)["perplexity"] == one["perplexity"]


def test_it_goes_on_where_it_stopped(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole, parts = tmp_path / "whole.jsonl", tmp_path / "parts.jsonl"
    one = evaluate(root, tmp_path / "a.json", "--samples", "10", "--save", whole)
    evaluate(root, tmp_path / "b.json", "--samples", "4", "--save", parts)
    two = evaluate(root, tmp_path / "b.json", "--samples", "10", "--save", parts)
    assert two["perplexity"] == one["perplexity"]
    assert [row["text"] for row in lines(whole)] == [row["text"] for row in lines(parts)]
    for change in (("--seed", "1"), ("--steps", "5"), ("--nucleus", "0.9"), ("--length", "8"), ("--order", "margin")):
        assert main([*words(root, "--samples", "10", "--save", parts), *change]) == 2
        assert f"begun with {change[0][2:]}=" in capsys.readouterr().err


def test_what_the_judge_does_not_read_is_told(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And how varied a text is, is said of all of it."""
    out, texts = tmp_path / "out.json", ["the cat sat on the mat ."] * 3 + [" ".join(essays(9))] * 2
    some = ["--texts", write_lines(tmp_path / "t.jsonl", texts)]
    found = judge(root, out, *some)
    assert (found["samples"], found["texts_cut"]) == (5, 2)
    assert "2 of 5 texts are longer than the 64 tokens of them" in " ".join(capsys.readouterr().out.split())
    less = judge(root, out, *some, "--judge_context", "4")
    assert less["texts_cut"] == 5
    for name in ("entropy", "distinct_2", "repetition_4"):
        assert less[name] == found[name]
    assert judge(root, out, "--texts", write_lines(tmp_path / "t.jsonl", texts[:3]))["texts_cut"] == 0
    assert "longer than" not in capsys.readouterr().out.partition("texts, judged by")[2]


def test_a_file_holds_texts_of_one_tokenizer(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept, other = tmp_path / "s.jsonl", load_tokenizer(root / "words")
    evaluate(root, tmp_path / "out.json", "--samples", "4", "--save", kept)
    other.add_tokens(["cat dog"])
    other.save_pretrained(tmp_path / "other")
    assert main(words(root, "--samples", "8", "--save", kept, "--tokenizer", tmp_path / "other")) == 2
    assert "begun with tokenizer=" in capsys.readouterr().err
    assert main(words(root, "--samples", "8", "--save", kept, "--mask_id", "5")) == 2
    assert "begun with mask_id=" in capsys.readouterr().err
    assert len(lines(kept)) == 4


def test_two_processes_write_what_one_writes(root: Path, tmp_path: Path) -> None:
    one = evaluate(root, tmp_path / "one.json", "--samples", "14", "--save", tmp_path / "one.jsonl")
    more = words(root, "--samples", "14", "--save", tmp_path / "two.jsonl", "--json", tmp_path / "two.json")
    said = in_two_processes(["--cpu", *ON_CPU], ["-m", "prism", *more], tmp_path)
    assert said.count("perplexity per text") == 1  # one process prints
    rows = [lines(tmp_path / f"{name}.jsonl") for name in ("one", "two")]
    assert [row["tokens"] for row in rows[0]] == [row["tokens"] for row in rows[1]]
    assert [row["row"] for row in rows[1]] == list(range(14))
    two = json.loads((tmp_path / "two.json").read_text())
    assert two["perplexity"] == pytest.approx(one["perplexity"], rel=1e-4)
    assert two["judged_tokens"] == one["judged_tokens"]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.skipif(importlib.util.find_spec("mauve") is None, reason="mauve-text (GPLv3) is not installed")
def test_mauve(root: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    same = judge(
        root, out, "--mauve_seeds", "2", "--texts", root / "essays.jsonl", "--reference", root / "essays.jsonl"
    )
    assert same["mauve"] == pytest.approx(1)
    corpus = evaluate(root, out, "--samples", "12", "--reference", root / "tokens", "--mauve_seeds", "2")
    assert 0 < corpus["mauve"] <= 1
    assert corpus["mauve_references"] == 12
    assert corpus["mauve_buckets"] == 2
    assert len(corpus["mauve_by_seed"]) == 2


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The texts MAUVE is shown, the references first; a stand-in for the package gives every clustering the score 1/2."""
    shown: list[str] = []

    def features(judge: Judge, texts: Any, *, most: int | None = None) -> list[Any]:
        shown.extend(texts)
        return [np.zeros(2, dtype=np.float32) for _ in texts]

    monkeypatch.setattr(Judge, "features", features)
    monkeypatch.setattr(text, "require_mauve", lambda: None)
    monkeypatch.setattr(text, "clustering", lambda written, generated, seed: Clustering(0.5, 0.01, 2))
    return shown


def test_references_have_the_ends_the_model_learnt(root: Path, tmp_path: Path, read: list[str]) -> None:
    """MAUVE looks at the last token: MDLM's is an end of text, and without one the references would be told by that alone."""
    end, size = "<|endoftext|>", vocabulary_size(load_tokenizer(root / "words"))
    write_mdlm(tmp_path / "mdlm", vocab_size=size + 1, mask_id=size, length=16)
    load_tokenizer(root / "words").save_pretrained(tmp_path / "mdlm")
    for model, said, ends in (
        (root / "base", (), False),
        (root / "base", ("--ends", "true"), True),
        (tmp_path / "mdlm", (), True),
        (tmp_path / "mdlm", ("--ends", "false"), False),
    ):
        read.clear()
        more = ["--model", model, "--samples", "6", "--reference", root / "tokens", "--mauve_seeds", "1"]
        evaluate(root, tmp_path / "out.json", *more, *said)
        references = read[:6]
        assert all(text.startswith(end) and text.endswith(end) for text in references) is ends
        assert {len(load_tokenizer(root / "words")(text)["input_ids"]) for text in references} <= {15, 16, 17}


def test_both_sides_end_documents_alike(
    root: Path, tmp_path: Path, read: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A writer whose tokenizer has a separator and no end of text, and references of another tokenizer, or of a file."""
    told: list[str | None] = []
    monkeypatch.setattr(
        text, "load_judge", lambda *a, **options: told.append(options["end"]) or load_judge(*a, **options)
    )
    tokenizer = load_tokenizer(root / "words")
    tokenizer.eos_token, tokenizer.sep_token = None, "[SEP]"
    tokenizer.save_pretrained(tmp_path / "other")
    more = [
        "--model",
        root / "base" / "backbone",
        "--tokenizer",
        tmp_path / "other",
        "--samples",
        "6",
        "--mauve_seeds",
        "1",
    ]
    write_lines(tmp_path / "ends.jsonl", ["the cat<|endoftext|> ran"] * 6)
    for reference, ends in ((root / "tokens", ["--ends", "true"]), (tmp_path / "ends.jsonl", [])):
        read.clear()
        evaluate(root, tmp_path / "out.json", *more, "--reference", reference, *ends)
        assert told[-1] == "[SEP]"
        assert all("[SEP]" in text and "<|endoftext|>" not in text for text in read[:6])


def test_bad_words(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty.jsonl").write_text("\n")
    judge = ["--judge", root / "judge"]
    base = [*judge, "--model", root / "base"]
    bad: list[tuple[list[str | Path], str]] = [
        (judge, "--model) or texts to judge (--texts), one of them"),
        ([*base, "--texts", root / "essays.jsonl"], "one of them"),
        ([*base, "--samples", "0"], "--samples 0"),
        ([*base, "--length", "0"], "--length 0"),
        ([*base, "--batch", "0"], "--batch 0"),
        ([*base, "--judge_batch", "0"], "--judge_batch 0"),
        ([*base, "--encoder", "x"], "give --reference too"),
        ([*base, "--ends", "true"], "--ends is about a --reference folder"),
        ([*base, "--save", tmp_path], "that is a folder"),
        ([*base, "--policy", "prism"], "needs a quality head"),
        ([*base, "--judge_dtype", "int8"], "--judge_dtype int8"),
        ([*judge, "--model", root / "base" / "backbone", "--policy", "vanilla"], "no tokenizer beside it"),
        ([*judge, "--texts", tmp_path / "absent.jsonl"], "absent.jsonl: no such file"),
        ([*judge, "--texts", tmp_path / "empty.jsonl"], "no text in it"),
        (
            [*judge, "--texts", root / "essays.jsonl", "--save", tmp_path / "s.jsonl", "--steps", "3"],
            "--steps, --save: the texts",
        ),
        ([*judge, "--texts", root / "essays.jsonl", "--judge_context", "65"], "reads 2..64"),
        ([*judge, "--texts", root / "essays.jsonl", "--field", "body"], "no text under 'body'"),
        (["--judge", tmp_path / "nobody", "--texts", root / "essays.jsonl"], "nobody"),
    ]
    for line, complaint in bad:
        assert run("evaluate", "text", *line) == 2, line
        said = capsys.readouterr().err
        assert complaint in said, line
        assert "(a bug?" not in said


# ── a known truth ───────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`truth.bin` over 270 tokens, its tokenizer, and an ignorant model of it."""
    path = tmp_path_factory.mktemp("world")
    write_llama2c(path / "truth.bin", tiny_truth(270).llama)
    write_llama2c_tokenizer(path / "tokenizer.bin", list(" abcdefghij"))
    torch.manual_seed(0)
    for name, size, length in (("model", 271, 8), ("other", 12, 8), ("long", 271, 20)):
        save_backbone(
            prism.DiT(prism.DiTConfig(size, size - 1, length, hidden_size=16, blocks=1, heads=2)), path / name
        )
    return path


def test_known_truth(world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, kept = tmp_path / "out.json", tmp_path / "s.jsonl"
    start = ["evaluate", "known-truth", "--model", world / "model", "--policy", "vanilla", "--samples", "20"]
    start += ["--batch", "8", "--truth", world / "truth.bin"]
    assert run(*start, "--json", out, "--save", kept) == 0
    found = json.loads(out.read_text())
    assert found["excess"] == pytest.approx(found["nll"] - found["truth_entropy"])
    assert found["excess_interval"][0] > 0  # it knows nothing
    assert (found["samples"], found["length"], found["nfe"]) == (20, 8, 7)
    assert {"entropy", "distinct_2", "repetition_4", "nll_interval"} <= found.keys() & found["truth"].keys()
    rows = lines(kept)
    assert len(rows) == 20
    assert all(row["tokens"][0] == 1 and len(row["tokens"]) == 8 and isinstance(row["text"], str) for row in rows)
    assert sum(row["nll"] for row in rows) / 20 == pytest.approx(found["nll"])
    assert "excess" in capsys.readouterr().out

    (tmp_path / "alone.bin").write_bytes((world / "truth.bin").read_bytes())
    alone = [*start, "--truth", tmp_path / "alone.bin", "--save", tmp_path / "ids.jsonl"]
    assert run(*alone, "--steps", "3", "--block", "1") == 2
    assert run(*alone, "--steps", "4") == 0
    assert lines(tmp_path / "ids.jsonl")[0]["text"].startswith("1 ")  # no tokenizer: ids


def known(world: Path, *more: str | Path) -> list[str]:
    start = ["evaluate", "known-truth", "--model", world / "model", "--policy", "vanilla", "--batch", "4"]
    return [str(word) for word in (*start, "--truth", world / "truth.bin", *more)]


def test_known_truth_goes_on_where_it_stopped(world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole, parts, out = tmp_path / "whole.jsonl", tmp_path / "parts.jsonl", tmp_path / "out.json"
    assert main(known(world, "--samples", "10", "--save", whole, "--json", out)) == 0
    one = json.loads(out.read_text())
    assert main(known(world, "--samples", "3", "--save", parts)) == 0
    first = parts.read_text()
    assert main(known(world, "--samples", "10", "--save", parts, "--json", out)) == 0
    two = json.loads(out.read_text())
    assert parts.read_text().startswith(first)
    for name in ("nll", "truth_entropy", "excess", "entropy"):
        assert two[name] == pytest.approx(one[name], rel=1e-5)
    for kept, other in ((whole, parts), (tmp_path / "whole.truth.jsonl", tmp_path / "parts.truth.jsonl")):
        assert [row["tokens"] for row in lines(kept)] == [row["tokens"] for row in lines(other)]
        assert len(lines(kept)) == 10
    assert sum(row["nll"] for row in lines(tmp_path / "whole.truth.jsonl")) / 10 == pytest.approx(one["truth_entropy"])
    for change in (("--seed", "1"), ("--steps", "5"), ("--nucleus", "0.9"), ("--length", "6")):
        assert main([*known(world, "--samples", "10", "--save", parts), *change]) == 2
        assert f"begun with {change[0][2:]}=" in capsys.readouterr().err


def test_ids_and_texts_of_a_truth_are_not_mixed(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With tokenizer.bin beside the truth, and without; or with another."""
    (tmp_path / "truth.bin").write_bytes((world / "truth.bin").read_bytes())
    write_llama2c_tokenizer(tmp_path / "other.bin", list(" abcdefghik"))
    start = [*known(world, "--samples", "4", "--save", tmp_path / "s.jsonl"), "--truth", str(tmp_path / "truth.bin")]
    assert main(start) == 0
    for tokenizer in (world / "tokenizer.bin", tmp_path / "other.bin"):
        assert main([*start, "--tokenizer", str(tokenizer)]) == 2
        assert "begun with tokenizer=None, not" in capsys.readouterr().err


def test_files_of_others_are_not_written_over(world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("mine.jsonl", "s.truth.jsonl"):
        (tmp_path / name).write_text("precious")
    for name in ("mine.jsonl", "s.jsonl"):
        assert main(known(world, "--samples", "4", "--save", tmp_path / name)) == 2
        assert "it is another file" in capsys.readouterr().err
    assert {(tmp_path / name).read_text() for name in ("mine.jsonl", "s.truth.jsonl")} == {"precious"}
    assert not (tmp_path / "s.jsonl").exists()  # it is told before there is any work


def test_two_processes_ask_a_truth_as_one_does(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """That processes gather what threads do here is seen in `test_two_processes_write_what_one_writes`."""
    assert main(known(world, "--samples", "14", "--save", tmp_path / "one.jsonl")) == 0
    capsys.readouterr()
    two = Threads(2)
    monkeypatch.setattr(text, "Together", two)
    assert two.run(lambda: main(known(world, "--samples", "14", "--save", tmp_path / "two.jsonl"))) == [0, 0]
    assert capsys.readouterr().out.count("truth entropy") == 1  # one process prints
    for ending in (".jsonl", ".truth.jsonl"):
        rows = [lines(tmp_path / f"{name}{ending}") for name in ("one", "two")]
        assert [row["tokens"] for row in rows[0]] == [row["tokens"] for row in rows[1]]
        assert [row["row"] for row in rows[1]] == list(range(14))


def test_one_sample_has_no_interval(world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(known(world, "--samples", "1", "--json", tmp_path / "out.json")) == 0
    found = json.loads((tmp_path / "out.json").read_text())
    assert found["nll"] > 0
    assert found["nll_interval"] is found["excess_interval"] is found["truth"]["entropy_interval"] is None
    assert "one sample has none" in capsys.readouterr().out


def test_mauve_of_a_truth(world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A score that tells what it was given stands in for the package."""

    def distance(written: Any, generated: Any) -> Mauve:
        assert written.shape == generated.shape == (6, 16)
        value = float(abs(written - generated).mean())
        return Mauve(Interval(value, value, value), (value,), 2)

    monkeypatch.setattr(text, "require_mauve", lambda otherwise: None)
    monkeypatch.setattr(text, "mauve", distance)
    out, kept = tmp_path / "out.json", tmp_path / "s.jsonl"
    assert main(known(world, "--samples", "6", "--mauve", "true", "--json", out, "--save", kept)) == 0
    found = json.loads(out.read_text())
    truth = load_llama2c(world / "truth.bin")
    own, written = (
        truth.llama(torch.tensor([row["tokens"] for row in lines(path)])) for path in (tmp_path / "s.truth.jsonl", kept)
    )
    assert found["mauve"] == pytest.approx(float((own[:, -1] - written[:, -1]).abs().mean()), rel=1e-4)
    assert found["mauve_of_means"] == pytest.approx(float((own.mean(1) - written.mean(1)).abs().mean()), rel=1e-4)
    assert main(known(world, "--samples", "1", "--mauve", "true")) == 2


def test_a_corpus_to_train_on(world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["corpus", "--truth", world / "truth.bin", "--output", tmp_path / "c.npy"]
    assert run(*words, "--sequences", "20", "--length", "8", "--json", tmp_path / "out.json") == 0
    assert "pretrain --data" in (said := " ".join(capsys.readouterr().out.split()))
    assert "--vocab_size 271" in said
    assert json.loads((tmp_path / "out.json").read_text())["tokens"] == 160
    rows = np.load(tmp_path / "c.npy")
    assert rows.shape == (20, 8)
    assert set(rows[:, 0]) == {1}
    bad: list[tuple[list[str], str]] = [
        (["--sequences", "0"], "--sequences 0"),
        (["--sequences", "4", "--batch", "0"], "--batch 0"),
        (["--sequences", "4", "--length", "17"], "--length 17: the truth writes a start token and what follows, 16"),
        (["--sequences", "4", "--length", "1"], "take 2..16"),
        (["--sequences", "20", "--length", "7"], "begun with length=8, not 7"),
        (["--sequences", "20", "--output", str(tmp_path)], "that is a folder"),
    ]
    for more, complaint in bad:
        assert run(*words, *more) == 2, more
        assert complaint in capsys.readouterr().err
    assert np.array_equal(np.load(tmp_path / "c.npy"), rows)


def test_two_processes_do_not_write_one_corpus(world: Path, tmp_path: Path) -> None:
    truth, path = load_llama2c(world / "truth.bin"), tmp_path / "c.npy"

    def intrude(done: int) -> None:
        with pytest.raises(ValueError, match=r"Another process is writing .*c\.npy"):
            write_corpus(truth, path, {}, 6, 8, seed=0, batch=4)

    write_corpus(truth, path, {}, 6, 8, seed=0, batch=4, done=intrude)
    assert np.load(path).shape == (6, 8)


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("--truth {w}/truth.bin", "--model: name the model"),
        ("--truth {w}/truth.bin --model {w}/other", "the mask of a model of it is 270; this one's is 11"),
        ("--truth {w}/tokenizer.bin --model {w}/model", "llama2.c checkpoint"),
        ("--truth {w}/absent.bin --model {w}/model", "absent.bin cannot be read"),
        ("--model {w}/model", "truth"),
        ("--truth {w}/truth.bin --model {w}/model --tokenizer {w}/absent.bin", "no such file"),
        ("--truth {w}/truth.bin --model {w}/model --tokenizer {w}/truth.bin", "no tokenizer of llama2.c"),
        ("--truth {w}/truth.bin --model {w}/model --length 1", "take at least 2"),
        ("--truth {w}/truth.bin --model {w}/model --length 9", "--length 9: the model was trained on 8 tokens"),
        ("--truth {w}/truth.bin --model {w}/long", "--length 20: the truth knows texts of 16 tokens; take at most 16"),
        ("--truth {w}/truth.bin --model {w}/model --policy prism", "needs a quality head"),
    ],
)
def test_bad_truths(world: Path, line: str, complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("evaluate", "known-truth", "--policy", "vanilla", *line.format(w=world).split()) == 2
    said = capsys.readouterr().err
    assert complaint in said
    assert "(a bug?" not in said


@pytest.mark.parametrize("task", ["text", "known-truth"])
def test_no_embedded_model_is_promised(task: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run("evaluate", task, "--help")
    assert "embedded" not in capsys.readouterr().out
