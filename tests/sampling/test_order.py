"""Orders and unmaskers against their definitions spelled out position by position."""

from __future__ import annotations

import math

import pytest
import torch
from scipy import stats
from stand_ins import Given, masks, moment, partly_written, record
from torch import Tensor

from prism.noise import Purpose
from prism.sampling.draw import Draw
from prism.sampling.order import AwayFrom, Confidence, Leftmost, LowEntropy, Margin, Order, TopProbability
from prism.sampling.policy import Moment, Pair, highest, lowest
from prism.sampling.remask import Fixed, LowQuality
from prism.sampling.unmask import (
    Ancestral,
    Counted,
    CountedAndSure,
    DreamEntropy,
    DreamMargin,
    DreamMaskgitPlus,
    DreamOrigin,
    EntropyBounded,
    Factor,
    Threshold,
)

PROBABILITIES = torch.tensor(
    [[0.5, 0.3, 0.2], [0.91, 0.05, 0.04], [0.46, 0.44, 0.1], [0.34, 0.33, 0.33], [0.7, 0.2, 0.1], [0.97, 0.02, 0.01]]
)
MODEL = Given(PROBABILITIES)
NOTHING = torch.zeros(1, dtype=torch.long)


def now(step: int = 0, steps: int = 3, draw: Draw | None = None) -> Moment:
    return moment(MODEL, masks(1, 6, 3), step=step, steps=steps, draw=draw)


def entropy(p: Tensor) -> float:
    return -sum(q * math.log(q) for q in p.tolist() if q > 0)


BY_HAND = {
    TopProbability(): lambda p: float(p.max()),
    Margin(): lambda p: float(p.sort(descending=True).values[0] - p.sort(descending=True).values[1]),
    LowEntropy(): lambda p: -entropy(p),
}


@pytest.mark.parametrize("order", BY_HAND, ids=str)
def test_certainty(order: Order) -> None:
    scores = order.rank(now()).scores[0]
    torch.testing.assert_close(scores.double(), torch.tensor([BY_HAND[order](p) for p in PROBABILITIES]).double())


def test_masked_positions_alone_are_scored() -> None:
    state = partly_written(3, 6, 3)
    for order in BY_HAND:
        scores = order.rank(moment(MODEL, state, step=1, steps=3)).scores
        assert (scores[~state.masked] == -torch.inf).all()
        assert scores[state.masked].isfinite().all()


def test_confidence_is_that_of_the_drawn_token() -> None:
    ranking = Confidence().rank(now())
    assert ranking.draft is not None
    for i, token in enumerate(ranking.draft.tokens[0].tolist()):
        assert math.isclose(float(ranking.scores[0, i]), math.log(PROBABILITIES[i, token]), rel_tol=1e-5)


def test_confidence_noise_is_annealed() -> None:
    plain = Confidence().rank(now(step=2)).scores
    gumbel = now(step=2).noise.gumbel(Purpose.PERTURBATION, 6)
    torch.testing.assert_close(Confidence(temperature=4.5).rank(now(step=2)).scores, plain + 4.5 * gumbel / 3)


def test_leftmost_and_random() -> None:
    assert Counted(Leftmost()).select(now(), NOTHING).where[0].tolist() == [True, True] + [False] * 4
    firsts = torch.cat([Counted().select(moment(MODEL, masks(300, 6, 3), step=0, steps=6), NOTHING).where])
    assert stats.chisquare(firsts.sum(0).numpy()).pvalue > 1e-3


def test_away_from_a_token() -> None:
    """The first mask is drawn with weights 1 - f^i(token), and one that is sure to be it still has a turn at the end."""
    weights = 1 - PROBABILITIES[:, 0]
    firsts = AwayFrom(token=0).rank(moment(MODEL, masks(4_000, 6, 3), step=0, steps=6)).scores.argmax(1)
    expected = 4_000 * (weights.double() / weights.double().sum())
    assert stats.chisquare(torch.bincount(firsts, minlength=6).numpy(), expected.numpy()).pvalue > 1e-3
    sure = Given(torch.tensor([[1.0, 0.0, 0.0], [0.5, 0.3, 0.2], [1.0, 0.0, 0.0]]))
    scores = AwayFrom(token=0).rank(moment(sure, masks(50, 3, 3), step=0, steps=3)).scores
    assert scores.isfinite().all()
    assert (scores.argmax(1) == 1).all()


