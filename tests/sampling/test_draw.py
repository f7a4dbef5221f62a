from __future__ import annotations

import pytest
import torch
from scipy import stats
from torch import Tensor

from prism.noise import Noise, Purpose
from prism.sampling.draw import Draw, inverse_cdf

PROBABILITIES = [0.4, 0.3, 0.15, 0.1, 0.04, 0.00998, 0.00002, 0.0]
NUCLEI = [0.05, 0.41, 0.5, 0.69, 0.71, 0.86, 0.96, 0.999999]  # none on a cumulative sum, where rounding decides


def uniforms(count: int, seed: int = 0) -> Tensor:
    return Noise.rows(seed, 1).uniform(Purpose.TOKEN, count)[0]


def logs(probabilities: list[float]) -> Tensor:
    return torch.tensor(probabilities, dtype=torch.float64).log()[None]


def drawn(draw: Draw, probabilities: list[float], count: int) -> Tensor:
    """How often each token is drawn."""
    tokens = draw.tokens(logs(probabilities).expand(count, -1), uniforms(count))
    return torch.bincount(tokens, minlength=len(probabilities))


def agrees(counts: Tensor, probabilities: list[float]) -> None:
    expected = torch.tensor(probabilities, dtype=torch.float64)
    expected = expected / expected.sum() * counts.sum()
    assert (counts[expected == 0] == 0).all()
    allowed = expected > 0
    if allowed.sum() > 1:
        assert stats.chisquare(counts[allowed].numpy(), expected[allowed].numpy()).pvalue > 1e-3


def test_exact() -> None:
    """Two in a hundred thousand is drawn about 20 times in a million, and what cannot be is never drawn."""
    agrees(drawn(Draw(), PROBABILITIES, 1_000_000), PROBABILITIES)


def test_the_tail_is_not_cut_off() -> None:
    """A token of probability 1e-14, far below float32's resolution, has its own interval of uniform numbers."""
    tiny = 1e-14
    distribution = logs([0.5, tiny, 0.5 - tiny])
    below, inside, above = 0.5 - 1e-15, 0.5 + tiny / 2, 0.5 + 2 * tiny
    tokens = Draw().tokens(distribution.expand(3, -1), torch.tensor([below, inside, above], dtype=torch.float64))
    assert tokens.tolist() == [0, 1, 2]


@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_temperature(temperature: float) -> None:
    agrees(
        drawn(Draw(temperature=temperature), PROBABILITIES, 200_000), [p ** (1 / temperature) for p in PROBABILITIES]
    )


@pytest.mark.parametrize("draw", [Draw(temperature=0.0), Draw(nucleus=0.0), Draw(top_k=1)])
def test_argmax(draw: Draw) -> None:
    distribution = torch.randn(50, 7, generator=torch.Generator().manual_seed(0)).log_softmax(-1)
    assert torch.equal(draw.tokens(distribution, uniforms(50)), distribution.argmax(-1))


@pytest.mark.parametrize("k", [1, 2, 5, 8, 20])
def test_top_k(k: int) -> None:
    kept = [p if rank < k else 0.0 for rank, p in enumerate(PROBABILITIES)]
    agrees(drawn(Draw(top_k=k), PROBABILITIES, 100_000), kept)


def nucleus_by_hand(probabilities: list[float], p: float, *, keep_crossing: bool) -> list[float]:
    """Token by token, from the most likely; the one that crosses p ends it, and is kept or not."""
    kept = [0.0] * len(probabilities)
    total = 0.0
    for rank, token in enumerate(sorted(range(len(probabilities)), key=lambda v: -probabilities[v])):
        total += probabilities[token]
        if total <= p or rank == 0 or keep_crossing:
            kept[token] = probabilities[token]
        if total > p:
            break
    return kept


@pytest.mark.parametrize("keep_crossing", [False, True])
@pytest.mark.parametrize("p", NUCLEI)
def test_nucleus(p: float, keep_crossing: bool) -> None:
    """On a shuffled vocabulary, against the rule spelled out."""
    shuffled = [PROBABILITIES[i] for i in (4, 0, 7, 2, 6, 1, 5, 3)]
    kept = nucleus_by_hand(shuffled, p, keep_crossing=keep_crossing)
    agrees(drawn(Draw(nucleus=p, keep_crossing=keep_crossing), shuffled, 40_000), kept)


