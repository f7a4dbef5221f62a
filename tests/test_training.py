"""The training loop: what it computes, what it survives, and what it says when it cannot go on."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from launching import ON_CPU, in_two_processes
from safetensors.torch import load_file
from torch import Tensor, nn
from training_script import SETTINGS, finetune, pretrain, probe, ramps, tiny_dit, tiny_prism

from prism.losses.denoising import DenoisingLoss
from prism.losses.loss import Loss, TrainingLoss
from prism.losses.masking import Batch
from prism.losses.prism import PrismLoss
from prism.models.attach import Lora, load
from prism.models.dit import DiT
from prism.models.folder import ModelError
from prism.noise import Noise, Purpose
from prism.training import (
    Constant,
    Cosine,
    CosineCycles,
    Ema,
    Optimisation,
    Precision,
    Shuffled,
    Trained,
    TrainingError,
    restore,
    train,
    use_ema,
)
from prism.training.muon import Muon, orthogonal

CPU = torch.device("cpu")
HERE = Path(__file__).parent


def same_bits(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def copied(model: nn.Module) -> dict[str, Tensor]:
    return {name: weight.detach().clone() for name, weight in model.named_parameters()}


def without_pace(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in line.items() if name != "rows_per_second"} for line in lines]


def losses(trained: Trained) -> list[float]:
    return [line["loss"] for line in trained.history if "loss" in line]


# ------------------------------------------------------------------------------------------------------------- learning


def test_pretraining_learns(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = DiT(tiny_dit(dropout=0.1).config)
    trained = pretrain(tmp_path, model, Optimisation(steps=120, batch=16, lr=1e-2, log_every=20))
    assert trained.last("loss") < 0.75 * trained.history[0]["loss"]
    assert not model.training


def test_finetuning_learns_the_head(tmp_path: Path) -> None:
    model = tiny_prism()
    settings = Optimisation(steps=60, batch=16, lr=1e-2, log_every=20)
    trained = train(model, PrismLoss(k=2), Shuffled(ramps()), settings, folder=tmp_path, progress=False)
    assert trained.last("quality") < 0.8 * trained.history[0]["quality"]
    assert {"denoising", "right", "lr/backbone", "lr/head"} <= trained.history[0].keys()


def test_accumulated_micro_batches_make_the_larger_batch(tmp_path: Path) -> None:
    whole, split = tiny_dit(), tiny_dit()
    one = pretrain(tmp_path / "whole", whole)
    four = pretrain(tmp_path / "split", split, replace(SETTINGS, accumulate=4))
    assert losses(four) == pytest.approx(losses(one), abs=1e-5)
    for name, weight in whole.named_parameters():
        torch.testing.assert_close(split.get_parameter(name), weight, atol=1e-5, rtol=0)


@pytest.mark.parametrize("lora", [None, Lora(rank=2, alpha=4.0, targets=("attn_qkv",))])
def test_what_is_frozen_does_not_move_and_the_rest_does(tmp_path: Path, lora: Lora | None) -> None:
    model = tiny_prism(lora=lora)
    before = copied(model)
    finetune(tmp_path, model)
    learns = {name for name, weight in model.named_parameters() if weight.requires_grad}
    moved = {name for name, weight in model.named_parameters() if not torch.equal(weight, before[name])}
    assert moved == learns
    assert {name.partition(".")[0] for name in learns} == (
        {"quality_head"} if lora is None else {"quality_head", "backbone"}
    )


def test_beside_a_frozen_backbone_the_mdm_loss_is_told(tmp_path: Path) -> None:
    told, untold = tiny_prism(lora=None), tiny_prism(lora=None)
    trained = train(told, PrismLoss(k=2, regulariser=5.0), Shuffled(ramps()), SETTINGS, folder=tmp_path / "told")
    train(untold, PrismLoss(k=2, regulariser=0.0), Shuffled(ramps()), SETTINGS, folder=tmp_path / "untold")
    assert trained.history[0]["denoising"] > 0
    for name, weight in told.named_parameters():
        assert torch.equal(weight, untold.get_parameter(name)), name


def test_every_group_moves_at_its_own_rate(tmp_path: Path) -> None:
    """Adam's first step is lr · sign(gradient)."""
    model = tiny_prism(lora=Lora(rank=2, alpha=4.0, targets=("attn_qkv",)))
    nn.init.normal_(model.get_parameter("quality_head.output_layer.linear.weight"))
    before = copied(model)
    finetune(tmp_path, model, Optimisation(steps=1, batch=8, lr=1e-3, lora_lr=1e-4, head_lr=1e-2, clip=None))
    for name, part, lr in (
        ("head", "quality_head.output_layer.linear.bias", 1e-2),
        ("lora", "backbone.blocks.0.attn_qkv.lora_B.default.weight", 1e-4),
    ):
        step = (model.get_parameter(part).detach() - before[part]).abs()
        assert float(step.max()) == pytest.approx(lr, rel=1e-2), name
    plain = tiny_dit()
    before = copied(plain)
    pretrain(tmp_path / "plain", plain, Optimisation(steps=1, batch=8, lr=1e-3, backbone_lr=2e-3, clip=None))
    name = "output_layer.linear.bias"
    assert float((plain.get_parameter(name).detach() - before[name]).abs().max()) == pytest.approx(2e-3, rel=1e-2)


