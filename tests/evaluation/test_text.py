from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from stand_ins import tiny_truth

import prism
from prism.evaluation.known_truth import evaluate_known_truth, own_samples
from prism.evaluation.text import TextRun, distinct, repetition, unigram_entropy


def test_unigram_entropy() -> None:
    tokens = torch.tensor([[5, 5, 5, 5], [1, 2, 3, 4], [9, 1, 9, 1]])
    assert unigram_entropy(tokens).tolist() == pytest.approx([0, math.log(4), math.log(2)])


def test_repeating_oneself_is_seen() -> None:
    once, twice = [1, 2, 3, 4, 5, 6], [1, 2, 3, 1, 2, 3]
    assert repetition(torch.tensor([once, twice]), 2).tolist() == pytest.approx([0, 2 / 5])
    assert distinct(torch.tensor([once, twice]), 2) == pytest.approx(6 / 10)  # 12 and 23 are everywhere, 31 is new


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
    own = own_samples(law, samples=70, length=8, seed=0, batch=32)
    assert len(own.tokens) == 70
    torch.testing.assert_close(
        torch.from_numpy(own.nll).float(),
        -law.log_likelihood(torch.from_numpy(own.tokens)).mean(1),
        atol=1e-5,
        rtol=1e-5,
    )
    ignorant = prism.DiT(prism.DiTConfig(vocab_size=13, mask_id=12, length=8, hidden_size=16, blocks=1, heads=2)).eval()
    policy = prism.Pair(prism.Counted())
    found = evaluate_known_truth(ignorant, law, policy, steps=8, samples=70, length=8, batch=32)
    assert (found.tokens[:, 0] == 1).all()
    assert (found.tokens < 12).all()
    assert found.likelihood.low > own.likelihood.high
    again = evaluate_known_truth(ignorant, law, policy, steps=8, samples=70, length=8, batch=64)
    assert (again.tokens == found.tokens).all()
