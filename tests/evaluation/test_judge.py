"""Judges against the published formulas and plain loops."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_llama import theirs
from texts import essays, write_tokenizer
from torch.nn import functional as F

from prism.data.text import load_tokenizer, vocabulary_size
from prism.evaluation.judge import Judge, load_encoder, load_judge
from prism.models.folder import ModelError

END = "<|endoftext|>"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`gpt2`, which has no start token in front; `llama`, which has; `bert`, an encoder."""
    from transformers import BertConfig, BertModel, GPT2Config, GPT2LMHeadModel

    path = tmp_path_factory.mktemp("judges")
    tokenizer = load_tokenizer(write_tokenizer(path / "words"))
    size = vocabulary_size(tokenizer)
    torch.manual_seed(0)
    gpt2 = GPT2LMHeadModel(GPT2Config(vocab_size=size, n_embd=16, n_layer=2, n_head=2, n_positions=24))
    small = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    bert = BertModel(BertConfig(vocab_size=size, max_position_embeddings=24, **small))
    for name, model in (("gpt2", gpt2), ("llama", theirs("llama", vocab_size=size + 1)), ("bert", bert)):
        for weight in model.parameters():
            torch.nn.init.normal_(weight, std=0.3)
        model.save_pretrained(path / name)
        tokenizer.save_pretrained(path / name)
    tokenizer.add_special_tokens({"bos_token": "<s>"})
    tokenizer.save_pretrained(path / "llama")
    return path


def published(model: Any, tokens: torch.Tensor, eos: int) -> tuple[torch.Tensor, torch.Tensor]:
    """As in MDLM's compute_generative_perplexity, on sequences without padding."""
    nlls = F.cross_entropy(model(tokens).logits[:, :-1].transpose(-1, -2), tokens[:, 1:], reduction="none")
    first_eos = (tokens == eos).cumsum(-1) == 1
    counts = first_eos[:, 1:] + (tokens != eos)[:, 1:]
    return (nlls * counts).sum(1), counts.sum(1)


@torch.no_grad()
def test_as_published(folder: Path) -> None:
    judge = load_judge(str(folder / "gpt2"), batch=3, end=END)
    assert (judge.begin, judge.context) == (None, 24)
    texts = [*essays(7), f"the cat{END} the dog{END}{END} ran{END}", END, "the", ""]
    found = judge.likelihood(texts)
    for text, (nll, count) in zip(texts, found, strict=True):
        ids = judge.tokenizer(text)["input_ids"][:24]
        if len(ids) < 2:
            assert (nll, count) == (0, 0)
            continue
        theirs_nll, theirs_count = published(judge.model, torch.tensor([ids]), judge.tokenizer.eos_token_id)
        assert count == int(theirs_count)
        assert nll == pytest.approx(float(theirs_nll), rel=1e-5)
    assert found[0][1] == 23  # cut to the context, the first token not scored


@torch.no_grad()
def test_a_start_token_that_is_also_the_end_of_text_is_not_taken_for_one(folder: Path) -> None:
    judge = load_judge(str(folder / "gpt2"), begins=True, end=END)
    assert judge.begin == judge.tokenizer.eos_token_id
    (_, without), (_, within) = judge.likelihood(["the cat", f"the cat{END}"])
    assert within == without + 1


@torch.no_grad()
def test_a_start_token_lets_every_token_count(folder: Path) -> None:
    plain, begun = (load_judge(str(folder / "llama"), begins=begins) for begins in (False, True))
    (_, without), (nll, count) = plain.likelihood(["the cat"])[0], begun.likelihood(["the cat"])[0]
    ids = [begun.tokenizer.bos_token_id, *begun.tokenizer("the cat", add_special_tokens=False)["input_ids"]]
    assert count == len(ids) - 1 == without + 1
    logs = begun.model(torch.tensor([ids])).logits[0].log_softmax(-1)
    assert nll == pytest.approx(-float(sum(logs[i, token] for i, token in enumerate(ids[1:]))), rel=1e-5)


