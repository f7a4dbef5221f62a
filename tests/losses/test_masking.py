from __future__ import annotations

import pytest
import torch

from prism.losses.masking import Batch, ByCount, ByProbability, Masking
from prism.noise import Noise

BOTH = pytest.mark.parametrize("masking", [ByCount(), ByProbability(), ByProbability(floor=0.3)], ids=str)
ROWS, LENGTH, MASK = 500, 8, 9


def batch() -> Batch:
    """Prompts in front of some rows, padding behind others, and rows with nothing to mask."""
    tokens = torch.randint(0, 9, (ROWS, LENGTH), generator=torch.Generator().manual_seed(0))
    row, place = torch.arange(ROWS)[:, None], torch.arange(LENGTH)
    return Batch(tokens, maskable=place >= row % 4, attend=place < 8 - row % 5)


@BOTH
def test_prompts_and_padding_are_never_masked(masking: Masking) -> None:
    given = batch()
    masked = masking(given, MASK, Noise.rows(0, ROWS))
    assert not (masked.where & ~given.free).any()
    assert torch.equal(masked.tokens == MASK, masked.where)
    assert torch.equal(masked.tokens[~masked.where], given.tokens[~masked.where])
    assert masked.where.any(0).tolist() == given.free.any(0).tolist()


def test_counts() -> None:
    given = batch()
    masked = ByCount()(given, MASK, Noise.rows(0, ROWS))
    n, length = masked.where.sum(1), given.free.sum(1)
    torch.testing.assert_close(masked.t, (n / length).double(), check_dtype=False)
    for size in length.unique().tolist():
        assert n[length == size].unique().tolist() == list(range(size + 1))


def test_times() -> None:
    masked = ByProbability(floor=0.3)(Batch(torch.zeros(4000, 50, dtype=torch.long)), MASK, Noise.rows(0, 4000))
    assert 0.3 < masked.t.min() < 0.31
    assert 0.99 < masked.t.max() < 1
    deviation = (masked.where.double().mean(1) - masked.t) / (masked.t * (1 - masked.t) / 50).sqrt().clamp_min(1e-3)
    assert abs(float(deviation.mean())) < 4 / 4000**0.5
    assert abs(float(deviation.std()) - 1) < 0.1


@BOTH
def test_nothing_to_mask(masking: Masking) -> None:
    given = Batch(torch.ones(3, 4, dtype=torch.long), maskable=torch.zeros(3, 4, dtype=torch.bool))
    masked = masking(given, MASK, Noise.rows(0, 3))
    assert not masked.where.any()
    assert masked.t.isfinite().all()


@BOTH
def test_rows_are_independent(masking: Masking) -> None:
    given = batch()
    whole = masking(given, MASK, Noise.rows(0, ROWS)).tokens
    part = Batch(given.tokens[200:300], given.maskable[200:300], given.attend[200:300])  # type: ignore[index]
    assert torch.equal(masking(part, MASK, Noise.rows(0, 100, first=200)).tokens, whole[200:300])
