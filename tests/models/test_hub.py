"""Loading by folder or name: our format, the hub's MDLM, masked language models; and the errors of each."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_models import HEADS, MASK, VOCAB, bert, dit, modernbert, roberta, shaken, tokens, write_mdlm

from prism.models.attach import Lora, PrismModel, attach, fingerprint
from prism.models.dit import DiT
from prism.models.folder import CorrectorError, ModelError
from prism.models.hub import folders, load_backbone, load_model, locate, outline_backbone, save_backbone, save_model
from prism.models.masked_lm import MaskedLM
from prism.models.oracle import Oracle


def logits(model) -> torch.Tensor:
    x = tokens()
    with torch.no_grad():
        return model.predict(x).logits(torch.ones_like(x, dtype=torch.bool))


@pytest.mark.parametrize("make", [dit, bert, roberta, modernbert], ids=lambda make: make.__name__)
def test_backbones_come_back_as_they_were_saved(make, tmp_path):
    backbone = make()
    before = logits(backbone)
    attached = attach(backbone, HEADS[0], lora=Lora(rank=2, alpha=1.0, targets=("0",)) if make is dit else None)
    save_backbone(backbone, tmp_path / "saved")
    again = load_backbone(tmp_path / "saved")
    assert type(again) is type(backbone)
    assert again.facts == backbone.facts
    assert not again.training
    assert torch.equal(logits(again), before)
    assert fingerprint(again) == fingerprint(attached.detach())


@pytest.mark.parametrize("make", [dit, bert, roberta, modernbert], ids=lambda make: make.__name__)
@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_an_outline_is_the_backbone_without_its_numbers(make, dtype, tmp_path):
    save_backbone(make().to(torch.float64 if dtype is None else torch.float32), tmp_path / "saved")
    outline, whole = outline_backbone(tmp_path / "saved", dtype=dtype), load_backbone(tmp_path / "saved", dtype=dtype)
    assert type(outline) is type(whole)
    assert outline.facts == whole.facts
    found, expected = ({n: (w.shape, w.dtype) for n, w in m.named_parameters()} for m in (outline, whole))
    assert found == expected
    assert outline.device.type == "meta"


@pytest.mark.parametrize(
    ("large", "terminal", "rank", "shown"),
    [
        (0, True, "0", True),
        (0, True, None, True),
        (0, True, "1", False),
        (0, False, "0", False),
        (1 << 30, True, "0", False),
    ],
)
def test_reading_is_shown_once_and_on_a_terminal(large, terminal, rank, shown, tmp_path, monkeypatch, capsys):
    save_backbone(dit(), tmp_path / "saved")
    monkeypatch.setattr("prism.models.hub.LARGE", large)
    monkeypatch.setattr("rich.console.Console.is_terminal", terminal)
    monkeypatch.delenv("RANK", raising=False)
    if rank is not None:
        monkeypatch.setenv("RANK", rank)
    load_backbone(tmp_path / "saved")
    said = capsys.readouterr().out
    assert "loading" in said if shown else said == ""


# ── the hub's MDLM ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def mdlm(tmp_path) -> Path:
    return write_mdlm(tmp_path / "mdlm")


def test_the_hubs_mdlm_loads_by_name(mdlm):
    model = load_backbone(mdlm)
    assert isinstance(model, DiT)
    assert model.facts.mask_id == VOCAB - 1
    assert model.config == replace(dit().config, mask_id=VOCAB - 1, dropout=0.1)
    assert torch.equal(model.unembed(model(tokens())), dit().unembed(dit()(tokens())))
    assert load_backbone(mdlm, mask_id=MASK).facts.mask_id == MASK


def test_the_names_are_those_of_the_published_checkpoint():
    """Every name the hub's index lists, so that a renamed layer of ours is noticed."""
    block = ["adaLN_modulation.bias", "adaLN_modulation.weight", "attn_out.weight", "attn_qkv.weight", "norm1.weight"]
    block += ["mlp.0.bias", "mlp.0.weight", "mlp.2.bias", "mlp.2.weight", "norm2.weight"]
    names = {f"blocks.{i}.{name}" for i in range(2) for name in block} | {"vocab_embed.embedding"}
    names |= {f"sigma_map.mlp.{i}.{kind}" for i in (0, 2) for kind in ("weight", "bias")}
    names |= {f"output_layer.{part}.{kind}" for part in ("linear", "adaLN_modulation") for kind in ("weight", "bias")}
    assert set(dit().state_dict()) == names | {"output_layer.norm_final.weight"}


