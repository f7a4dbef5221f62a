"""Masked language models of transformers as backbones: their own logits, without their vocabulary head in the forward pass."""

import json
from pathlib import Path

import pytest
import torch
import transformers
from tiny_models import MASK, VOCAB, bert, distilbert, electra, esm, modernbert, padding, roberta, tokens
from torch import nn

from prism.models.folder import ModelError
from prism.models.hub import save_backbone
from prism.models.masked_lm import MaskedLM

FAMILIES = (bert, roberta, modernbert, distilbert, esm, electra)


@pytest.fixture(params=FAMILIES, ids=lambda family: family.__name__)
def model(request) -> MaskedLM:
    return request.param()


@torch.no_grad()
def test_logits_are_the_models_own(model):
    x, attend = tokens(), padding([10, 7, 4])
    x[0, 3] = x[1, 2] = MASK
    everywhere = torch.ones_like(x, dtype=torch.bool)
    own = model.model(input_ids=x).logits
    torch.testing.assert_close(model.predict(x).logits(everywhere).view_as(own), own, atol=1e-6, rtol=1e-6)
    padded = model.model(input_ids=x.masked_fill(~attend, 0), attention_mask=attend.long()).logits
    torch.testing.assert_close(model.predict(x, attend).logits(attend), padded[attend], atol=1e-6, rtol=1e-6)


@torch.no_grad()
def test_the_forward_pass_never_runs_the_vocabulary_head_and_leaves_the_model_as_it_is(model):
    x = tokens()
    projection = model.model.get_output_embeddings()
    before = dict(model.model.named_modules())
    ran: list[nn.Module] = []
    hook = projection.register_forward_pre_hook(lambda module, _: ran.append(module))
    hidden = model(x)
    assert not ran
    assert hidden.shape == (3, 10, model.facts.hidden_size)
    model.unembed(hidden[:1, :1])
    assert ran == [projection]
    hook.remove()
    assert dict(model.model.named_modules()) == before


@torch.no_grad()
def test_padding_holds_anything_and_changes_nothing(model):
    x, attend = tokens(), padding([10, 7, 4])
    y = torch.where(attend, x, tokens(seed=9))
    torch.testing.assert_close(model(x, attend)[attend], model(y, attend)[attend], atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(model(x, attend)[1:2, :7], model(x[1:2, :7]), atol=1e-5, rtol=1e-5)


def test_facts(model):
    assert model.facts.mask_id == MASK
    assert model.facts.vocab_size == VOCAB
    assert model.facts.pad_id == 0


def test_gradients_reach_the_model_and_modes_are_kept():
    model = bert()
    model.model.bert.train()
    rebuilt = MaskedLM(model.model, MASK)
    assert rebuilt.model.bert.training
    assert not rebuilt.model.cls.training
    rebuilt.unembed(rebuilt(tokens())).sum().backward()
    assert rebuilt.model.bert.embeddings.word_embeddings.weight.grad is not None
    assert rebuilt.model.cls.predictions.bias.grad is not None


@pytest.mark.parametrize(("family", "length"), [(bert, 14), (roberta, 13)])
def test_too_long_sequences_are_refused(family, length):
    """RoBERTa spends its first positions on padding."""
    model = family()
    model(tokens(1, length))
    with pytest.raises(ValueError, match=f"{length + 1} tokens are too long: this model has {length} positions"):
        model(tokens(1, length + 1))


@pytest.mark.parametrize(
    ("mask_id", "why"),
    [
        (None, "This model's config names no mask token"),
        (-1, "mask_id=-1 is no id of this model"),
        (VOCAB, f"mask_id={VOCAB} is no id of this model"),
    ],
)
def test_a_mask_id_is_needed_and_lies_in_the_vocabulary(mask_id, why):
    with pytest.raises(ModelError, match=f"{why}; say which of the {VOCAB} ids, 0..{VOCAB - 1}, is the mask"):
        MaskedLM(bert().model, mask_id)


def test_families_with_another_kind_of_vocabulary_head_are_refused():
    small = {"vocab_size": VOCAB, "hidden_size": 16, "embedding_size": 8, "intra_bottleneck_size": 8}
    config = transformers.MobileBertConfig(num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, **small)
    with pytest.raises(ModelError, match="vocabulary head is not one linear layer"):
        MaskedLM(transformers.MobileBertForMaskedLM(config), MASK)
    with pytest.raises(ModelError, match="no linear output embedding"):
        MaskedLM(transformers.BertModel(transformers.BertConfig(num_hidden_layers=1)), MASK)


# ── folders ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    bert().model.save_pretrained(tmp_path / "bert")
    return tmp_path / "bert"


def test_a_saved_model_comes_back_with_its_mask_id(model, tmp_path):
    save_backbone(model, tmp_path / "saved")
    again = MaskedLM.from_pretrained(tmp_path / "saved")
    assert again.facts == model.facts
    assert torch.equal(again(tokens()), model(tokens()))
    assert torch.equal(again.unembed(again(tokens())), model.unembed(model(tokens())))


def test_the_tokenizer_tells_the_mask_id(folder):
    with pytest.raises(ModelError, match=r"is the mask \(--mask_id ID, mask_id=ID\)"):
        MaskedLM.from_pretrained(folder)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *(f"w{i}" for i in range(VOCAB - 5)), "[MASK]"]
    (folder / "vocab.txt").write_text("\n".join(words))
    assert MaskedLM.from_pretrained(folder).facts.mask_id == VOCAB - 1
    assert MaskedLM.from_pretrained(folder, MASK).facts.mask_id == MASK


def test_transformers_shows_no_bars_of_its_own(model, tmp_path, capfd):
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    save_backbone(model, tmp_path / "saved")
    MaskedLM.from_pretrained(tmp_path / "saved")
    assert capfd.readouterr() == ("", "")
    assert logging.is_progress_bar_enabled() == shown


def test_missing_weights_are_named_instead_of_drawn_at_random(folder):
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    del weights["cls.predictions.transform.dense.weight"]
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelError, match=r"lacks cls\.predictions\.transform\.dense\.weight"):
        MaskedLM.from_pretrained(folder, MASK)


def test_weights_of_another_shape_are_refused(folder):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "intermediate_size": 20}))
    with pytest.raises(ModelError, match=r"lacks bert\.encoder\.layer\.0\.intermediate\.dense\.bias, .* in the shape"):
        MaskedLM.from_pretrained(folder, MASK)


def test_truncated_and_pickled_weights_are_refused(folder):
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[:-100])
    with pytest.raises(ModelError, match="cannot be loaded"):
        MaskedLM.from_pretrained(folder, MASK)
    (folder / "model.safetensors").unlink()
    torch.save(bert().model.state_dict(), folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match=r"no \.safetensors"):
        MaskedLM.from_pretrained(folder, MASK)
