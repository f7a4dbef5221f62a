"""A causal model of transformers becomes a masked diffusion model."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from test_llama import LLAMA3, VOCABULARY, theirs

import prism
from prism.models.adapt import adapt, widening
from prism.models.folder import ModelError
from prism.models.hub import load_backbone, save_backbone
from prism.models.llama import Llama

FAMILY = [("llama", False), ("llama", True), ("qwen2", False), ("qwen3", True), ("mistral", False)]


@torch.no_grad()
@pytest.mark.parametrize(("kind", "tied"), FAMILY)
def test_it_begins_as_the_causal_model(tmp_path: Path, kind: str, tied: bool) -> None:
    """Shifted, and seeing the past alone, it predicts every token as the causal model does."""
    causal = theirs(kind, tie_word_embeddings=tied)
    causal.save_pretrained(tmp_path)
    model = adapt(tmp_path, shifted=True).eval()
    assert (model.facts.mask_id, model.facts.vocab_size) == (VOCABULARY, VOCABULARY + 1)
    x = torch.randint(VOCABULARY, (2, 9), generator=torch.Generator().manual_seed(0))
    found = model.predict(x).logits(torch.ones_like(x, dtype=torch.bool)).view(2, 9, -1)
    torch.testing.assert_close(found[:, 1:, :-1], causal(input_ids=x).logits[:, :-1], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_attention_widens_while_it_learns(tmp_path: Path, kind: str) -> None:
    theirs(kind).save_pretrained(tmp_path / "causal")
    model = adapt(tmp_path / "causal", shifted=False)
    shares = []
    widen = widening(model, over=20)

    def watched(step: int) -> None:
        widen(step)
        shares.append(float(model.future))

    examples = prism.Shuffled((torch.arange(40)[:, None] + torch.arange(8)) % VOCABULARY)
    settings = prism.Optimisation(steps=40, batch=32, lr=2e-2, log_every=10, recompute=True)
    run = prism.train(
        model, prism.DenoisingLoss(), examples, settings, folder=tmp_path / "run", progress=False, each_step=watched
    )
    assert shares == pytest.approx([min(1, step / 20) for step in range(40)])
    losses = [line["loss"] for line in run.history if "loss" in line]
    assert losses[-1] < 0.8 * losses[0]


@torch.no_grad()
@pytest.mark.parametrize(
    ("kind", "changes"), [("qwen2", {}), ("qwen3", {}), ("llama", {"rope_parameters": LLAMA3, "head_dim": 16})]
)
def test_saved_and_loaded(tmp_path: Path, kind: str, changes: dict[str, Any]) -> None:
    theirs(kind, **changes).save_pretrained(tmp_path / "causal")
    model = adapt(tmp_path / "causal", shifted=True).eval()
    model.future = 1.0
    save_backbone(model, tmp_path / "adapted")
    found = load_backbone(tmp_path / "adapted")
    assert isinstance(found, Llama)
    assert found.config == model.config
    x = torch.randint(VOCABULARY, (2, 9))
    assert torch.equal(found(x), model(x))


def test_a_window_is_refused_where_it_would_hide_something(tmp_path: Path) -> None:
    theirs("mistral", sliding_window=16).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="cannot be adapted: sliding_window=16 is shorter than sequences of 17 tokens"):
        adapt(tmp_path, shifted=True, length=17)
    assert adapt(tmp_path, shifted=True, length=16).config.length == 16


@pytest.mark.parametrize(
    ("tensors", "fields", "refused"),
    [
        (["token_embd.weight"], ["llama.rope.freq_base"], False),
        (["token_embd.weight", "rope_freqs.weight"], [], True),
        (["token_embd.weight"], ["llama.rope.scaling.factor"], True),
    ],
)
def test_scaled_positions_of_a_gguf_file_are_not_overlooked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tensors: list[str], fields: list[str], refused: bool
) -> None:
    """With stand-ins for the gguf package and for what transformers makes of the file."""
    inside = SimpleNamespace(tensors=[SimpleNamespace(name=name) for name in tensors], fields=dict.fromkeys(fields))
    monkeypatch.setitem(sys.modules, "gguf", SimpleNamespace(GGUFReader=lambda path: inside))
    monkeypatch.setattr("transformers.AutoModelForCausalLM.from_pretrained", lambda *_, **__: theirs("llama"))
    (tmp_path / "model.gguf").touch()
    if refused:
        with pytest.raises(ModelError, match="has scaled rotary positions, which transformers leaves out"):
            adapt(tmp_path / "model.gguf", shifted=True)
    else:
        assert adapt(tmp_path / "model.gguf", shifted=True).config.rope_scaling is None


def test_other_families_are_refused(tmp_path: Path) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    GPT2LMHeadModel(GPT2Config(vocab_size=9, n_embd=8, n_layer=1, n_head=2, n_positions=8)).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="'gpt2' is not of this family"):
        adapt(tmp_path, shifted=True)
    with pytest.raises(ModelError, match=r"has no absent\.gguf"):
        adapt(tmp_path / "absent.gguf", shifted=True)