def test_who_wants_a_start_token(folder: Path) -> None:
    from prism.evaluation.judge import _begins

    tokenizer = load_tokenizer(folder / "llama")
    assert not _begins(tokenizer, "llama")  # it does not put it there itself
    assert _begins(tokenizer, "gemma3_text")  # out of a GGUF file it does not either, and yet
    tokenizer.bos_token = None
    assert not _begins(tokenizer, "gemma3_text")  # there is none to put


def test_the_writers_end_of_text_becomes_the_judges(folder: Path) -> None:
    judge = load_judge(str(folder / "gpt2"), end="[SEP]")
    assert judge.read("the cat[SEP]") == judge.read(f"the cat{END}")
    assert judge.read("the cat[SEP]")[-1] == judge.tokenizer.eos_token_id
    judge.tokenizer.add_special_tokens({"eos_token": "<|turn|>"})
    known = Judge(judge.model, judge.tokenizer, begin=None, context=24, end=END)  # as in chat models
    assert known.read(f"the cat{END}") == judge.read("the cat[SEP]")
    assert known.likelihood([f"the{END} cat{END}"])[0][1] == known.likelihood([f"the{END} cat"])[0][1]


@torch.no_grad()
def test_features_are_of_the_last_token_or_the_mean_whatever_the_batch(folder: Path) -> None:
    texts = [*essays(5), "the"]
    together, alone = (load_judge(str(folder / "gpt2"), batch=batch).states(texts) for batch in (4, 1))
    np.testing.assert_allclose(np.stack(together), np.stack(alone), atol=1e-5)
    judge = load_judge(str(folder / "gpt2"))
    hidden = judge.model(torch.tensor([judge.read(texts[0])]), output_hidden_states=True).hidden_states[-1]
    np.testing.assert_allclose(together[0], [hidden[0, -1].numpy(), hidden[0].mean(0).numpy()], atol=1e-5)
    short = judge.features(texts[:1], most=3)[0]
    hidden = judge.model(torch.tensor([judge.read(texts[0])[:3]]), output_hidden_states=True).hidden_states[-1]
    np.testing.assert_allclose(short, hidden[0, -1].numpy(), atol=1e-5)


@torch.no_grad()
def test_an_encoder_gives_the_mean(folder: Path) -> None:
    encoder = load_encoder(str(folder / "bert"), batch=4)
    texts = [*essays(5), "the"]
    found = encoder.features(texts)
    for text, vector in zip(texts, found, strict=True):
        hidden = encoder.model(torch.tensor([encoder.read(text)])).last_hidden_state[0]
        np.testing.assert_allclose(vector, hidden.mean(0).numpy(), atol=1e-5)


@pytest.mark.parametrize("kind", ["roberta", "mpnet"])
def test_an_encoder_reads_as_much_as_it_has_places_for(folder: Path, tmp_path: Path, kind: str) -> None:
    """Two of the positions in their config are no place in a text; a tokenizer may know of a shorter one."""
    from transformers import AutoConfig, AutoModel

    tokenizer = load_tokenizer(folder / "words")
    small = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    tokens = {"vocab_size": vocabulary_size(tokenizer), "pad_token_id": 1}
    model = AutoModel.from_config(AutoConfig.for_model(kind, max_position_embeddings=26, **tokens, **small))
    model.save_pretrained(tmp_path)
    for told, context in ((None, 24), (512, 24), (10, 10)):
        tokenizer.model_max_length = told or int(1e30)
        tokenizer.save_pretrained(tmp_path)
        encoder = load_encoder(str(tmp_path))
        assert len(encoder.read(" ".join(essays(3)))) == encoder.context == context
        assert np.isfinite(encoder.features([" ".join(essays(3)), "the"])).all()


def test_what_cannot_judge_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"reads 2\.\.24"):
        load_judge(str(folder / "gpt2"), context=25)
    assert (
        load_judge(str(folder / "gpt2"), context=5).read(essays(1)[0])
        == Judge.read(load_judge(str(folder / "gpt2")), essays(1)[0])[:5]
    )
    with pytest.raises(ModelError, match=r"has no absent\.gguf"):
        load_judge(str(tmp_path / "absent.gguf"))
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelError, match="cannot be loaded as a AutoModelForCausalLM"):
        load_judge(str(tmp_path))