def test_clipping_bounds_what_the_optimiser_sees(tmp_path: Path) -> None:
    """Adam's second moment after one step is (1 - β₂)·gradient²."""
    trained = pretrain(tmp_path, tiny_dit(), Optimisation(steps=1, batch=8, clip=0.01))
    moments = load_file(trained.checkpoint / "moments.safetensors")
    squares = sum(float(value.sum()) for name, value in moments.items() if name.startswith("exp_avg_sq/"))
    assert math.sqrt(squares / (1 - 0.999)) == pytest.approx(0.01, rel=1e-3)
    assert trained.last("gradient_norm") > 0.1


@pytest.mark.filterwarnings("ignore:TF32 acceleration")  # torch's own, when oneDNN is switched off
def test_bfloat16_products_and_float32_weights(tmp_path: Path) -> None:
    seen: list[torch.dtype] = []
    model = tiny_dit()
    model.get_submodule("blocks.0").mlp[1].register_forward_hook(
        lambda module, inputs, output: seen.append(output.dtype)
    )
    settings = replace(SETTINGS, precision=Precision.BF16, steps=3)
    with torch.backends.mkldnn.flags(enabled=False):  # some virtual machines announce AMX and then forbid it
        trained = pretrain(tmp_path / "bf16", model, settings, evaluate=probe)
    assert set(seen) == {torch.bfloat16}
    assert {weight.dtype for weight in model.parameters()} == {torch.float32}
    exact = pretrain(tmp_path / "fp32", tiny_dit(), replace(SETTINGS, steps=3))
    assert losses(trained) == pytest.approx(losses(exact), rel=2e-2)
    assert losses(trained) != losses(exact)


def test_recomputing_changes_the_work_and_not_the_result(tmp_path: Path) -> None:
    """Dropout included: a block's second run draws the same numbers."""
    weights, runs = [], []
    for recompute in (False, True):
        model, ran = tiny_prism(), []
        for block in model.backbone.blocks:
            block.dropout.register_forward_pre_hook(lambda *_, ran=ran: ran.append(1))
        finetune(tmp_path / str(recompute), model, replace(SETTINGS, steps=3, recompute=recompute))
        assert all("forward" not in vars(block) for block in model.backbone.blocks)
        weights.append(copied(model))
        runs.append(len(ran))
    assert same_bits(*weights)
    assert runs[1] > runs[0]


def test_backbone_and_head_are_what_gets_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[nn.Module] = []
    monkeypatch.setattr(nn.Module, "compile", lambda self, **options: compiled.append(self))
    model = tiny_prism()
    finetune(tmp_path, model, replace(SETTINGS, steps=3, compile=True))
    assert compiled == [model.backbone, model.quality_head]


