from __future__ import annotations

import math

import pytest
import torch
from stand_ins import Flat, Mixing, tiny_dit

from prism.losses.denoising import DenoisingLoss, PerMask, PerTime, Weighting
from prism.losses.masking import Batch, ByCount, ByProbability, Masked
from prism.noise import Noise

ROWS, LENGTH = 6, 9


def batch(rows: int = ROWS) -> Batch:
    """Prompts of two tokens, padding behind some rows, and one row (the third) that is prompt throughout."""
    tokens = torch.randint(1, 6, (rows, LENGTH), generator=torch.Generator().manual_seed(1))
    maskable = (torch.arange(LENGTH) >= 2).repeat(rows, 1)
    maskable[2] = False
    return Batch(tokens, maskable, torch.arange(LENGTH) < 9 - torch.arange(rows)[:, None] % 3)


def slow(model: Mixing, given: Batch, masked: Masked, weighting: Weighting) -> float:
    """Row by row and token by token; a row without masks counts 0."""
    total = 0.0
    for row in range(len(given.tokens)):
        attend = given.attend[row : row + 1] if given.attend is not None else None
        hidden = model(masked.tokens[row : row + 1], attend)
        logits = model.unembed(hidden)[0].index_fill(-1, torch.tensor([0]), -torch.inf)
        free = int(given.free[row].sum())
        places = masked.where[row].nonzero()[:, 0].tolist()
        for i in places:
            log_p = float(logits[i].log_softmax(-1)[given.tokens[row, i]])
            weight = 1 / len(places) if isinstance(weighting, PerMask) else 1 / (float(masked.t[row]) * free)
            total -= weight * log_p
    return total / len(given.tokens)


@pytest.mark.parametrize("masking", [ByCount(), ByProbability(floor=0.01)], ids=str)
@pytest.mark.parametrize("weighting", [PerMask(), PerTime()], ids=str)
def test_against_a_slow_reference(masking: ByCount, weighting: Weighting) -> None:
    model, given = Mixing(), batch()
    for seed in range(3):
        noise = Noise.rows(seed, ROWS)
        loss = DenoisingLoss(masking, weighting)(model, given, 0, noise)
        assert float(loss.total) == pytest.approx(slow(model, given, masking(given, 0, noise), weighting))
        assert float(loss.parts["denoising"]) == float(loss.total)


def test_by_count_both_weights_are_the_same() -> None:
    model, given, noise = Mixing(), batch(), Noise.rows(0, ROWS)
    per_mask, per_time = (DenoisingLoss(ByCount(), w)(model, given, 0, noise).total for w in (PerMask(), PerTime()))
    torch.testing.assert_close(per_mask, per_time)


def test_weights_in_expectation() -> None:
    """On a uniform model every masked token costs log 3: 1/n gives L/(L + 1) of it (rows without masks), 1/(tL) all."""
    rows, length = 40_000, 4
    given, noise = Batch(torch.zeros(rows, length, dtype=torch.long)), Noise.rows(0, rows)
    masking = ByProbability(floor=1e-3)
    per_mask, per_time = (
        float(DenoisingLoss(masking, w)(Flat(), given, 3, noise).total) for w in (PerMask(), PerTime())
    )
    assert per_mask == pytest.approx(math.log(3) * length / (length + 1), rel=0.01)
    assert per_time == pytest.approx(math.log(3), rel=0.03)


@pytest.mark.parametrize("weighting", [PerMask(), PerTime()], ids=str)
def test_the_mean_does_not_depend_on_how_the_batch_is_split(weighting: Weighting) -> None:
    model, given = Mixing(), batch()
    loss = DenoisingLoss(weighting=weighting)
    whole = loss(model, given, 0, Noise.rows(0, ROWS)).total
    parts = []
    for first in (0, 2, 4):
        rows = slice(first, first + 2)
        part = Batch(given.tokens[rows], given.maskable[rows], given.attend[rows])  # type: ignore[index]
        parts.append(loss(model, part, 0, Noise.rows(0, 2, first=first)).total)
    torch.testing.assert_close(torch.stack(parts).mean(), whole)


def test_padding_does_not_matter() -> None:
    """What stands in the padding changes neither the loss nor its gradient, and no mask is put there."""
    model = tiny_dit().train()
    given = batch()
    assert given.attend is not None
    gradients, losses = [], []
    for rubbish in (1, 5, 0):  # 0 is the mask itself
        tokens = given.tokens.masked_fill(~given.attend, rubbish)
        model.zero_grad()
        loss = DenoisingLoss()(model, Batch(tokens, given.maskable, given.attend), 0, Noise.rows(0, ROWS)).total
        loss.backward()
        losses.append(loss.detach())
        gradients.append(torch.cat([p.grad.flatten() for p in model.backbone.blocks.parameters()]))
    for other in (1, 2):
        torch.testing.assert_close(losses[other], losses[0])
        torch.testing.assert_close(gradients[other], gradients[0])


def test_no_masks_at_all() -> None:
    model = tiny_dit().train()
    given = Batch(torch.ones(2, 3, dtype=torch.long), maskable=torch.zeros(2, 3, dtype=torch.bool))
    loss = DenoisingLoss()(model, given, 0, Noise.rows(0, 2)).total
    loss.backward()
    assert loss == 0
    assert all(p.grad is None or not p.grad.any() for p in model.parameters())
