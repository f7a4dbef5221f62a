"""Attachments: their properties for every head on every backbone, the corrector folder, and the errors that guard it."""

import copy
import hashlib
import json
from pathlib import Path

import pytest
import torch
from tiny_models import BACKBONES, HEADS, MASK, SIZE, VOCAB, bert, dit, padding, shaken, tokens
from torch import Tensor, nn

from prism.losses.masking import Batch
from prism.losses.prism import Likelihood, PrismLoss
from prism.models.attach import Lora, PrismModel, attach, fingerprint, load
from prism.models.backbone import Backbone, Facts, Field, log_odds
from prism.models.folder import CorrectorError
from prism.models.heads import BlockConfig, FinalLayerConfig, OddsConfig, ProjectionConfig, Verdict
from prism.noise import Noise

MATRIX = pytest.mark.parametrize(
    ("name", "head"),
    [(name, head) for name in BACKBONES for head in HEADS],
    ids=[f"{name}-{type(head).__name__}" for name in BACKBONES for head in HEADS],
)


def lora_for(name: str, **settings: float) -> Lora:
    return Lora(**{"rank": 2, "alpha": 4.0, **settings}, targets=BACKBONES[name][1])


def answers(model: PrismModel | Backbone, attend: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Logits everywhere, and quality logits where there are some."""
    x = tokens()
    with torch.no_grad():
        prediction = model.predict(x, attend)
        quality = prediction.quality_logits if prediction.has_quality else torch.zeros(x.shape)
        return prediction.logits(torch.ones_like(x, dtype=torch.bool)), quality


def own_log_odds(backbone: Backbone) -> Tensor:
    """Of the tokens, under what the backbone itself predicts where they stand, the mask having no probability."""
    x = tokens()
    with torch.no_grad():
        probability = backbone.predict(x).log_probabilities(torch.ones_like(x, dtype=torch.bool)).double().exp()
    return probability.gather(1, x.view(-1, 1)).view(x.shape).logit().float()


def train(model: PrismModel, loss: PrismLoss | None = None, steps: int = 1) -> None:
    parameters = [parameter for group in model.trainable().values() for parameter in group]
    optimiser = torch.optim.SGD(parameters, lr=0.1)
    for step in range(steps):
        optimiser.zero_grad()
        noise = Noise.rows(step, 3)
        (loss or PrismLoss(k=4))(model, Batch(tokens()), MASK, noise).total.backward()
        optimiser.step()


# ── properties of every attachment ──────────────────────────────────────────────────────────────────────────────────


@MATRIX
def test_attaching_training_saving_loading_and_detaching(name, head, tmp_path):
    make, targets = BACKBONES[name]
    backbone = make()
    base_logits, _ = answers(backbone)
    base_weights = {key: value.clone() for key, value in backbone.state_dict().items()}
    base_modules = dict(backbone.named_modules())

    model = attach(backbone, head, lora=Lora(rank=2, alpha=4.0, targets=targets))
    logits, quality = answers(model)
    torch.testing.assert_close(logits, base_logits, atol=1e-5, rtol=1e-5)
    own = own_log_odds(backbone) if isinstance(head, OddsConfig) else torch.zeros(quality.shape)
    torch.testing.assert_close(quality, own, atol=1e-4, rtol=1e-4)

    shaken(model.quality_head)
    train(model, steps=3)
    logits, quality = answers(model, padding([10, 7, 4]))
    assert logits.isfinite().all()
    assert quality.isfinite().all()
    assert quality.std() > 0.01
    assert not torch.allclose(answers(model)[0], base_logits, atol=1e-4)

    model.save(tmp_path / "corrector")
    again = load(tmp_path / "corrector", make())
    assert all(torch.equal(a, b) for a, b in zip(answers(model), answers(again), strict=True))

    detached = model.detach()
    assert detached is backbone
    assert dict(backbone.named_modules()) == base_modules
    assert all(torch.equal(value, base_weights[key]) for key, value in backbone.state_dict().items())
    assert torch.equal(answers(backbone)[0], base_logits)
    assert all(parameter.requires_grad for parameter in backbone.parameters())


@MATRIX
def test_padding_changes_nothing(name, head):
    model = attach(BACKBONES[name][0](), head)
    shaken(model.quality_head)
    x, attend = tokens(), padding([10, 7, 4])
    with torch.no_grad():
        padded, alone = model.predict(x, attend).quality, model.predict(x[1:2, :7]).quality
    torch.testing.assert_close(padded[1:2, :7], alone, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", BACKBONES)
@pytest.mark.parametrize("moving", ["head", "lora", "backbone"])
@pytest.mark.parametrize("head", [HEADS[0], HEADS[-1]], ids=lambda head: type(head).__name__)
def test_only_what_was_declared_moves(name, moving, head):
    """`moving` is the widest of what may learn; a head goes with each."""
    backbone = BACKBONES[name][0]()
    lora = lora_for(name) if moving == "lora" else None
    model = attach(backbone, head, lora=lora, tune_backbone=moving == "backbone")
    shaken(model.quality_head)
    before = {key: value.detach().clone() for key, value in model.named_parameters()}
    train(model)
    moved = {key for key, value in model.named_parameters() if not torch.equal(value, before[key])}

    declared = {key for key in before if key.startswith("quality_head.") or (moving == "lora" and ".lora_B." in key)}
    if moving == "backbone":
        assert sum(key.startswith("backbone.") for key in moved) > 0.8 * len(list(backbone.parameters()))
        assert any(key.startswith("quality_head.") for key in moved)
    else:  # LoRA's A learns once B has left zero
        assert moved <= declared
        assert {key for key in declared if "linear" in key or "lora_B" in key} <= moved
    groups = model.trainable()
    assert [group for group, parameters in groups.items() if parameters] == (
        ["head"] if moving == "head" else [moving, "head"]
    )
    assert sum(len(parameters) for parameters in groups.values()) == sum(p.requires_grad for p in model.parameters())


def test_the_likelihood_variant_needs_no_head(tmp_path):
    model = attach(dit(), None, lora=lora_for("dit"))
    train(model, PrismLoss(k=2, target=Likelihood()), steps=2)
    with pytest.raises(ValueError, match="no quality head"):
        _ = model.predict(tokens()).quality
    model.save(tmp_path / "c")
    again = load(tmp_path / "c", dit())
    assert again.quality_head is None
    assert torch.equal(answers(again)[0], answers(model)[0])


def test_requires_grad_and_modes_are_restored():
    backbone = dit().train()
    backbone.vocab_embed.requires_grad_(False)
    wanted = {key: value.requires_grad for key, value in backbone.named_parameters()}
    modes = {key: module.training for key, module in backbone.blocks[0].eval().named_modules()}
    attributes = set(vars(backbone))
    model = attach(backbone, HEADS[0], lora=lora_for("dit"))
    assert model.quality_head.training
    assert not any(module.training for module in backbone.blocks[0].modules())
    assert all(module.training for module in backbone.blocks[1].modules())
    model.detach()
    assert {key: module.training for key, module in backbone.blocks[0].named_modules()} == modes
    assert {key: value.requires_grad for key, value in backbone.named_parameters()} == wanted
    assert set(vars(backbone)) == attributes
    assert not attach(dit(), HEADS[1]).quality_head.training
    again = attach(backbone, HEADS[0], lora=lora_for("dit"))
    assert again.trainable()["lora"]


def test_a_tuned_backbone_keeps_its_weights_when_detached():
    backbone = dit()
    before = answers(backbone)[0]
    model = attach(backbone, HEADS[0], tune_backbone=True)
    train(model)
    after = answers(model)[0]
    assert not torch.equal(after, before)
    assert torch.equal(answers(model.detach())[0], after)


def test_heads_are_float32_on_a_backbone_of_another_dtype():
    model = attach(dit().double(), HEADS[1], lora=lora_for("dit"))
    dtypes = {parameter.dtype for group in ("lora", "head") for parameter in model.trainable()[group]}
    assert dtypes == {torch.float32}
    logits, quality = answers(model)
    assert logits.dtype == torch.float64
    assert quality.dtype == torch.float32


EVEN = VOCAB + 1


class Shifted(Backbone):
    """A model whose hidden state at i is token i itself, and whose prediction of token i is read at i - 1."""

    def __init__(self) -> None:
        super().__init__()
        self.facts = Facts(MASK, VOCAB, EVEN, field=Field.SHIFTED)
        self.project = nn.Linear(EVEN, VOCAB)

    def forward(self, tokens, attend=None, cache=None):
        return nn.functional.one_hot(tokens, EVEN).float()

    def unembed(self, hidden):
        return self.project(hidden)


def test_quality_is_read_at_its_own_position_even_where_logits_are_shifted():
    model = attach(Shifted(), ProjectionConfig(EVEN))
    shaken(model.quality_head, scale=1.0)
    x = tokens()
    with torch.no_grad():
        prediction = model.predict(x)
        assert torch.equal(prediction.quality_logits, model.quality_head(nn.functional.one_hot(x, EVEN).float()).score)
        shifted = prediction.logits(torch.ones_like(x, dtype=torch.bool)).view(3, 10, VOCAB)
        assert torch.equal(shifted[:, 1:], model.backbone.project(nn.functional.one_hot(x, EVEN).float())[:, :-1])


def test_odds_are_read_where_the_token_is_predicted():
    backbone = Shifted()
    model = attach(backbone, OddsConfig(EVEN, heads=1, cond_size=6)).eval()
    torch.testing.assert_close(answers(model)[1], own_log_odds(backbone), atol=1e-4, rtol=1e-4)


def test_odds_learn_through_the_vocabulary_without_changing_it():
    """The head's block comes to tell right tokens from wrong ones; a frozen backbone stays as it is."""
    backbone = dit()
    before = answers(backbone)[0]
    model = attach(backbone, HEADS[-1])
    loss, noise = PrismLoss(k=4, regulariser=0.0), Noise.rows(0, 3)
    losses = []
    optimiser = torch.optim.Adam(model.trainable()["head"], lr=0.02)
    for _ in range(40):  # the same draws again and again
        optimiser.zero_grad()
        found = loss(model, Batch(tokens()), MASK, noise).total
        found.backward()
        optimiser.step()
        losses.append(found.item())
    assert losses[-1] < 0.2 * losses[0]
    assert torch.equal(answers(model.detach())[0], before)


# ── LoRA targets ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_lora_never_reaches_the_vocabulary_projection():
    """`linear` and `dense` are also the ending of layers before it; `decoder` and the DiT's output layer are it alone."""
    model = attach(bert(), HEADS[0], lora=Lora(rank=2, alpha=4.0, targets=("dense", "query")))
    names = {key for key, _ in model.named_parameters() if ".lora_A." in key}
    assert any("cls.predictions.transform.dense" in key for key in names)
    assert not any("decoder" in key for key in names)
    for backbone, target in ((bert(), "decoder"), (dit(), "linear")):
        with pytest.raises(ValueError, match="match no linear layer of the backbone before its vocabulary projection"):
            attach(backbone, HEADS[0], lora=Lora(rank=2, alpha=4.0, targets=(target,)))


def test_targets_are_whole_words_and_must_all_exist():
    model = attach(dit(), HEADS[0], lora=Lora(rank=2, alpha=4.0, targets=("blocks.1.mlp.0",)))
    assert len(model.trainable()["lora"]) == 2
    with pytest.raises(ValueError, match=r"\['qkv'\] match no linear layer .* end in 0, 2, adaLN_modulation"):
        attach(dit(), HEADS[0], lora=Lora(rank=2, alpha=4.0, targets=("attn_out", "qkv")))


def test_many_targets_are_told_apart_from_the_heads_own_layers(tmp_path):
    """From 20 targets on PEFT shortens the list to common suffixes, and the block head has an `attn_qkv` too."""
    model = attach(dit(blocks=21), HEADS[1], lora=Lora(rank=1, alpha=1.0, targets=("attn_qkv",)))
    assert len(model.trainable()["lora"]) == 42
    model.save(tmp_path / "c")
    assert len(json.loads((tmp_path / "c" / "adapter_config.json").read_text())["target_modules"]) == 21
    assert len(load(tmp_path / "c", dit(blocks=21)).trainable()["lora"]) == 42


# ── errors of attach ────────────────────────────────────────────────────────────────────────────────────────────────


def test_what_cannot_be_attached_is_refused():
    with pytest.raises(ValueError, match=f"hidden size {SIZE + 2}, the backbone has {SIZE}; .*hidden_size={SIZE}"):
        attach(dit(), FinalLayerConfig(SIZE + 2))
    with pytest.raises(ValueError, match="choose one"):
        attach(dit(), HEADS[0], lora=lora_for("dit"), tune_backbone=True)
    with pytest.raises(ValueError, match="nothing to train"):
        attach(dit(), None)
    with pytest.raises(ValueError, match="rank=0"):
        Lora(rank=0, alpha=1.0, targets=("query",))
    with pytest.raises(ValueError, match="dropout=1"):
        Lora(rank=1, alpha=1.0, targets=("query",), dropout=1.0)
    backbone = dit()
    attach(backbone, HEADS[0], lora=lora_for("dit"))
    with pytest.raises(ValueError, match="already has LoRA"):
        attach(backbone, HEADS[0], lora=lora_for("dit"))


# ── the corrector folder ────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def model() -> PrismModel:
    model = attach(dit(), HEADS[1], lora=lora_for("dit"))
    shaken(model.quality_head)
    train(model)
    return model


@pytest.fixture
def corrector(model, tmp_path) -> Path:
    model.save(tmp_path / "corrector", base="someone/tiny-dit", notes={"steps": 1})
    return tmp_path / "corrector"


class Wrapped(nn.Module):
    """What PEFT is given: a backbone and a fresh head under the names the corrector knows."""

    def __init__(self, backbone: Backbone, quality_head: nn.Module | None) -> None:
        super().__init__()
        self.backbone = backbone
        if quality_head is not None:
            self.quality_head = quality_head

    def forward(self, x: Tensor, attend: Tensor | None) -> tuple[Tensor, Tensor]:
        hidden = self.backbone(x, attend)
        head = getattr(self, "quality_head", None)
        verdict = Verdict(torch.zeros(x.shape)) if head is None else head(hidden, attend)
        odds = 0.0 if verdict.states is None else log_odds(self.backbone, verdict.states, x)
        return self.backbone.unembed(hidden).flatten(0, 1), verdict.score + odds


@pytest.mark.parametrize("name", BACKBONES)
@pytest.mark.parametrize(
    ("head", "with_lora"),
    [*((head, with_lora) for head in HEADS for with_lora in (True, False)), (None, True)],
    ids=lambda value: {True: "lora", False: "alone"}.get(value, type(value).__name__),
)
def test_peft_reads_the_folder(name, head, with_lora, tmp_path):
    from peft import PeftModel

    model = attach(BACKBONES[name][0](), head, lora=lora_for(name) if with_lora else None)
    if head is not None:
        shaken(model.quality_head)
    for parameter in model.trainable()["lora"]:
        parameter.data += 0.1
    model.save(tmp_path / "c")
    module = Wrapped(BACKBONES[name][0](), None if head is None else head.build())
    read = PeftModel.from_pretrained(module, tmp_path / "c").eval()
    attend = padding([10, 7, 4])
    with torch.no_grad():
        logits, quality = read(tokens(), attend)
    expected_logits, expected_quality = answers(model, attend)
    torch.testing.assert_close(logits, expected_logits, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(quality, expected_quality, atol=1e-6, rtol=1e-6)


def test_what_the_folder_holds(model, corrector):
    from safetensors.torch import load_file

    assert sorted(path.name for path in corrector.iterdir()) == [
        "README.md",
        "adapter_config.json",
        "adapter_model.safetensors",
        "prism_config.json",
    ]
    stored = load_file(corrector / "adapter_model.safetensors")
    assert sum(value.numel() for value in stored.values()) == sum(
        parameter.numel() for group in model.trainable().values() for parameter in group
    )
    assert "base_model.model.backbone.blocks.0.attn_qkv.lora_A.weight" in stored
    assert "base_model.model.quality_head.block.attn_qkv.weight" in stored
    config = json.loads((corrector / "prism_config.json").read_text())
    assert config["format"] == 1
    assert config["head"] == {"kind": "Block", "hidden_size": SIZE, "heads": 2, "cond_size": 6, "dropout": 0.0}
    assert config["lora"] == {"rank": 2, "alpha": 4.0, "dropout": 0.0, "targets": ["attn_qkv", "mlp.0"]}
    assert config["backbone"]["name"] == "someone/tiny-dit"
    assert config["backbone"]["class"] == "DiT"
    assert config["backbone"]["facts"]["mask_id"] == MASK
    assert config["backbone"]["fingerprint"] == fingerprint(dit())
    assert config["notes"] == {"steps": 1}
    card = (corrector / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: peft\n")
    assert 'base_model: "someone/tiny-dit"' in card
    assert "load_backbone" in card


def test_a_loaded_corrector_goes_on_learning(corrector):
    again = load(corrector, dit())
    before = answers(again)[1]
    train(again)
    assert not torch.equal(answers(again)[1], before)


def test_a_state_dict_can_stand_in_for_the_models_own_weights(model, tmp_path):
    """Averaged weights, or weights gathered from several processes."""
    average = {key: value * 0.5 if "quality_head" in key else value for key, value in model.state_dict().items()}
    model.save(tmp_path / "c", state=average)
    again = load(tmp_path / "c", dit())
    for key, value in again.state_dict().items():
        assert torch.equal(value, average[key])


def test_saving_is_whole_or_not_at_all(model, corrector):
    before = {path.name: path.read_bytes() for path in corrector.iterdir()}
    with pytest.raises(TypeError):
        model.save(corrector, notes={"not JSON": object()})
    assert {path.name: path.read_bytes() for path in corrector.iterdir()} == before
    assert [path.name for path in corrector.parent.iterdir()] == ["corrector"]
    model.save(corrector, notes={"steps": 2})
    assert json.loads((corrector / "prism_config.json").read_text())["notes"] == {"steps": 2}
    assert [path.name for path in corrector.parent.iterdir()] == ["corrector"]


def test_saving_never_overwrites_what_is_not_a_corrector(model, tmp_path):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.txt").write_text("mine")
    with pytest.raises(CorrectorError, match=r"thesis exists and holds no prism_config\.json"):
        model.save(tmp_path / "thesis")
    (tmp_path / "file").write_text("mine")
    with pytest.raises(CorrectorError, match="file exists"):
        model.save(tmp_path / "file")
    assert (tmp_path / "thesis" / "chapter.txt").read_text() == "mine"
    (tmp_path / "empty").mkdir()
    model.save(tmp_path / "empty")
    with pytest.raises(CorrectorError, match="Nothing is attached"):
        attach(dit(), None, tune_backbone=True).save(tmp_path / "nothing")


# ── what fails to load, and what it says ────────────────────────────────────────────────────────────────────────────


def edit(corrector: Path, **changes: object) -> None:
    path = corrector / "prism_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def rewrite(corrector: Path, change) -> None:
    """New tensors under a SHA-256 that fits them."""
    from safetensors.torch import load_file, save_file

    path = corrector / "adapter_model.safetensors"
    save_file(change(load_file(path)), path)
    edit(corrector, sha256=hashlib.sha256(path.read_bytes()).hexdigest())


def without(name: str):
    return lambda tensors: {key: value for key, value in tensors.items() if name not in key}


def flip(path: Path, place: float) -> None:
    content = bytearray(path.read_bytes())
    content[int(place * (len(content) - 1))] ^= 0x10
    path.write_bytes(bytes(content))


WEIGHTS = "adapter_model.safetensors"
DAMAGES = {
    "no weights": (lambda c: (c / WEIGHTS).unlink(), r"no adapter_model\.safetensors"),
    "no prism config": (lambda c: (c / "prism_config.json").unlink(), r"no prism_config\.json"),
    "no peft config": (lambda c: (c / "adapter_config.json").unlink(), r"no adapter_config\.json"),
    "JSON cut off": (lambda c: (c / "prism_config.json").write_text('{"format": 1,'), "is damaged"),
    "JSON not an object": (lambda c: (c / "prism_config.json").write_text("[1]"), "must hold a JSON object"),
    "JSON not text": (lambda c: (c / "adapter_config.json").write_bytes(b"\xff\xfe\x00"), "is damaged"),
    "newer format": (lambda c: edit(c, format=3), "has format 3, this version of prism reads 1 and 2; upgrade"),
    "calibration missing": (lambda c: edit(c, format=2), r"of an unknown kind \('calibration'\)"),
    "calibration upside down": (
        lambda c: edit(c, format=2, calibration={"scale": -1.0, "shift": 0.0, "slope": 0.0}),
        "scale=-1.0 must be above 0",
    ),
    "unknown head": (
        lambda c: edit(c, head={"kind": "Crystal", "hidden_size": SIZE}),
        "'Crystal' is none of FinalLayer",
    ),
    "unknown head setting": (lambda c: edit(c, head={"kind": "Block", "size": 3}), "damaged or of an unknown kind"),
    "no settings": (lambda c: edit(c, backbone={}), "damaged or of an unknown kind"),
    "bad lora": (lambda c: edit(c, lora={"rank": 0, "alpha": 1.0, "targets": ["attn_qkv"]}), "rank=0"),
    "other lora layers": (
        lambda c: edit(c, lora={"rank": 2, "alpha": 4.0, "targets": ["nothing"]}),
        "match no linear layer",
    ),
    "weights cut off": (lambda c: (c / WEIGHTS).write_bytes((c / WEIGHTS).read_bytes()[:-1]), "truncated or damaged"),
    "weights empty": (lambda c: (c / WEIGHTS).write_bytes(b""), "truncated or damaged"),
    "a bit flipped in a tensor": (lambda c: flip(c / WEIGHTS, 0.9), "truncated or damaged"),
    "a bit flipped in the header": (lambda c: flip(c / WEIGHTS, 0.01), "truncated or damaged"),
    "a tensor missing": (
        lambda c: rewrite(c, without("blocks.0.attn_qkv.lora_A")),
        r"lacks base_model\.model\.backbone\.blocks\.0\.attn_qkv\.lora_A\.weight",
    ),
    "a tensor too many": (lambda c: rewrite(c, lambda t: {**t, "guest": torch.zeros(1)}), "has besides guest"),
    "a tensor of another shape": (
        lambda c: rewrite(c, lambda t: {**t, next(iter(t)): torch.zeros(2, 3)}),
        r"in another shape .* \(2, 3\) instead of",
    ),
    "not safetensors at all": (
        lambda c: (
            (c / WEIGHTS).write_bytes(b"junk" * 9),
            edit(c, sha256=hashlib.sha256(b"junk" * 9).hexdigest()),
        ),
        "truncated or damaged",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_folder_is_refused_in_one_line_and_leaves_the_backbone_alone(damage, corrector):
    break_it, said = DAMAGES[damage]
    break_it(corrector)
    backbone = dit()
    before = dict(backbone.named_modules())
    with pytest.raises(CorrectorError, match=said) as caught:
        load(corrector, backbone)
    assert "\n" not in str(caught.value)
    assert dict(backbone.named_modules()) == before
    assert all(parameter.requires_grad for parameter in backbone.parameters())


def test_every_cut_of_the_weights_is_noticed(corrector):
    whole = (corrector / WEIGHTS).read_bytes()
    backbone = dit()
    for share in (0.0, 0.001, 0.1, 0.5, 0.99):
        (corrector / WEIGHTS).write_bytes(whole[: int(share * len(whole))])
        with pytest.raises(CorrectorError, match="truncated or damaged"):
            load(corrector, backbone)


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(CorrectorError, match=f"no folder {tmp_path / 'nowhere'}"):
        load(tmp_path / "nowhere", dit())


def test_another_backbone_is_refused_unless_asked_for(corrector, model):
    other = shaken(dit(), seed=5)
    with pytest.raises(CorrectorError) as caught:
        load(corrector, other)
    for part in ("someone/tiny-dit", fingerprint(dit()), fingerprint(other), "any_backbone=True"):
        assert part in str(caught.value)
    loaded = load(corrector, other, any_backbone=True)
    assert torch.equal(loaded.quality_head.block.attn_qkv.weight, model.quality_head.block.attn_qkv.weight)


def test_another_hidden_size_or_mask_is_refused(corrector):
    for any_backbone in (False, True):
        with pytest.raises(CorrectorError, match="hidden size 16; the backbone given has 32"):
            load(corrector, dit(hidden_size=32), any_backbone=any_backbone)
    with pytest.raises(
        CorrectorError, match=f"mask id {MASK}; the backbone given uses 0. Load the backbone with mask_id="
    ):
        load(corrector, dit(mask_id=0))


# ── fingerprints ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_fingerprint_tells_weights_apart_but_not_dtypes_or_attachments():
    mark = fingerprint(dit())
    assert len(mark) == 32
    assert fingerprint(dit()) == mark
    assert fingerprint(dit().to(torch.bfloat16)) == mark
    assert fingerprint(dit().double()) == mark
    attached = attach(dit(), HEADS[1], lora=lora_for("dit"))
    train(attached)
    assert fingerprint(attached.backbone) == mark
    for name, _ in dit().named_parameters():
        changed = dit()
        changed.get_parameter(name).data.view(-1)[0] += 1.0
        assert fingerprint(changed) != mark, name


def test_a_fingerprint_reads_little_of_a_large_tensor():
    big = dit(vocab_size=5000, mask_id=4)
    moved = copy.deepcopy(big)
    moved.vocab_embed.embedding.data.view(-1)[1:79] += 1.0  # between two of the values it reads
    assert fingerprint(moved) == fingerprint(big)


def test_parameter_counts_do_not_need_memory():
    from prism.models.dit import DiT, DiTConfig

    with torch.device("meta"):
        model = attach(DiT(DiTConfig.owt()), BlockConfig(768))
    assert sum(parameter.numel() for parameter in model.trainable()["head"]) == 7_877_377
    assert sum(parameter.numel() for parameter in model.parameters()) == 169_627_218 + 7_877_377