def test_nothing_to_train(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="nothing to train"):
        pretrain(tmp_path, tiny_dit().requires_grad_(False))


# ------------------------------------------------------------------------------------------------------------- settings


def test_learning_rates_have_their_closed_forms() -> None:
    settings = Optimisation(steps=110, warmup=10)
    assert [settings.lr_share(step) for step in (0, 4, 9, 10, 109)] == [0.1, 0.5, 1.0, 1.0, 1.0]
    cosine = replace(settings, rate=Cosine())
    assert [cosine.lr_share(step) for step in (9, 10, 35, 60, 110)] == pytest.approx(
        [1, 1, (1 + math.sqrt(0.5)) / 2, 0.5, 0]
    )
    assert replace(settings, rate=Cosine(floor=0.2)).lr_share(60) == pytest.approx(0.6)
    waves = replace(settings, rate=CosineCycles(5.0))
    assert [waves.lr_share(step) for step in (10, 15, 20, 30, 40, 110)] == pytest.approx([1, 0.5, 0, 1, 0, 1])
    assert replace(settings, rate=Constant(), warmup=0).lr_share(0) == 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"steps": 0},
        {"batch": 0},
        {"lr": 0.0},
        {"head_lr": -1.0},
        {"ema": 1.0},
        {"warmup": 99},
        {"keep": 0},
        {"clip": 0.0},
    ],
)
def test_impossible_settings_are_named(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(wrong))}="):
        replace(SETTINGS, **wrong)


def test_a_batch_that_cannot_be_shared_out(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"batch=8 must be a multiple of 1 processes · accumulate=3"):
        pretrain(tmp_path, tiny_dit(), replace(SETTINGS, accumulate=3))


# ------------------------------------------------------------------------------------------------------------- examples


def test_every_epoch_is_a_fresh_order_of_all_rows() -> None:
    examples = Shuffled(torch.arange(7, dtype=torch.uint8)[:, None].repeat(1, 3))
    rows = examples.batch(range(21), CPU).tokens[:, 0]
    assert rows.dtype == torch.long
    assert all(sorted(epoch.tolist()) == list(range(7)) for epoch in rows.split(7))
    assert len({tuple(epoch.tolist()) for epoch in rows.split(7)}) == 3
    assert torch.equal(examples.batch(range(5, 16), CPU).tokens[:, 0], rows[5:16])
    assert not torch.equal(replace(examples, seed=1).batch(range(7), CPU).tokens[:, 0], rows[:7])


