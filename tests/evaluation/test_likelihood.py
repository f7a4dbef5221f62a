"""The estimate is unbiased, and the likelihood itself for an exact model: against sums over everything there is."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from test_llama import both_ways

from prism.evaluation.likelihood import Passage, likelihood_bounds
from prism.models.oracle import Oracle
from prism.writer import Model

MASK = 3


def expected(model: Model, passage: Passage) -> float:
    """The right-hand side, every set of masks counted."""
    whole = torch.tensor([passage.prompt + passage.tokens])
    begin, length = len(passage.prompt), len(passage.tokens)
    total = 0.0
    for count in range(1, length + 1):
        sets = list(itertools.combinations(range(begin, begin + length), count))
        for chosen in sets:
            where = torch.zeros_like(whole, dtype=torch.bool)
            where[0, list(chosen)] = True
            logs = model.predict(whole.masked_fill(where, model.facts.mask_id)).log_probabilities(where)
            found = logs.gather(1, whole[where][:, None]).sum()
            total += float(found) * length / count / len(sets) / length
    return total


@torch.no_grad()
def test_the_estimate_is_unbiased() -> None:
    model = both_ways()
    passage = Passage([5, 6, 7], [8, 9, 10, 11])
    runs = [likelihood_bounds(model, [passage], samples=4, seed=seed)[0] for seed in range(300)]
    mean = sum(runs) / len(runs)
    spread = math.sqrt(sum((run - mean) ** 2 for run in runs) / len(runs) / len(runs))
    assert abs(mean - expected(model, passage)) < 4 * spread
    (many,) = likelihood_bounds(model, [passage], samples=2000, batch=500)
    assert many == pytest.approx(expected(model, passage), abs=0.1)


@torch.no_grad()
def test_it_is_the_likelihood_where_the_model_is_exact() -> None:
    """For the oracle, whose conditionals are those of one joint distribution, the bound is the likelihood itself."""
    oracle = Oracle.random(3, 5)
    whole = [0, 2, 1, 1, 0]
    chain = 0.0
    for place in range(1, 5):
        tokens = torch.tensor([whole[:place] + [oracle.facts.mask_id] * (5 - place)])
        where = torch.arange(5)[None] == place
        chain += float(oracle.predict(tokens).log_probabilities(where)[0, whole[place]])
    passage = Passage(whole[:1], whole[1:])
    assert expected(oracle, passage) == pytest.approx(chain, abs=1e-5)
    (found,) = likelihood_bounds(oracle, [passage], samples=4000, batch=1000)
    assert found == pytest.approx(expected(oracle, passage), abs=0.05)


@torch.no_grad()
def test_a_passage_does_not_notice_the_others() -> None:
    """Nor the size of the batch; one token is exact, none has log-likelihood 0."""
    model = both_ways()
    passages = [Passage([5, 6], [7, 8, 9]), Passage([], [10, 11]), Passage([4] * 9, [12]), Passage([5], [])]
    together = likelihood_bounds(model, passages, samples=8, batch=5)
    assert together == pytest.approx(likelihood_bounds(model, passages, samples=8, batch=1), rel=1e-4)
    assert together[0] == pytest.approx(likelihood_bounds(model, passages[:1], samples=8)[0], rel=1e-4)
    assert together[2] == pytest.approx(expected(model, passages[2]), rel=1e-4)
    assert together[3] == 0
    with pytest.raises(ValueError, match="samples=0"):
        likelihood_bounds(model, passages, samples=0)
