from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from stand_ins import tiny_truth

import prism
from prism.evaluation.known_truth import own_texts, run_of, weighed
from prism.evaluation.samples import make_all
from prism.evaluation.text import Likelihood, TextRun, distinct, ngrams, repetition, unigram_entropy


def test_unigram_entropy() -> None:
    rows = [np.array(row) for row in ([5, 5, 5, 5], [1, 2, 3, 4], [9, 1, 9, 1], [7], [])]
    assert unigram_entropy(rows).tolist() == pytest.approx([0, math.log(4), math.log(2), 0, 0])


def test_repeating_oneself_is_seen() -> None:
    rows = [np.array(row) for row in ([1, 2, 3, 4, 5, 6], [1, 2, 3, 1, 2, 3], [1])]
    assert repetition(rows, 2).tolist() == pytest.approx([0, 2 / 5, 0])
    assert distinct(rows, 2).value == pytest.approx(6 / 10)  # 12 and 23 are everywhere, 31 is new
    assert distinct(rows[:1], 9).value == 0


def test_ngrams_stay_within_their_sequence_and_are_told_apart_in_any_vocabulary() -> None:
    rng = np.random.default_rng(0)
    rows = [rng.choice([0, 1, 262_143, 2**40], size) for size in (9, 0, 3, 30, 1, 2)]
    for n in (1, 2, 3, 4):
        every = [tuple(row[i : i + n]) for row in rows for i in range(len(row) - n + 1)]
        grams, owner = ngrams(rows, n)
        assert len(grams) == len(every)
        assert owner.tolist() == [number for number, row in enumerate(rows) for _ in range(len(row) - n + 1)]
        assert all(
            (a == b) == (x == y) for a, x in zip(every, grams, strict=True) for b, y in zip(every, grams, strict=True)
        )


def test_the_interval_of_distinct_ngrams_holds_what_other_samples_give() -> None:
    """Many sets of samples of one process: their spread is what the jackknife says."""
    rng = np.random.default_rng(0)
    found = [distinct(rng.geometric(rng.uniform(0.05, 0.5, (60, 1)), (60, 40)), 2) for _ in range(200)]
    spread = np.std([one.value for one in found])
    said = np.mean([one.high - one.low for one in found]) / 2 / 1.96
    assert said == pytest.approx(spread, rel=0.25)


def test_perplexity_over_tokens_and_over_texts() -> None:
    found = Likelihood(np.array([10.0, 1.0, 0.0]), np.array([10, 2, 0])).summary()
    assert found["perplexity"] == pytest.approx(math.exp(11 / 12))
    assert found["perplexity_per_text"] == pytest.approx(math.exp((1 + 0.5) / 2))
    assert (found["judged_tokens"], found["texts_without_tokens"]) == (12, 1)
    low, high = found["perplexity_interval"]
    assert low <= found["perplexity"] <= high
    with pytest.raises(ValueError, match="are they all empty"):
        Likelihood(np.array([0.0]), np.array([0])).summary()


def test_a_summary_holds_what_was_found() -> None:
    run = TextRun(
        tokens=np.array([[1, 2, 3, 4, 5], [1, 1, 1, 1, 1]]),
        nll=np.array([1.0, 2.0]),
        forwards=np.array([4, 4]),
        remasks=np.array([2, 0]),
        flipflops=np.array([1, 0]),
        seconds=1.0,
    )
    found = run.summary()
    assert found["nll"] == 1.5
    assert found["perplexity"] == pytest.approx(math.exp(1.5))
    assert found["entropy"] == pytest.approx(math.log(5) / 2)
    assert found["repetition_4"] == pytest.approx(0.25)
    assert (found["nfe"], found["remasks"], found["flipflop_rate"]) == (4, 1, 0.5)


def test_a_known_truth_is_its_own_best_judge() -> None:
    """Its samples have its likelihood; a model that knows nothing writes less likely ones; every sample begins as given."""
    law = tiny_truth()
    own = run_of(make_all(own_texts(law, str, length=8, seed=0, batch=32), samples=70, batch=32))
    assert len(own.tokens) == 70
    torch.testing.assert_close(
        torch.from_numpy(own.nll).float(),
        -law.log_likelihood(torch.from_numpy(own.tokens)).mean(1),
        atol=1e-5,
        rtol=1e-5,
    )
    ignorant = prism.DiT(prism.DiTConfig(vocab_size=13, mask_id=12, length=8, hidden_size=16, blocks=1, heads=2)).eval()
    make = weighed(prism.Prepared(ignorant, prism.Pair(prism.Counted()), steps=8), law, str, length=8, seed=0)
    found = run_of(make_all(make, samples=70, batch=32))
    assert (found.tokens[:, 0] == 1).all()
    assert (found.tokens < 12).all()
    assert found.likelihood.low > own.likelihood.high
    again = run_of(make_all(make, samples=70, batch=64))
    assert (again.tokens == found.tokens).all()