def test_prompts_padding_and_augmentation_go_with_their_rows() -> None:
    tokens = torch.arange(6)[:, None].repeat(1, 4)

    def shift(tokens: Tensor, noise: Noise) -> Tensor:
        return tokens + (1000 * noise.uniform(Purpose.EXAMPLE, 1)).long() * 10

    examples = Shuffled(tokens, maskable=tokens % 2 == 0, attend=tokens < 4, augment=shift)
    batch = examples.batch(range(12), CPU)
    assert batch.maskable is not None
    assert batch.attend is not None
    assert torch.equal(batch.maskable, batch.tokens % 10 % 2 == 0)
    assert torch.equal(batch.attend, batch.tokens % 10 < 4)
    assert torch.equal(examples.batch(range(5, 9), CPU).tokens, batch.tokens[5:9])
    assert len((batch.tokens // 10)[:, 0].unique()) > 8


# ------------------------------------------------------------------------------------------------------------- averaging


def test_the_average_follows_its_formula() -> None:
    weights = {"a": nn.Parameter(torch.zeros(3)), "b": nn.Parameter(torch.ones(2, dtype=torch.bfloat16))}
    ema = Ema(weights, decay=0.25)
    expected = 0.0
    for n in range(1, 9):
        with torch.no_grad():
            weights["a"].fill_(float(n))
        ema.update(n)
        expected += (1 - min(0.25, (1 + n) / (10 + n))) * (n - expected)
    assert ema.average["a"].tolist() == pytest.approx([expected] * 3)
    assert ema.average["b"].dtype == torch.float32
    with ema.applied():
        assert torch.equal(weights["a"], ema.average["a"])
    assert weights["a"].tolist() == [8.0] * 3


def test_evaluation_sees_the_average_and_changes_nothing(tmp_path: Path) -> None:
    seen: dict[int, dict[str, Tensor]] = {}

    def look(model: nn.Module, step: int) -> dict[str, float]:
        assert not model.training
        assert not torch.is_grad_enabled()
        seen[step] = copied(model)
        return {"steps": float(step)}

    settings = replace(SETTINGS, evaluate_every=5)
    model, undisturbed = tiny_dit(dropout=0.1), tiny_dit(dropout=0.1)
    trained = pretrain(tmp_path / "watched", model, settings, evaluate=look)
    pretrain(tmp_path / "alone", undisturbed, settings)
    assert list(seen) == [5, 10, 12]
    assert same_bits(copied(model), copied(undisturbed))
    assert same_bits(seen[12], load_file(trained.checkpoint / "ema.safetensors"))
    assert trained.last("evaluation/steps") == 12

    assert trained.has_ema
    use_ema(model, trained.checkpoint)
    assert same_bits(copied(model), seen[12])
    restore(model, trained.checkpoint)
    assert same_bits(copied(model), copied(undisturbed))
    with pytest.raises(ModelError, match="does not fit this model"):
        restore(tiny_prism(), trained.checkpoint)


# ------------------------------------------------------------------------------------------------------------- the folder


def test_what_a_run_leaves_behind(tmp_path: Path) -> None:
    trained = pretrain(tmp_path, tiny_dit(), replace(SETTINGS, log_every=5), trackers=("tensorboard",))
    assert [path.name for path in sorted((tmp_path / "checkpoints").iterdir())] == ["step-00000008", "step-00000012"]
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [5, 10, 12]
    assert lines[0].keys() == {"step", "loss", "denoising", "gradient_norm", "rows_per_second", "lr/backbone"}
    assert trained.history == lines
    settings = json.loads((tmp_path / "settings.json").read_text())
    assert settings["lr"] == SETTINGS.lr
    assert settings["rate"] == "Cosine(floor=0.0)"
    assert settings["loss"].startswith("DenoisingLoss(")
    assert list((tmp_path / "tracking").glob("events.out.tfevents.*"))


def test_trackers_that_are_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="no tracker 'tensorbord'"):
        pretrain(tmp_path, tiny_dit(), trackers=("tensorbord",))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match="pip install wandb"):
        pretrain(tmp_path, tiny_dit(), trackers=("wandb",))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ZERO_STAGE", "3"),
        ("OFFLOAD_OPTIMIZER_DEVICE", "cpu"),
        ("OFFLOAD_PARAM_DEVICE", "cpu"),
        ("CONFIG_FILE", "a.json"),
    ],
)
def test_deepspeed_in_another_way_than_zero_2_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", "true")
    monkeypatch.setenv(f"ACCELERATE_DEEPSPEED_{name}", value)
    with pytest.raises(ValueError, match=rf"with {name.lower()} {value}, .* deepspeed\.yaml, or with fsdp2\.yaml"):
        pretrain(tmp_path, tiny_dit())


