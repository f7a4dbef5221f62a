"""Names and numbers become the right objects, or an error that helps."""

from __future__ import annotations

import pytest

import prism
from prism.recipes.sampling import Sampling


def test_defaults_are_the_papers_sudoku_sampler() -> None:
    assert Sampling().build_policy() == prism.Pair(prism.Counted(prism.RandomOrder()), prism.LowQuality(prism.Fixed(4)))


def test_the_papers_text_sampler() -> None:
    policy = Sampling(eta=0.01, cap=True, on=0.5).build_policy()
    wanted = prism.LowQuality(prism.CappedBinomial(0.01), prism.Phase(on=0.5))
    assert policy == prism.Pair(prism.Counted(prism.RandomOrder()), wanted)


def test_the_papers_code_sampler() -> None:
    policy = Sampling(order="probability", k_block=4).build_policy()
    assert policy == prism.Pair(prism.Counted(prism.TopProbability()), prism.LowQuality(prism.Centred(4)))


def test_strength_goes_to_those_who_use_it() -> None:
    assert Sampling(policy="remdm-cap", eta=0.1).build_policy() == prism.ReMDMCap(eta=0.1)
    assert Sampling(policy="p2-joint", eta=0.5).build_policy() == prism.P2Self(eta=0.5)
    with pytest.raises(ValueError, match="does not use it"):
        Sampling(policy="rdm", eta=0.5).build_policy()