def test_ties_go_to_the_left() -> None:
    scores, everywhere = torch.tensor([[1.0, 2.0, 2.0, 1.0]]), torch.ones(1, 4, dtype=torch.bool)
    assert highest(scores, everywhere, torch.tensor([1])).tolist() == [[False, True, False, False]]
    assert lowest(scores, everywhere, torch.tensor([1])).tolist() == [[True, False, False, False]]


def test_counts_beyond_what_there_is() -> None:
    where = torch.tensor([[True, False, True]])
    assert torch.equal(highest(torch.zeros(1, 3), where, torch.tensor([9])), where)
    assert not highest(torch.zeros(1, 3), where, torch.tensor([-2])).any()


@pytest.mark.parametrize("choose", [highest, lowest])
def test_infinite_scores_inside_rank_before_anything_outside(choose: object) -> None:
    """log 0, as of a token whose probability float32 cannot hold, must not lose its place to an unmasked position."""
    where = torch.tensor([[False, False, True, True]])
    for score in (-torch.inf, torch.inf):
        chosen = choose(torch.full((1, 4), score), where, torch.tensor([2]))  # type: ignore[operator]
        assert torch.equal(chosen, where)


def test_counted_commits_what_is_owed_and_what_was_taken_back() -> None:
    state = partly_written(4, 6, 3, share=0.2)
    at = moment(MODEL, state, step=1, steps=3)
    committed = state.committed.sum(1)
    for extra in (0, 1):
        count = Counted().select(at, torch.full((4,), extra)).where.sum(1)
        assert torch.equal(count, (4 - committed + extra).clamp_min(0).minimum(6 - committed))


def test_ancestral_commits_each_mask_on_its_own() -> None:
    """With the random order the committed masks are exactly those whose own number is below the rate."""
    at = moment(MODEL, masks(200, 6, 3), step=1, steps=3)
    tosses = at.uniform(Purpose.ORDER) < 0.5  # (2/3 - 1/3)/(1 - 1/3)
    assert torch.equal(Ancestral().select(at, NOTHING).where, tosses)
    by_margin = Ancestral(Margin()).select(at, NOTHING).where
    assert torch.equal(by_margin.sum(1), tosses.sum(1))
    best = Margin().rank(at).scores.argmax(1)
    assert by_margin[torch.arange(200), best].equal(tosses.any(1))


@pytest.mark.parametrize("steps", [1, 4, 10])
@pytest.mark.parametrize("unmasker", [DreamMaskgitPlus(), DreamMargin(), DreamEntropy()], ids=str)
def test_dream_counts(unmasker: DreamMargin, steps: int) -> None:
    grid = [1 + (1e-3 - 1) * i / steps for i in range(steps)] + [0.0]
    torch.testing.assert_close(unmasker.times(steps), torch.tensor(grid, dtype=torch.float64))
    for step in range(steps):
        at = moment(MODEL, masks(1, 6, 3), step=step, steps=steps, times=unmasker.times(steps))
        expected = 6 if step == steps - 1 else math.floor(6 * (1 - grid[step + 1] / grid[step]))
        assert int(unmasker.select(at, NOTHING).where.sum()) == expected


def test_dream_origin() -> None:
    times = DreamOrigin().times(4)
    at = moment(MODEL, masks(2000, 6, 3), step=1, steps=4, times=times)
    share = DreamOrigin().select(at, NOTHING).where.double().mean()
    assert abs(share - (1 - times[2] / times[1])) < 4 * math.sqrt(0.25 / 12_000)


@pytest.mark.parametrize("unmasker", [DreamMargin(order_temperature=0.2), DreamMaskgitPlus(order_temperature=0.2)])
def test_dream_draws_positions_in_proportion(unmasker: DreamMargin) -> None:
    """P(position first) = softmax(score / temperature), the score of `maskgit_plus` being a probability, not its log."""
    at = moment(MODEL, masks(20_000, 6, 3), step=0, steps=6, times=unmasker.times(6), draw=Draw(temperature=0.0))
    first = unmasker.select(at, NOTHING).where.sum(0)  # ⌊6 · 0.1665⌋ = 0
    assert first.sum() == 0
    times = torch.tensor([1.0, 0.8, 0.0], dtype=torch.float64)
    at = moment(MODEL, masks(20_000, 6, 3), step=0, steps=2, times=times, draw=Draw(temperature=0.0))
    first = unmasker.select(at, NOTHING).where.sum(0)
    scores = torch.tensor(
        [BY_HAND[Margin() if isinstance(unmasker, DreamMargin) else TopProbability()](p) for p in PROBABILITIES]
    )
    expected = (scores.double() / 0.2).softmax(0) * 20_000
    assert stats.chisquare(first.numpy(), expected.numpy()).pvalue > 1e-3