def test_a_run_is_never_overwritten(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(ValueError, match=r"is not empty; to go on .* give --resume true \(in Python resume=True\)"):
        pretrain(tmp_path, tiny_dit())


def interrupted(folder: Path, after: int) -> None:
    """A run whose evaluation fails at step `after`."""

    def fail(model: nn.Module, step: int) -> dict[str, float]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pretrain(folder, tiny_dit(dropout=0.1), replace(SETTINGS, evaluate_every=after), evaluate=fail)


def test_resuming_repairs_the_log(tmp_path: Path) -> None:
    calm = pretrain(tmp_path / "calm", tiny_dit(dropout=0.1))
    interrupted(tmp_path / "run", after=6)
    with (tmp_path / "run" / "log.jsonl").open("a") as log:
        log.write('{"step": 7, "lo')
    resumed = pretrain(tmp_path / "run", tiny_dit(dropout=0.1, seed=1), resume=True)
    assert without_pace(resumed.history) == without_pace(calm.history)
    again = pretrain(tmp_path / "run", tiny_dit(dropout=0.1, seed=1), resume=True)
    assert again == resumed


def test_resuming_where_there_is_nothing_starts_afresh(tmp_path: Path) -> None:
    calm, model = tiny_dit(), tiny_dit()
    pretrain(tmp_path / "calm", calm)
    interrupted(tmp_path / "run", after=3)
    pretrain(tmp_path / "run", model, resume=True)
    assert same_bits(copied(calm), copied(model))


def test_resuming_with_other_settings(tmp_path: Path) -> None:
    interrupted(tmp_path, after=6)
    with pytest.raises(ValueError, match=r"was begun with lr=0\.003, not 0\.1"):
        pretrain(tmp_path, tiny_dit(), replace(SETTINGS, lr=0.1), resume=True)
    with pytest.raises(ValueError, match=r"was begun with rate=Cosine\(floor=0\.0\), not Constant\(\)"):
        pretrain(tmp_path, tiny_dit(), replace(SETTINGS, rate=Constant()), resume=True)
    with pytest.raises(ValueError, match="was begun with loss=DenoisingLoss"):
        train(tiny_prism(), PrismLoss(), Shuffled(ramps()), SETTINGS, folder=tmp_path, resume=True, progress=False)
    with pytest.raises(ValueError, match=r"was begun with backbone=DiTConfig\(.*dropout=0\.1"):
        pretrain(tmp_path, tiny_dit(), resume=True)
    changed = replace(SETTINGS, log_every=2, checkpoint_every=2, keep=1, accumulate=2)
    pretrain(tmp_path, tiny_dit(dropout=0.1), changed, resume=True)


@pytest.mark.parametrize("other", [{"alpha": 8.0}, {"dropout": 0.5}])
def test_resuming_with_other_lora(tmp_path: Path, other: dict[str, float]) -> None:
    """Neither leaves a trace in the first weights."""
    lora = Lora(rank=2, alpha=4.0, targets=("attn_qkv",))
    finetune(tmp_path, tiny_prism(lora=lora), replace(SETTINGS, steps=4))
    with pytest.raises(ValueError, match=r"was begun with lora=Lora\(rank=2, alpha=4\.0, .*dropout=0\.0\), not "):
        finetune(tmp_path, tiny_prism(lora=replace(lora, **other)), replace(SETTINGS, steps=4), resume=True)


# ------------------------------------------------------------------------------------------------------------- accidents


@dataclass(frozen=True)
class BadAt(TrainingLoss):
    """A loss that turns bad when a certain row comes by."""

    row: int
    spoil: Callable[[Loss], Loss]

    def turns(self, model: Any, batch: Batch, mask_id: int, noise: Noise) -> Iterator[Loss]:
        loss = DenoisingLoss()(model, batch, mask_id, noise)
        here = bool((noise.keys == Noise.rows(SETTINGS.seed, 1, first=self.row).keys).any())
        yield self.spoil(loss) if here else loss


def not_a_number(loss: Loss) -> Loss:
    return Loss(loss.total * math.nan, loss.parts)


@pytest.mark.parametrize(("log_every", "checkpoint_every"), [(1, 4), (100, 4), (3, 100)])
def test_a_loss_that_is_not_a_number(tmp_path: Path, log_every: int, checkpoint_every: int) -> None:
    """Step 7 holds rows 48 to 55; row 53 stands in its second half."""
    settings = replace(SETTINGS, accumulate=2, log_every=log_every, checkpoint_every=checkpoint_every)
    good = str(tmp_path / "checkpoints" / "step-00000004") if checkpoint_every == 4 else "there is no checkpoint yet"
    with pytest.raises(TrainingError, match=r"Step 7: the loss is nan .* rows 52 to 55") as caught:
        train(tiny_dit(), BadAt(53, not_a_number), Shuffled(ramps()), settings, folder=tmp_path, progress=False)
    assert good in str(caught.value)
    assert "range(52, 56)" in str(caught.value)
    for checkpoint in (tmp_path / "checkpoints").iterdir():
        assert checkpoint.name == "step-00000004"
        assert all(bool(tensor.isfinite().all()) for tensor in load_file(checkpoint / "weights.safetensors").values())


def test_a_gradient_that_is_not_a_number(tmp_path: Path) -> None:
    class Bad(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            return gradient * math.inf

    bad = BadAt(53, lambda loss: Loss(Bad.apply(loss.total), loss.parts))
    with pytest.raises(TrainingError, match=r"Step 7: the loss is [\d.]+ and the gradient's norm nan"):
        train(tiny_dit(), bad, Shuffled(ramps()), SETTINGS, folder=tmp_path, progress=False)


def test_weights_that_overflow_are_not_saved(tmp_path: Path) -> None:
    model = tiny_dit()
    nn.init.constant_(model.vocab_embed.embedding, 100.0)
    with pytest.raises(TrainingError, match="Step 1: some weights are no longer finite"):
        pretrain(tmp_path, model, Optimisation(steps=1, batch=8, lr=1e37, weight_decay=1.0))
    assert not list((tmp_path / "checkpoints").iterdir())


def test_killed_at_any_moment_and_resumed_it_ends_with_the_same_bits(tmp_path: Path) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(HERE.parent)}
    command = [sys.executable, str(HERE / "training_script.py"), "killed", str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-4000:]
    calm = tmp_path / "calm"
    for name in ("timed", "writing"):
        assert int((tmp_path / f"{name}.deaths").read_text()) >= 5
        for step in ("step-00000008", "step-00000012"):
            for file in ("weights", "ema", "moments"):
                path = Path("checkpoints", step, f"{file}.safetensors")
                assert (tmp_path / name / path).read_bytes() == (calm / path).read_bytes(), (name, path)
        histories = [(folder / "log.jsonl").read_text().splitlines() for folder in (tmp_path / name, calm)]
        ours, theirs = ([json.loads(line) for line in lines] for lines in histories)
        assert without_pace(ours) == without_pace(theirs)
        assert not [path for path in (tmp_path / name / "checkpoints").iterdir() if path.name.startswith(".")]


def test_two_processes_agree_with_one(tmp_path: Path) -> None:
    """Copied (DDP) and sharded (FSDP2), the latter resumed once; what the sharded run saved loads into one process."""
    in_two_processes(["--use_fsdp", *ON_CPU], [str(HERE / "training_script.py"), "several", str(tmp_path)])

    dit, prism = tiny_dit(), tiny_prism()
    alone = {
        "": pretrain(tmp_path / "alone", dit, evaluate=probe),
        "-prism": finetune(tmp_path / "alone-prism", prism),
    }
    for kind, one in alone.items():
        for way in ("copied", "sharded"):
            lines = [json.loads(line) for line in (tmp_path / f"{way}{kind}" / "log.jsonl").read_text().splitlines()]
            assert len(lines) == len(one.history)
            for ours, theirs in zip(lines, one.history, strict=True):
                for name in theirs.keys() - {"rows_per_second", "right"}:  # "right" is a ratio, not a mean over rows
                    assert ours[name] == pytest.approx(theirs[name], rel=1e-4, abs=1e-5), (way, kind, name)
            checkpoint = tmp_path / f"{way}{kind}" / "checkpoints" / one.checkpoint.name
            for file in ("weights", "ema", "moments"):
                ours, theirs = (load_file(place / f"{file}.safetensors") for place in (checkpoint, one.checkpoint))
                torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-3)

    fresh = tiny_dit(seed=7)
    restore(fresh, tmp_path / "sharded" / "checkpoints" / "step-00000012")
    torch.testing.assert_close(copied(fresh), copied(dit), atol=1e-4, rtol=1e-3)
    use_ema(prism, alone["-prism"].checkpoint)
    backbone = tiny_dit()
    backbone.load_state_dict(prism.backbone.state_dict())  # the corrector's fingerprint is rounded to bfloat16
    corrector = load(tmp_path / "corrector", backbone, any_backbone=True)
    torch.testing.assert_close(
        corrector.predict(ramps()).quality_logits, prism.predict(ramps()).quality_logits, atol=1e-4, rtol=1e-3
    )


