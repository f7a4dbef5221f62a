"""Calibration on the oracle, whose quality is exact, and the figures against slow definitions."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import prism
from prism.evaluation.calibration import Asked, Witness, auroc, detection, hidden_likelihood, reliability
from prism.losses.masking import Batch


def watched(every: int = 1) -> Witness:
    oracle = prism.Oracle.random(3, 5, seed=2)
    witness = Witness(oracle, per_row=2, every=every)
    state = prism.start(torch.full((64, 5), 3), 3)
    policy = prism.Pair(prism.Counted(), prism.LowQuality(prism.Fixed(1)))
    prism.generate(oracle, state, policy, steps=5, watch=witness)
    return witness


def test_the_oracles_quality_is_its_hidden_likelihood() -> None:
    seen = watched().judgements()
    assert len(seen.quality) > 200
    assert np.abs(seen.quality - seen.likelihood).max() < 1e-6
    assert reliability(seen.quality, seen.likelihood).error < 1e-6
    assert set((5 * seen.filled).round().astype(int)) == {1, 2, 3, 4}
    assert len(watched(every=2).judgements().quality) < len(seen.quality)


def test_a_summary_tells_of_every_fifth() -> None:
    told = watched(every=4).judgements().summary()  # before the first step nothing is written, before the fifth 4 of 5
    assert [sum(curve["count"]) for curve in told["by_fifth_filled"]] == [0, 0, 0, 0, told["tokens"]]
    assert told["against_likelihood"]["ece"] < 1e-6


def test_an_oracle_knows_which_tokens_were_drawn_wrong() -> None:
    """Proposition 1: with one token drawn into a true text, the oracle's quality is the probability that it is right."""
    oracle = prism.Oracle.random(3, 5, seed=2)
    texts = oracle.draw(torch.rand(4000, generator=torch.Generator().manual_seed(0)))
    found = detection(oracle, Batch(texts), prism.PrismLoss(k=1))
    assert found["against_truth"]["ece"] < 0.03
    assert found["auroc"]["quality"] == pytest.approx(found["auroc"]["likelihood"])
    assert found["auroc"]["quality"] > 0.75
    assert 0.4 < found["right"] < 0.6


def test_hidden_likelihood_hides_one_token_at_a_time() -> None:
    oracle = prism.Oracle.random(3, 4, seed=1)
    tokens = torch.tensor([[0, 1, 3, 2], [2, 2, 1, 0]])
    state = prism.start(tokens, 3, frozen=torch.zeros_like(tokens, dtype=torch.bool))
    found = hidden_likelihood(oracle, state, state.committed)
    assert torch.allclose(found, oracle.quality(tokens)[state.committed])


def test_reliability_error_of_a_biased_judge() -> None:
    predicted = np.array([0.95] * 100 + [0.15] * 100)
    observed = np.array([1] * 80 + [0] * 20 + [1] * 10 + [0] * 90)
    found = reliability(predicted, observed)
    assert found.error == pytest.approx(0.5 * 0.15 + 0.5 * 0.05)
    assert found.count.tolist() == [100, 100]


def test_auroc_is_the_share_of_pairs_in_order() -> None:
    rng = np.random.default_rng(0)
    scores, positive = rng.integers(0, 6, 60).astype(float), rng.random(60) < 0.4
    pairs = [(a > b) + 0.5 * (a == b) for a in scores[positive] for b in scores[~positive]]
    assert auroc(scores, positive) == pytest.approx(np.mean(pairs))
    assert np.isnan(auroc(scores, np.ones(60, dtype=bool)))


def test_asking_is_what_an_oracle_tells() -> None:
    """A model without a head, asked, takes back what its oracle would."""
    oracle = prism.Oracle.random(3, 5, seed=2)
    model = Asked(oracle, length=5, batch=7)
    policy = prism.Pair(prism.Counted(), prism.LowQuality(prism.Fixed(1)))
    state = prism.start(torch.tensor([[3, 3, 3, 3, 1]] * 64), 3)
    noise = prism.Noise.rows(0, 64)
    done, told = (prism.generate(one, state, policy, steps=5, noise=noise) for one in (model, oracle))
    assert torch.equal(done.tokens, told.tokens)
    assert told.remasks.sum() > 0
    assert torch.equal(done.forwards, 6 * told.forwards)


def test_the_window_alone_is_asked_about_once_it_is_known() -> None:
    oracle = prism.Oracle.random(3, 5, seed=2)
    model, tokens = Asked(oracle, length=5), torch.tensor([[0, 1, 2, 3, 1]])
    window = torch.tensor([[True, True, True, True, False]])
    exact, known = oracle.quality(tokens).float(), tokens != 3
    first, second = (model.predict_window(tokens, None, window).quality for _ in range(2))
    assert torch.allclose(first[known], exact[known])
    assert torch.allclose(second[known & window], exact[known & window])
    assert second[0, 4] == 0.5  # not asked
    assert torch.allclose(model.predict_window(tokens, None, ~window).quality[known], exact[known])
    assert torch.allclose(model.predict(tokens).quality[known], exact[known])
