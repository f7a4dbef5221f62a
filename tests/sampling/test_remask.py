"""How many tokens go back, and which."""

from __future__ import annotations

import math

import pytest
import torch
from scipy import stats
from stand_ins import Flat, Given, Mixing, masks, moment, partly_written, record, small_world
from torch import Tensor

from prism.noise import Noise, Purpose
from prism.sampling.order import RandomOrder
from prism.sampling.policy import Pair
from prism.sampling.remask import (
    Anywhere,
    Binomial,
    CappedBinomial,
    Centred,
    Doubting,
    EntropyAware,
    Every,
    Fixed,
    LowConfidence,
    LowLikelihood,
    LowQuality,
)
from prism.sampling.unmask import Counted
from prism.schedule import Cosine, Linear, Phase, Schedule
from prism.state import Prediction, Step, start


def totals(steps: list[Step]) -> tuple[Tensor, Tensor]:
    """Tokens taken back and tokens written, [steps, rows]."""
    return torch.stack([s.edit.remask.sum(1) for s in steps]), torch.stack([s.edit.write.sum(1) for s in steps])


def test_the_papers_sudoku_figures() -> None:
    """L = N = 51, K = 4: steps 5 … 46 take 4 back and write 5, the others write 1; 168 remasks."""
    steps = record(Flat(), masks(2, 51, 3), Pair(Counted(), LowQuality(Fixed(4))), steps=51)
    remasked, written = totals(steps)
    for step in range(51):
        assert remasked[step].tolist() == [4 * (5 <= step <= 46)] * 2
        assert written[step].tolist() == [5 if 5 <= step <= 46 else 1] * 2
    assert steps[-1].remasks.tolist() == [168, 168]