def test_orthogonal_keeps_the_directions_and_evens_out_the_strengths() -> None:
    """U·S·Vᵀ becomes nearly U·Vᵀ, whichever way the matrix lies."""
    for shape in ((3, 8, 20), (3, 20, 8)):
        matrices = torch.randn(shape, generator=torch.Generator().manual_seed(0))
        found = orthogonal(matrices)
        assert found.shape == matrices.shape
        strengths = torch.linalg.svdvals(found)
        assert float(strengths.min()) > 0.6
        assert float(strengths.max()) < 1.3
        left, _, right = torch.linalg.svd(matrices, full_matrices=False)
        across = left.mT @ found @ right.mT  # diagonal where the directions are the same
        off_diagonal = across - torch.diag_embed(across.diagonal(dim1=1, dim2=2))
        assert float(off_diagonal.abs().max()) < 1e-4


def test_muon_moves_stacked_matrices_as_if_they_were_apart() -> None:
    gradient = torch.randn(3 * 6, 6, generator=torch.Generator().manual_seed(0))
    together = nn.Parameter(torch.zeros(18, 6))
    apart = [nn.Parameter(torch.zeros(6, 6)) for _ in range(3)]
    together.grad = gradient.clone()
    for weight, part in zip(apart, gradient.chunk(3), strict=True):
        weight.grad = part.clone()
    for optimizer in (Muon({together: 3}, lr=0.1), Muon(dict.fromkeys(apart, 1), lr=0.1)):
        optimizer.step()
    torch.testing.assert_close(together.detach(), torch.cat([weight.detach() for weight in apart]))
    assert float(together.detach().pow(2).mean().sqrt()) == pytest.approx(0.1 * 0.2, rel=0.3)