def test_shards_are_put_together(mdlm):
    whole = load_file(mdlm / "model.safetensors")
    names = sorted(whole)
    shards = {"model-00001-of-00002.safetensors": names[:9], "model-00002-of-00002.safetensors": names[9:]}
    for shard, members in shards.items():
        save_file({name: whole[name] for name in members}, mdlm / shard)
    (mdlm / "model.safetensors").unlink()
    index = {"weight_map": {name: shard for shard, members in shards.items() for name in members}}
    (mdlm / "model.safetensors.index.json").write_text(json.dumps(index))
    assert torch.equal(logits(load_backbone(mdlm, mask_id=MASK)), logits(dit()))

    index["weight_map"]["backbone.extra"] = "model-00001-of-00002.safetensors"
    (mdlm / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelError, match=r"lacks backbone\.extra, which its index lists"):
        load_backbone(mdlm)
    (mdlm / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(ModelError, match=r"has no model-00002-of-00002\.safetensors"):
        load_backbone(mdlm)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_dtype_is_that_of_the_file_or_as_asked(mdlm, dtype):
    stored = load_file(mdlm / "model.safetensors")
    assert {p.dtype for p in load_backbone(mdlm, dtype=dtype).parameters()} == {dtype}
    save_file({name: value.to(dtype) for name, value in stored.items()}, mdlm / "model.safetensors")
    assert {p.dtype for p in load_backbone(mdlm).parameters()} == {dtype}


# ── whole models ────────────────────────────────────────────────────────────────────────────────────────────────────


def tuned(make) -> PrismModel:
    model = attach(make(), HEADS[2], tune_backbone=True)
    shaken(model, seed=4, scale=0.1)
    return model


@pytest.mark.parametrize("make", [dit, bert], ids=lambda make: make.__name__)
def test_a_model_with_a_tuned_backbone_is_kept_whole(make, tmp_path):
    model = tuned(make)
    save_model(model, tmp_path / "model", notes={"steps": 3})
    assert sorted(path.name for path in (tmp_path / "model").iterdir()) == ["backbone", "corrector"]
    again = load_model(tmp_path / "model")
    assert isinstance(again, PrismModel)
    assert torch.equal(logits(again), logits(model))
    with torch.no_grad():
        assert torch.equal(again.predict(tokens()).quality, model.predict(tokens()).quality)
    save_model(model, tmp_path / "model")  # in place of the old one


def test_gathered_or_averaged_weights_can_be_saved(tmp_path):
    model = tuned(dit)
    state = {name: value * 0.5 for name, value in model.state_dict().items()}
    save_model(model, tmp_path / "model", state=state)
    again = load_model(tmp_path / "model").state_dict()
    assert again.keys() == state.keys()
    assert all(torch.equal(again[name], value) for name, value in state.items())


def test_bare_backbones_are_models_too(tmp_path):
    model = attach(dit(), None, tune_backbone=True)
    save_model(model, tmp_path / "likelihood")
    assert isinstance(load_model(tmp_path / "likelihood"), DiT)
    save_backbone(bert(), tmp_path / "bert")
    assert isinstance(load_model(tmp_path / "bert"), MaskedLM)


def test_a_corrector_finds_the_backbone_it_names(tmp_path, monkeypatch):
    save_backbone(bert(), tmp_path / "base")
    model = attach(bert(), HEADS[0], lora=Lora(rank=2, alpha=4.0, targets=("query",)))
    shaken(model.quality_head)
    (tmp_path / "run").mkdir()
    for base, where in ((str(tmp_path / "base"), "run/corrector"), ("../base", "alone"), ("base", "run/corrector")):
        model.save(tmp_path / where, base=base)
        monkeypatch.chdir(tmp_path)
        again = load_model(tmp_path / where.partition("/")[0])
        assert isinstance(again, PrismModel)
        with torch.no_grad():
            assert torch.equal(again.predict(tokens()).quality, model.predict(tokens()).quality)
    model.save(tmp_path / "alone")
    with pytest.raises(CorrectorError, match="does not say where its backbone is"):
        load_model(tmp_path / "alone")


def test_a_backbone_that_has_moved_is_named_and_may_be_said(tmp_path):
    base, moved, run = tmp_path / "base", tmp_path / "moved", tmp_path / "run"
    save_backbone(bert(), base)
    model = attach(bert(), HEADS[0])
    model.save(run / "corrector", base=str(base))
    base.rename(moved)
    with pytest.raises(CorrectorError, match=rf"run/corrector was trained on the backbone {base}, .*--backbone FOLDER"):
        load_model(run)
    assert isinstance(load_model(run, backbone=moved), PrismModel)
    assert list(folders(run, moved)) == [run, moved]
    with pytest.raises(ModelError, match=r"moved is no corrector: it has a backbone of its own\. Leave --backbone"):
        load_model(moved, backbone=moved)

    config = json.loads((run / "corrector" / "prism_config.json").read_text())
    config["backbone"]["name"] = str(moved)
    (run / "corrector" / "prism_config.json").write_text(json.dumps(config))
    assert isinstance(load_model(run), PrismModel)

    save_backbone(shaken(bert()), tmp_path / "other")
    with pytest.raises(CorrectorError, match="has fingerprint"):
        load_model(run, backbone=tmp_path / "other")


# ── errors ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def change(folder: Path, **settings: object) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **settings}))


def reweigh(folder: Path, edit) -> None:
    path = folder / "model.safetensors"
    save_file(edit(load_file(path)), path)


DAMAGES = {
    "no config": (lambda f: (f / "config.json").unlink(), r"has no config\.json"),
    "damaged config": (lambda f: (f / "config.json").write_text("{"), "is damaged"),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), r"has no model\.safetensors"),
    "truncated weights": (
        lambda f: (f / "model.safetensors").write_bytes((f / "model.safetensors").read_bytes()[:-9]),
        "truncated or damaged",
    ),
    "causal model": (lambda f: change(f, model_type="llama"), "type 'llama', which is no masked diffusion model"),
    "no type": (lambda f: change(f, model_type=None), "type None"),
    "no number of blocks": (lambda f: change(f, n_blocks=None), "does not describe a (prism-dit|mdlm) model"),
    "impossible heads": (lambda f: change(f, n_heads=0), "does not describe a (prism-dit|mdlm) model"),
    "a field missing": (
        lambda f: (f / "config.json").write_text(json.dumps({"model_type": "mdlm", "vocab_size": 5})),
        "lacks cond_dim, dropout, hidden_dim",
    ),
    "another shape": (lambda f: change(f, hidden_dim=20), r"in another shape .* instead of \(120, 6\)"),
    "another depth": (lambda f: change(f, n_blocks=3), r"lacks blocks\.2\.adaLN_modulation\.bias, .* and 7 more"),
    "left over": (lambda f: change(f, n_blocks=1), r"has besides blocks\.1\."),
    "a tensor missing": (
        lambda f: reweigh(f, lambda t: {k: v for k, v in t.items() if "norm_final" not in k}),
        r"lacks output_layer\.norm_final\.weight",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_does_not_fit_is_named_in_one_line(damage, mdlm):
    break_it, said = DAMAGES[damage]
    break_it(mdlm)
    with pytest.raises(ModelError, match=said) as caught:
        load_backbone(mdlm)
    assert "\n" not in str(caught.value)


def test_a_config_of_ours_with_unknown_settings_is_refused(tmp_path):
    save_backbone(dit(), tmp_path / "dit")
    change(tmp_path / "dit", colour="blue")
    with pytest.raises(ModelError, match=r"does not describe a (prism-dit|mdlm) model: .*colour"):
        load_backbone(tmp_path / "dit")
    change(tmp_path / "dit", mask_id=VOCAB)
    with pytest.raises(ModelError, match="does not describe a prism-dit model"):
        load_backbone(tmp_path / "dit")


@pytest.mark.parametrize("mask_id", [-1, VOCAB])
def test_a_mask_id_outside_the_vocabulary_is_refused(mask_id, mdlm):
    with pytest.raises(ModelError, match=f"mask_id={mask_id} is outside the vocabulary"):
        load_backbone(mdlm, mask_id=mask_id)


@pytest.mark.parametrize("name", ["./nowhere", "/no/such/folder", "a/b/c", "~/model", "two words"])
def test_a_path_that_is_no_folder_is_not_asked_of_the_hub(name, monkeypatch):
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *_, **__: pytest.fail("asked the hub"))
    with pytest.raises(ModelError, match="There is no folder"):
        locate(name)


def test_hub_names_are_fetched_without_code_or_pickles(monkeypatch, mdlm):
    asked = {}

    def download(name: str, allow_patterns: list[str]) -> str:
        asked[name] = allow_patterns
        return str(mdlm)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    assert isinstance(load_backbone("kuleshov-group/mdlm-owt"), DiT)
    assert asked == {"kuleshov-group/mdlm-owt": ["*.json", "*.safetensors", "*.txt", "*.jinja"]}


def test_without_a_network_the_error_is_one_line(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ModelError, match="nobody/no-such-model is neither a folder here nor to be had") as caught:
        load_backbone("nobody/no-such-model")
    assert "\n" not in str(caught.value)


def test_what_cannot_be_saved_leaves_nothing_behind(tmp_path):
    with pytest.raises(ModelError, match="Oracle cannot be saved"):
        save_backbone(Oracle.random(2, 2), tmp_path / "oracle")
    assert not list(tmp_path.iterdir())
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "work.txt").write_text("kept")
    with pytest.raises(ModelError, match=r"exists and holds no config\.json"):
        save_backbone(dit(), tmp_path / "mine")
