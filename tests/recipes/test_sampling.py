"""Names and numbers become the right objects, or an error that helps."""

from __future__ import annotations

import inspect
import re
from dataclasses import replace

import pytest
import torch

import prism
from prism.recipes.sampling import Sampling
from prism.sampling.policies import METHODS, Method


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


def test_a_threshold_goes_with_what_commits_by_count() -> None:
    assert Sampling(policy="threshold", threshold=0.7).build_policy() == prism.Pair(prism.Threshold(0.7))
    assert Sampling(policy="threshold").build_policy() == prism.Pair(prism.Threshold(0.9))
    policy = Sampling(order="probability", k_block=4, threshold=0.8).build_policy()
    wanted = prism.CountedAndSure(prism.TopProbability(), 0.8)
    assert policy == prism.Pair(wanted, prism.LowQuality(prism.Centred(4)))
    with pytest.raises(ValueError, match="--threshold: the policy 'factor' does not use it"):
        Sampling(policy="factor", threshold=0.9).build_policy()
    with pytest.raises(ValueError, match=r"--threshold 1\.5: a probability"):
        Sampling(threshold=1.5).build_policy()


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_a_comparison_gives_each_method_what_it_reads(method: Method) -> None:
    """And nothing else, whatever the others need."""
    given = Sampling(
        method.name, order="margin", k=3, doubt=0.3, threshold=0.8, schedule="cosine", on=0.1, off=0.9, block=8, seed=1
    )
    kept = given.only_what_it_reads()
    kept.build_policy()
    assert (kept.policy, kept.block, kept.seed) == (method.name, 8, 1)
    assert (kept.k == 3, kept.doubt == 0.3, kept.order == "margin") == tuple(
        use in method.uses for use in ("amount", "doubt", "order")
    )
    if kept != given:
        with pytest.raises(ValueError, match="does not use it"):
            given.build_policy()


def test_a_doubt_goes_with_scores_that_are_probabilities() -> None:
    """Alone it means all that are doubtful, with a number at most so many of them."""
    assert Sampling(doubt=0.2).build_policy().remasker == prism.LowQuality(prism.Every(), doubt=0.2)  # type: ignore[attr-defined]
    policy = Sampling(policy="p2-self", k=2, doubt=0.3).build_policy()
    assert policy == prism.Pair(prism.Counted(), prism.LowLikelihood(prism.Fixed(2), doubt=0.3))
    assert Sampling(doubt=0.2, block=8).idle(64) is None
    with pytest.raises(ValueError, match="--doubt: the policy 'random' does not use it"):
        Sampling(policy="random", doubt=0.2).build_policy()
    with pytest.raises(ValueError, match=r"--doubt 1\.0: a probability above 0 and below 1"):
        Sampling(doubt=1.0).build_policy()


def test_every_policy_is_in_the_help() -> None:
    text = " ".join(inspect.getsource(Sampling).partition('"""Which method')[2].partition('"""')[0].split())
    listed = text.partition(": ")[2].partition(". ")[0].replace(" or ", ", ").split(", ")
    assert listed == [method.name for method in METHODS]


# ── K_block ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("steps", "ks"), [(256, (4, 6)), (512, (8, 10, 12, 14, 16)), (1024, (8, 10, 12, 14, 16))])
def test_there_is_room_for_the_papers_sweep(steps: int, ks: tuple[int, ...]) -> None:
    for k in ks:
        Sampling(k_block=k, steps=steps, block=32).check_length(1024)


@pytest.mark.parametrize(
    ("sampling", "free", "said"),
    [
        (Sampling(k_block=8, block=4), 16, "--k_block 8: 4 steps on a block of 4 positions leave room to take back 2;"),
        (Sampling(k_block=1, block=4, steps=8), 16, "2 steps on a block of 4 positions leave room to take back 0;"),
        (Sampling(k_block=3, block=4, steps=16), 18, "3 steps on a block of 4 positions leave room to take back 1;"),
        (
            Sampling(k_block=12, steps=4),
            16,
            "--k_block 12: 4 steps on a block of 16 positions leave room to take back 8;",
        ),
        (Sampling(k_block=17, block=4), 16, "--k_block 17 is more than the 16 positions to generate"),
    ],
)
def test_what_a_block_cannot_hold_is_refused(sampling: Sampling, free: int, said: str) -> None:
    """The number named is the largest that is not."""
    with pytest.raises(ValueError, match=re.escape(said)):
        sampling.check_length(free)
    if "take back" in said:
        replace(sampling, k_block=int(said[-2])).check_length(free)


@pytest.mark.parametrize(
    ("sampling", "free", "said"),
    [
        (
            Sampling(k=4, block=8),
            64,
            "--k 4: with 8 steps on 8 positions there is never room to remask 4 tokens; take --k 3 or less",
        ),
        (
            Sampling(k=4, steps=1),
            5,
            "with 1 step on 5 positions there is never room to remask 4 tokens; take more --steps.",
        ),
        (Sampling(k=4, block=9), 63, "take --k 3 or less, or a larger --block"),
        (Sampling(k=12), 24, "take --k 11 or less"),
        (Sampling(k=1, block=8, steps=8), 64, "take more --steps, or a larger --block"),  # one step for each block
    ],
)
def test_a_k_nothing_comes_of_is_refused(sampling: Sampling, free: int, said: str) -> None:
    """And one that was not chosen is told of; what is advised instead works."""
    with pytest.raises(ValueError, match=re.escape(said)):
        sampling.check_length(free)
    if (advice := re.search(r"take --k (\d+)", said)) is not None:
        replace(sampling, k=int(advice[1])).check_length(free)
    default = replace(sampling, k=None)
    default.check_length(free)
    told = default.idle(free)
    assert (told is None) == default.takes_back(free)
    assert told is None or told.startswith("Nothing will be remasked: ")


@pytest.mark.parametrize(
    ("k", "length", "steps"), [(4, 8, 8), (4, 9, 9), (4, 10, 10), (3, 8, 8), (1, 8, 3), (2, 10, 7)]
)
def test_what_is_held_is_what_a_run_takes_back(k: int, length: int, steps: int) -> None:
    state = prism.start(torch.full((1, length), 2), 2)
    policy = Sampling(policy="random", k=k).build_policy()
    (*_, last) = prism.sample(prism.Oracle.random(2, length), state, policy, steps=steps)
    assert int(last.remasks) == prism.Fixed(k).held(length, steps, prism.Linear())


@pytest.mark.parametrize("policy", ["vanilla", "remdm-cap", "p2-joint"])
def test_methods_without_a_k_are_never_idle(policy: str) -> None:
    assert Sampling(policy=policy, block=8).idle(64) is None


def test_a_block_says_itself_when_to_take_back() -> None:
    with pytest.raises(ValueError, match="--on, --off: --k_block has its place in the block"):
        Sampling(k_block=4, on=0.2, off=0.9).build_policy()