def test_muon_takes_the_matrices_of_the_blocks_and_leaves_the_rest(tmp_path: Path) -> None:
    model = tiny_dit()
    matrices = {name for name, weight in model.named_parameters() if any(weight is m for m in model.matrices())}
    assert {name.split(".", 2)[2] for name in matrices} == {
        "attn_qkv.weight",
        "attn_out.weight",
        "mlp.0.weight",
        "mlp.2.weight",
    }
    settings = Optimisation(steps=120, batch=16, lr=1e-2, muon_lr=1e-2, log_every=20)
    trained = pretrain(tmp_path / "run", DiT(model.config), settings)
    assert trained.last("loss") < 0.75 * trained.history[0]["loss"]
    moments = load_file(trained.checkpoint / "moments.safetensors")
    assert {name.split("/")[1] for name in moments if name.startswith("momentum/")} == matrices
    assert not matrices & {name.split("/")[1] for name in moments if name.startswith("exp_avg/")}


def test_a_run_with_muon_resumes_where_it_was(tmp_path: Path) -> None:
    settings = replace(SETTINGS, muon_lr=1e-2)
    calm, model = tiny_dit(), tiny_dit(seed=1)
    pretrain(tmp_path / "calm", calm, settings)

    def fail(model: nn.Module, step: int) -> dict[str, float]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pretrain(tmp_path / "run", tiny_dit(), replace(settings, evaluate_every=6), evaluate=fail)
    pretrain(tmp_path / "run", model, settings, resume=True)
    assert same_bits(copied(model), copied(calm))


def test_muon_without_matrices(tmp_path: Path) -> None:
    model = tiny_prism(tune_backbone=False)
    with pytest.raises(ValueError, match=r"muon_lr=0\.01, but no matrix"):
        finetune(tmp_path / "run", model, replace(SETTINGS, muon_lr=0.01))
