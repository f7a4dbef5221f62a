"""Quality as a probability: what is fitted, what it leaves as it was, and who needs it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tiny_models import BACKBONES, HEADS, MASK, SIZE, VOCAB, dit, padding, shaken, tokens

import prism
from prism.losses.masking import Batch
from prism.losses.prism import Likelihood, PrismLoss
from prism.models.attach import PrismModel, attach, load
from prism.models.folding import for_sampling
from prism.models.heads import Calibration, FinalLayerConfig, HeadConfig, masked_share
from prism.models.judge import Judged
from prism.sampling.order import RandomOrder, TopProbability
from prism.training.calibrating import LEAST, Asked, calibrate, fitted

BY_CONFIDENCE = PrismLoss(k=3, order=TopProbability())
SOME = Calibration(scale=0.6, shift=-0.7, slope=-1.5)
EVERY_HEAD = pytest.mark.parametrize("head", HEADS, ids=lambda head: type(head).__name__)


def judging(head: HeadConfig, calibration: Calibration | None = None) -> PrismModel:
    model = attach(dit(), head).eval()
    shaken(model.quality_head)
    model.calibration = calibration
    return model


def test_a_known_distortion_is_found_again() -> None:
    generator = torch.Generator().manual_seed(0)
    logit, masked = (3 * torch.randn(160_000, generator=generator), torch.rand(160_000, generator=generator))
    truth = (SOME.scale * logit + SOME.shift + SOME.slope * masked).sigmoid()
    asked = Asked(logit.double(), masked.double(), torch.rand(160_000, generator=generator) < truth)
    found = fitted(asked)
    assert (found.scale, found.shift, found.slope) == pytest.approx((0.6, -0.7, -1.5), abs=0.08)
    assert asked.loss(found) < asked.loss() - 0.1


@pytest.mark.parametrize("right", [True, False])
def test_it_stays_finite_where_all_tokens_are_right_or_none(right: bool) -> None:
    asked = Asked(torch.randn(50).double(), torch.rand(50).double(), torch.full((50,), right))
    found = fitted(asked)
    assert asked.loss(found) < 0.2
    assert all(abs(number) < 100 for number in (found.scale, found.shift, found.slope))


@EVERY_HEAD
def test_logits_are_scaled_and_raised_by_the_masked_share(head: HeadConfig) -> None:
    plain, calibrated, x = judging(head), judging(head, SOME), tokens()
    share = (x == MASK).double().mean(1, keepdim=True)
    wanted = SOME.scale * plain.predict(x).quality_logits + SOME.shift + SOME.slope * share
    torch.testing.assert_close(calibrated.predict(x).quality_logits.double(), wanted, atol=1e-5, rtol=1e-5)


@EVERY_HEAD
def test_a_few_places_are_calibrated_like_all(head: HeadConfig) -> None:
    model, x = judging(head, SOME), tokens()
    where = torch.zeros_like(x, dtype=torch.bool)
    where[:, [1, 4]] = True
    some = model.predict(x).quality_logits_at(where, 2 * len(x))
    torch.testing.assert_close(some[where], model.predict(x).quality_logits[where], atol=1e-5, rtol=1e-5)
    barred = model.predict(x).without(torch.tensor([1]), where)
    torch.testing.assert_close(barred.quality_logits, model.predict(x).quality_logits)


def test_padding_is_not_counted_as_unmasked() -> None:
    x, attend = tokens(), padding([10, 7, 4])
    alone = masked_share(x[1:2, :7], MASK)
    torch.testing.assert_close(masked_share(x, MASK, attend)[1:2], alone)


@EVERY_HEAD
@pytest.mark.parametrize("calibration", [SOME, Calibration(LEAST, 3.0, -5.0)])
def test_no_sample_changes(head: HeadConfig, calibration: Calibration) -> None:
    start = prism.start(torch.full((4, 10), MASK), MASK)
    policy = prism.Pair(prism.Counted(), prism.LowQuality(prism.Fixed(2)))
    before, after = (prism.generate(judging(head, one), start, policy, steps=6).tokens for one in (None, calibration))
    assert torch.equal(before, after)


@EVERY_HEAD
def test_calibrating_lowers_the_loss_at_random_places(head: HeadConfig) -> None:
    model = judging(head)
    torch.manual_seed(1)
    held_out = Batch(torch.randint(MASK + 1, VOCAB, (24, 10)))
    found = calibrate(model, held_out, BY_CONFIDENCE)
    assert found["after"] < found["before"]
    assert model.calibration == Calibration(found["scale"], found["shift"], found["slope"])
    again = calibrate(model, held_out, BY_CONFIDENCE, at_once=7)
    assert again == pytest.approx(found, rel=1e-3, abs=1e-6)  # however many at once, and whatever it was before


@pytest.mark.parametrize(
    "loss", [replace(BY_CONFIDENCE, order=RandomOrder()), replace(BY_CONFIDENCE, target=Likelihood())]
)
def test_a_head_that_was_asked_about_all_places_or_not_at_all_is_left_alone(loss: PrismLoss) -> None:
    model = judging(HEADS[0])
    assert calibrate(model, Batch(tokens()), loss) == {}
    assert model.calibration is None


@pytest.mark.parametrize("name", BACKBONES)
def test_it_is_saved_loaded_and_sampled_with(name: str, tmp_path: Path) -> None:
    model = attach(BACKBONES[name][0](), HEADS[0]).eval()
    shaken(model.quality_head)
    model.calibration, x = SOME, tokens()
    quality = model.predict(x).quality
    model.save(tmp_path)
    again = load(tmp_path, BACKBONES[name][0]())
    assert again.calibration == SOME
    torch.testing.assert_close(again.predict(x).quality, quality)
    torch.testing.assert_close(for_sampling(again, torch.float32).predict(x).quality, quality, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(Judged(dit(), again).predict(x).quality, quality)
    assert again.detach() is not None
    assert again.calibration is None


def test_a_scale_that_would_turn_quality_around_is_refused() -> None:
    with pytest.raises(ValueError, match="must be above 0"):
        Calibration(scale=0.0, shift=0.0, slope=0.0)


def test_a_model_without_head_has_nothing_to_calibrate() -> None:
    model = attach(dit(), FinalLayerConfig(SIZE, cond_size=6))
    model.detach()
    assert calibrate(model, Batch(tokens()), BY_CONFIDENCE) == {}