def test_the_two_conventions_differ_by_the_crossing_token() -> None:
    without, with_it = (
        set(drawn(Draw(nucleus=0.8, keep_crossing=keep), PROBABILITIES, 5_000).nonzero()[:, 0].tolist())
        for keep in (False, True)
    )
    assert (without, with_it) == ({0, 1}, {0, 1, 2})


def test_filters_come_after_the_temperature() -> None:
    """At temperature 2 the nucleus of 0.7 holds different tokens than at temperature 1."""
    weights = torch.tensor(PROBABILITIES).double() ** 0.5
    flat = (weights / weights.sum()).tolist()
    agrees(drawn(Draw(temperature=2.0, top_k=6, nucleus=0.7), PROBABILITIES, 40_000), _filtered(flat, 6, 0.7))


def _filtered(probabilities: list[float], k: int, p: float) -> list[float]:
    kept = torch.tensor([q if rank < k else 0.0 for rank, q in enumerate(probabilities)]).double()
    return nucleus_by_hand((kept / kept.sum()).tolist(), p, keep_crossing=False)


@pytest.mark.parametrize("draw", [Draw(), Draw(nucleus=0.7), Draw(temperature=0.7, top_k=4)])
def test_rows_do_not_depend_on_their_neighbours(draw: Draw) -> None:
    distribution = torch.randn(100, 9, generator=torch.Generator().manual_seed(1)).log_softmax(-1)
    whole = draw.tokens(distribution, uniforms(100))
    rows = [draw.tokens(distribution[i : i + 1], uniforms(100)[i : i + 1]) for i in range(100)]
    assert torch.equal(torch.cat(rows), whole)


@pytest.mark.parametrize("keep_crossing", [False, True])
def test_equals_stand_or_fall_together(keep_crossing: bool) -> None:
    """0.4 + 0.2 is within 0.7, with the other 0.2 it is not: both go, or the crossing keeps both."""
    counts = drawn(Draw(nucleus=0.7, keep_crossing=keep_crossing), [0.2, 0.4, 0.2, 0.1, 0.1], 20_000)
    agrees(counts, [0.2, 0.4, 0.2, 0.0, 0.0] if keep_crossing else [0.0, 1.0, 0.0, 0.0, 0.0])


def test_what_is_drawn_comes_with_its_own_probability() -> None:
    """That of the distribution before temperature and filters."""
    distribution = torch.randn(50, 7, generator=torch.Generator().manual_seed(0))
    tokens, logs = Draw(temperature=0.5, nucleus=0.6)(distribution, uniforms(50))
    torch.testing.assert_close(logs, distribution.log_softmax(-1)[torch.arange(50), tokens])


@pytest.mark.parametrize("draw", [Draw(), Draw(temperature=0.0), Draw(nucleus=0.5), Draw(top_k=2)])
def test_no_rows(draw: Draw) -> None:
    assert draw.tokens(torch.zeros(0, 5), torch.zeros(0, dtype=torch.float64)).shape == (0,)


def test_the_ends_of_the_interval() -> None:
    """The smallest and the largest number `Noise` can give never fall on a token of weight 0."""
    weights = torch.tensor([[0.0, 0.3, 0.0, 0.7, 0.0]], dtype=torch.float64)
    ends = torch.tensor([2.0**-53, 1 - 2.0**-53], dtype=torch.float64)
    assert inverse_cdf(weights.expand(2, -1), ends).tolist() == [1, 3]
    for total in torch.rand(100, generator=torch.Generator().manual_seed(0), dtype=torch.float64):
        assert inverse_cdf(weights * total, ends[1:]).tolist() == [3]


@pytest.mark.parametrize(
    "bad",
    [{"temperature": -0.1}, {"temperature": float("nan")}, {"top_k": 0}, {"nucleus": 1.1}, {"nucleus": -0.1}],
)
def test_bad_values(bad: dict[str, float]) -> None:
    (name,) = bad
    with pytest.raises(ValueError, match=name):
        Draw(**bad)  # type: ignore[arg-type]
