"""Training as it is written down, and the evaluation that goes with it."""

from __future__ import annotations

import pytest
import torch
from training_script import ramps, tiny_prism

from prism.losses.masking import Batch
from prism.losses.prism import PrismLoss
from prism.recipes.training import TrainingOptions, held_out_loss


@pytest.mark.parametrize(
    ("warmup", "expected"), [(0.0, 0), (0.05, 10), (0.999, 200), (1.0, 1), (37.0, 37)], ids=lambda value: str(value)
)
def test_warm_up_is_steps_or_a_share_of_them(warmup: float, expected: int) -> None:
    assert TrainingOptions(steps=200, warmup=warmup).build_optimisation().warmup == expected


@torch.no_grad()
def test_evaluating_a_few_rows_at_once_changes_nothing() -> None:
    """Masks and draws belong to the row, so only the order of the sum differs; `right` is a ratio, here with one k for all."""
    batch = Batch(ramps(10), (torch.arange(8) > 1).expand(10, 8), torch.ones(10, 8, dtype=torch.bool))
    model = tiny_prism().eval()
    whole, parts = (held_out_loss(PrismLoss(k=2), batch, at_once)(model, 0) for at_once in (None, 3))
    for name in ("loss", "quality", "denoising"):
        assert parts[name] == pytest.approx(whole[name], rel=1e-5), name
    assert parts.keys() == whole.keys()