@pytest.mark.parametrize("steps", [13, 20, 51])
@pytest.mark.parametrize("k", [1, 4, 20, 30, 60])
def test_fixed_as_the_authors_count(k: int, steps: int) -> None:
    """K where K < committed < L - K, less what there are no masks for; committed tokens are ⌈L(l + 1)/N⌉ throughout."""
    length = 51
    recorded = record(Flat(), masks(1, length, 3), Pair(Counted(), LowQuality(Fixed(k))), steps=steps)
    for place, step in enumerate(recorded):
        committed, target = -(-length * place // steps), -(-length * (place + 1) // steps)
        expected = min(k, length - target) if k < committed < length - k else 0
        assert int(step.edit.remask.sum()) == expected
        assert int(step.after.committed.sum()) == target


def test_binomial_is_one_draw_per_row() -> None:
    """A full χ² against Binomial(24, η) with as many different counts in one batch as there should be."""
    eta, rows = 0.15, 20_000
    tokens = torch.full((rows, 60), 3)
    tokens[:, :24] = 1
    state = start(tokens, 3, frozen=torch.zeros_like(tokens, dtype=torch.bool))
    count = Binomial(eta).count(moment(Flat(), state, step=24, steps=60))
    counts = torch.bincount(count, minlength=25)
    expected = stats.binom(24, eta).pmf(range(25)) * rows
    heavy = expected > 5
    assert heavy.sum() > 8
    observed = [*counts[heavy].tolist(), counts[~heavy].sum().item()]
    assert stats.chisquare(observed, [*expected[heavy], expected[~heavy].sum()]).pvalue > 1e-3


def test_the_cap() -> None:
    """The rate is min(η, (1 - α_s)/α_t) from the actual counts, so a capped draw never exceeds the plain one.

    It may still take back more in the end: the plain draw, when too large for the masks that are left, becomes 0.
    """
    state = partly_written(500, 60, 3, share=0.75)
    at = moment(Flat(), state, step=45, steps=60)
    capped, plain = CappedBinomial(0.6).count(at), Binomial(0.6).count(at)
    committed, room = state.committed.sum(1), 60 - 46
    rate = (room / committed.double()).clamp_max(0.6)
    tosses = (state.committed & (at.uniform(Purpose.AMOUNT) < rate[:, None])).sum(1)
    allowed = (tosses < committed) & (committed < 60 - tosses)
    assert torch.equal(capped, torch.where(allowed, tosses, 0))
    assert (capped <= plain)[plain > 0].all()
    assert (capped > plain).any()


@pytest.mark.parametrize(("k", "steps"), [(4, 8), (6, 8), (5, 8), (14, 16), (16, 32), (3, 4), (1, 3)])
def test_centred_takes_back_k_in_every_block(k: int, steps: int) -> None:
    """The paper's settings among others; the middle of the block gets most, its first and last step nothing."""
    blocks, length = 3, 32
    policy = Pair(Counted(), LowQuality(Centred(k)))
    recorded = record(Flat(), masks(2, blocks * length, 3), policy, steps=blocks * steps, block=length)
    per_step = totals(recorded)[0][:, 0].reshape(blocks, steps)
    assert per_step.sum(1).tolist() == [k] * blocks
    for row in per_step.tolist():
        assert row[0] == row[-1] == 0
        assert max(row) - min(row[1:-1]) <= 1
        extra = [i for i in range(1, steps - 1) if row[i] > min(row[1:-1])]
        assert not extra or abs((extra[0] + extra[-1]) / 2 - (steps - 1) / 2) <= 0.5
        assert not extra or extra == list(range(extra[0], extra[-1] + 1))


def test_centred_where_there_is_no_room() -> None:
    """Two steps have nothing between the first and the last; one token at a time cannot give back five."""
    for steps, length in ((1, 8), (2, 8), (4, 4)):
        recorded = record(Flat(), masks(1, length, 3), Pair(Counted(), LowQuality(Centred(50))), steps=steps)
        assert not recorded[-1].after.masked.any()
        if steps <= 2:
            assert recorded[-1].remasks.tolist() == [0]


@pytest.mark.parametrize("schedule", [Linear(), Cosine()], ids=str)
@pytest.mark.parametrize(("length", "steps"), [(4, 4), (4, 3), (8, 4), (7, 5), (32, 8), (6, 20), (5, 1), (5, 2)])
def test_what_a_block_holds_is_what_it_takes_back(length: int, steps: int, schedule: Schedule) -> None:
    for k in range(3 * length):
        policy = Pair(Counted(), LowQuality(Centred(k)))
        taken = record(Flat(), masks(1, length, 3), policy, steps=steps, schedule=schedule)[-1].remasks
        assert Centred(k).held(length, steps, schedule) == int(taken)


def test_phase_switches_remasking() -> None:
    policy = Pair(Counted(), LowQuality(Fixed(2), Phase(on=0.5, off=0.8)))
    remasked = totals(record(Flat(), masks(1, 40, 3), policy, steps=20))[0][:, 0].tolist()
    assert remasked == [2 * (10 <= step < 16) for step in range(20)]


PROBABILITIES = torch.tensor(
    [[0.5, 0.3, 0.2], [0.9, 0.06, 0.04], [0.46, 0.44, 0.1], [0.34, 0.33, 0.33], [0.7, 0.2, 0.1]]
)
QUALITY = torch.tensor([0.3, 0.9, 0.1, 0.5, 0.7])


def test_scores() -> None:
    """Each score, position by position; higher means keep."""
    state = partly_written(6, 5, 3, share=0.6)
    at = moment(Given(PROBABILITIES, QUALITY), state, step=2, steps=5)
    quality = LowQuality(Fixed(1)).score(at).sigmoid()
    likelihood, entropy = LowLikelihood(Fixed(1)).score(at).exp(), EntropyAware(Fixed(1)).score(at).exp()
    confidence = LowConfidence(Fixed(1)).score(at)
    for row, i in state.committed.nonzero().tolist():
        own = float(PROBABILITIES[i, state.tokens[row, i]])
        h = -sum(p * math.log(p) for p in PROBABILITIES[i].tolist())
        assert math.isclose(float(quality[row, i]), float(QUALITY[i]), rel_tol=1e-5)
        assert math.isclose(float(likelihood[row, i]), own, rel_tol=1e-5)
        assert math.isclose(float(entropy[row, i]), own * math.exp(h), rel_tol=1e-5)
        assert confidence[row, i] == state.confidence[row, i]


@pytest.mark.parametrize("kind", [LowQuality, LowLikelihood, EntropyAware, LowConfidence, Anywhere])
def test_the_lowest_go_back(kind: type[LowQuality]) -> None:
    state = partly_written(50, 20, 3, share=0.5)
    model = Given(PROBABILITIES.repeat(4, 1), torch.rand(20, generator=torch.Generator().manual_seed(0)))
    at = moment(model, state, step=10, steps=20)
    remasker = kind(Fixed(3))
    remask, scores = remasker.select(at), remasker.score(at)
    assert (remask.sum(1) == 3).any()
    assert not (remask & ~state.committed).any()
    for row in range(50):
        if remask[row].any():
            kept = state.committed[row] & ~remask[row]
            assert scores[row][remask[row]].max() <= scores[row][kept].min()


@pytest.mark.parametrize("doubt", [0.05, 0.4, 0.75])
@pytest.mark.parametrize("kind", [LowQuality, LowLikelihood, LowConfidence])
def test_only_the_doubtful_go_back(kind: type[Doubting], doubt: float) -> None:
    """All of them where there is room, the worst of them where there is not, and none that is more probable."""
    state = partly_written(50, 20, 3, share=0.5)
    model = Given(PROBABILITIES.repeat(4, 1), torch.rand(20, generator=torch.Generator().manual_seed(0)))
    at = moment(model, state, step=10, steps=20)
    remasker = kind(Every(), doubt=doubt)
    remask, scores = remasker.select(at), remasker.score(at)
    probability = {LowQuality: torch.sigmoid, LowLikelihood: torch.exp, LowConfidence: lambda s: s}[kind](scores)
    doubtful = state.committed & (probability < doubt)
    assert doubtful.any()
    assert torch.equal(remask.sum(1), doubtful.sum(1).minimum(at.budget.room))
    assert not (remask & ~doubtful).any()
    for row in range(50):
        if remask[row].any() and (kept := doubtful[row] & ~remask[row]).any():
            assert scores[row][remask[row]].max() <= scores[row][kept].min()
    fewer = kind(Fixed(2), doubt=doubt).select(at)
    assert torch.equal(fewer, fewer & remask)
    assert fewer.sum(1).max() == min(2, int(remask.sum(1).max()))


def test_who_doubts_nothing_is_vanilla() -> None:
    """Bit for bit, however many could go back."""
    sure = Given(PROBABILITIES, torch.full((5,), 0.9))
    doubting = record(sure, masks(4, 5, 3), Pair(Counted(), LowQuality(Every(), doubt=0.5)), steps=5)
    plain = record(sure, masks(4, 5, 3), Pair(Counted()), steps=5)
    for one, other in zip(doubting, plain, strict=True):
        assert torch.equal(one.after.tokens, other.after.tokens)
    doubtful = Given(PROBABILITIES, torch.full((5,), 0.4))
    steps = record(doubtful, masks(1, 5, 3), Pair(Counted(), LowQuality(Every(), doubt=0.5)), steps=5)
    # what is written, and then what there is room for
    assert [int(step.edit.remask.sum()) for step in steps] == [0, 1, 2, 1, 0]


def test_confidence_is_the_probability_at_commit_time() -> None:
    """Written with probability p, a token keeps p however the context changes, and gets a new one when written again."""
    model = small_world()
    steps = record(model, masks(8, 6, 3), Pair(Counted(), LowConfidence(Fixed(1))), steps=6)
    assert steps[-1].remasks.sum() > 0
    for step in steps:
        written = step.edit.write
        own = model(step.before.tokens).exp().gather(-1, step.after.tokens.clamp_max(2)[..., None])[..., 0]
        torch.testing.assert_close(step.after.confidence[written].double(), own[written], rtol=1e-5, atol=1e-6)
        kept = ~written
        assert torch.equal(step.after.confidence[kept], step.before.confidence[kept])


class NoisyQuality(Mixing):
    """A model whose quality is the very noise `Anywhere` draws."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.noise, self.step = Noise.rows(0, rows), 0

    def predict(self, tokens: Tensor, attend: Tensor | None = None) -> Prediction:
        uniform = self.noise.at(self.step).uniform(Purpose.REMASK, tokens.shape[1])
        self.step += 1
        base = super().predict(tokens, attend)
        return Prediction(base.hidden, self.unembed, forbidden=base._forbidden, quality_logits=lambda: uniform.logit())


@pytest.mark.parametrize("amount", [Fixed(2), Binomial(0.2), CappedBinomial(0.2)], ids=str)
def test_prism_with_random_scores_is_random_remasking(amount: Fixed) -> None:
    """Bit for bit, when the head's scores are the numbers that random remasking draws."""
    prism = record(NoisyQuality(4), masks(4, 20, 0), Pair(Counted(), LowQuality(amount)), steps=10)
    plain = record(Mixing(), masks(4, 20, 0), Pair(Counted(RandomOrder()), Anywhere(amount)), steps=10)
    for one, other in zip(prism, plain, strict=True):
        assert torch.equal(one.after.tokens, other.after.tokens)
        assert torch.equal(one.edit.remask, other.edit.remask)
    assert prism[-1].remasks.sum() > 0


@pytest.mark.parametrize(
    "bad",
    [
        lambda: Fixed(-1),
        lambda: Centred(-1),
        lambda: Binomial(1.5),
        lambda: CappedBinomial(-0.1),
        lambda: LowQuality(Every(), doubt=0.0),
        lambda: LowConfidence(Every(), doubt=1.0),
    ],
)
def test_bad_values(bad: object) -> None:
    with pytest.raises(ValueError, match="must"):
        bad()  # type: ignore[operator]