@pytest.mark.parametrize("tau", [0.05, 0.6, 0.9, 0.99])
def test_threshold(tau: float) -> None:
    top = PROBABILITIES.max(-1).values
    expected = (top >= tau) | (top == top.max())
    assert torch.equal(Threshold(tau).select(now(), NOTHING).where[0], expected)


@pytest.mark.parametrize("tau", [0.05, 0.6, 0.9, 0.99])
@pytest.mark.parametrize("step", [0, 1, 2])
def test_counted_and_sure(tau: float, step: int) -> None:
    """What `Counted` commits, one more than was taken back at least, and everything sure beside it."""
    state, remasked = partly_written(8, 6, 3, share=0.5), torch.tensor([0, 1] * 4)
    at = moment(MODEL, state, step=step, steps=3)
    ranks = Margin().rank(at).scores
    committed = state.committed.sum(1).tolist()
    assert min(committed) < 2 < max(committed)  # behind the schedule, and ahead of it
    where = CountedAndSure(Margin(), tau).select(at, remasked).where
    for row in range(8):
        owed = max(2 * (step + 1) - committed[row], 1) + int(remasked[row])
        best = set(ranks[row].argsort(descending=True)[:owed].tolist())
        for place in range(6):
            wanted = bool(state.masked[row, place]) and (place in best or PROBABILITIES[place].max() >= tau)
            assert bool(where[row, place]) == wanted


def test_being_sure_only_saves_forward_passes() -> None:
    """Three of six are sure: they are there after a step, and the rest at one a step, though one is taken back each time."""
    sure = CountedAndSure(TopProbability(), 0.6)
    for policy, forwards in ((Pair(sure), 4), (Pair(Counted(TopProbability())), 6)):
        assert record(MODEL, masks(1, 6, 3), policy, steps=6)[-1].forwards.tolist() == [forwards]
    correcting = record(MODEL, masks(1, 6, 3), Pair(sure, LowQuality(Fixed(1))), steps=6)[-1]
    assert (
        0
        < int(correcting.remasks)
        < record(MODEL, masks(1, 6, 3), Pair(Counted(), LowQuality(Fixed(1))), steps=6)[-1].remasks
    )
    assert int(correcting.forwards) < 6


@pytest.mark.parametrize("factor", [0.05, 0.3, 1.0, 2.0, 9.0])
def test_factor(factor: float) -> None:
    """The largest n with (n + 1)(1 - p_(n)) <= F, at least one."""
    top = sorted(PROBABILITIES.max(-1).values.tolist(), reverse=True)
    n = max([1, *(n for n in range(1, 7) if (n + 1) * (1 - top[n - 1]) <= factor)])
    where = Factor(factor).select(now(), NOTHING).where[0]
    assert sorted(PROBABILITIES.max(-1).values[where].tolist(), reverse=True) == top[:n]


@pytest.mark.parametrize("gamma", [0.0, 0.1, 0.5, 1.3, 2.0, 10.0])
def test_entropy_bounded(gamma: float) -> None:
    """The longest prefix in the order of entropy with ΣH - max H <= γ, at least one."""
    entropies = sorted(entropy(p) for p in PROBABILITIES)
    n = max(k for k in range(1, 7) if sum(entropies[:k]) - max(entropies[:k]) <= gamma)
    where = EntropyBounded(gamma).select(now(), NOTHING).where[0]
    assert sorted(entropy(p) for p in PROBABILITIES[where]) == entropies[:n]


@pytest.mark.parametrize("unmasker", [Threshold(), Factor(), EntropyBounded()], ids=str)
def test_own_pace_ends_in_time(unmasker: Threshold) -> None:
    assert unmasker.select(now(step=2), NOTHING).where.all()


def test_bad_threshold() -> None:
    for tau in (0.0, 1.5):
        with pytest.raises(ValueError, match="tau"):
            Threshold(tau)
        with pytest.raises(ValueError, match="tau"):
            CountedAndSure(tau=tau)
