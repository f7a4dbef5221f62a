"""Blocks with a look back: what goes back is the worst of what stands before, and everything is written in the end."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from test_cached import MASK, prompts  # three rows of four blocks, three and two
from test_llama import both_ways

import prism
from prism.models.cached import Cached
from prism.sampling.policies.revisiting import Revisiting
from prism.state import State, Step

PAIR = prism.Pair(prism.Counted(prism.Margin()), prism.LowQuality(prism.Centred(2)))
POLICY = Revisiting(PAIR, 2)
SURE = Revisiting(prism.Pair(prism.Threshold(0.02), prism.LowQuality(prism.Centred(1))), 2)
OPTIONS: dict[str, Any] = {"steps": 16, "block": 4, "draw": prism.Draw(temperature=0.0)}


def model() -> prism.PrismModel:
    judged = prism.attach(both_ways(), prism.ProjectionConfig(24))
    for weight in judged.quality_head.parameters():
        torch.nn.init.normal_(weight, std=0.3, generator=torch.Generator().manual_seed(weight.numel()))
    return judged.double().eval()


def steps(policy: prism.Policy, state: State | None = None, **options: Any) -> list[Step]:
    state = prompts() if state is None else state
    noise = prism.Noise.rows(0, len(state.tokens))
    return list(prism.sample(model(), state, policy, noise=noise, **(OPTIONS | options)))


@pytest.mark.parametrize("policy", [POLICY, SURE], ids=["counted", "threshold"])
def test_the_worst_of_earlier_blocks_go_back_when_a_block_begins(policy: Revisiting) -> None:
    reopened = 0
    for step in steps(policy):
        outside = step.edit.remask & ~step.before.window
        for row in range(3):
            back = outside[row].nonzero()[:, 0]
            if not len(back):
                continue
            reopened += len(back)
            earlier = ~step.before.frozen[row] & (step.before.tokens[row] != MASK) & ~step.before.window[row]
            assert bool(earlier[back].all())
            assert not bool(step.before.committed[row].any())  # the first step: all of the block is masks
            quality, kept = step.prediction.quality[row], earlier & ~outside[row]
            assert len(back) == min(policy.k, int(earlier.sum()))
            assert not bool(kept.any()) or float(quality[back].max()) <= float(quality[kept].min())
    assert reopened > 4
    assert not bool(((step.after.tokens == MASK) & ~step.after.frozen).any())
    assert torch.equal(step.after.tokens[step.after.frozen], prompts().tokens[prompts().frozen])


def test_it_keeps_to_the_steps_and_is_counted() -> None:
    plain, revisited = steps(PAIR)[-1], steps(POLICY)[-1]
    assert bool((revisited.forwards <= 16).all())
    assert torch.equal(revisited.remasks - plain.remasks, torch.tensor([2 * 3, 2 * 2, 2 * 1]))


def test_a_block_of_one_step_reopens_nothing() -> None:
    """It could not be written again."""
    one = prompts().rows(torch.tensor([0]))
    assert not any(bool((step.edit.remask & ~step.before.window).any()) for step in steps(POLICY, one, steps=4))


@pytest.mark.parametrize("policy", [POLICY, SURE], ids=["counted", "threshold"])
def test_a_row_takes_the_steps_it_takes_alone_and_may_be_interrupted(policy: Revisiting) -> None:
    together, keys = steps(policy), prism.Noise.rows(0, 3).keys
    for row in range(3):
        one = torch.tensor([row])
        for taken in (0, 3, 5, 6):
            state = prompts() if taken == 0 else together[taken - 1].after
            noise = prism.Noise(keys[one])
            rest = prism.generate(model(), state.rows(one), policy, noise=noise, **OPTIONS)
            assert torch.equal(rest.tokens[0], together[-1].after.tokens[row])


@pytest.mark.parametrize("policy", [POLICY, SURE], ids=["counted", "threshold"])
@pytest.mark.parametrize("refresh", [None, 1])
def test_with_a_cache_and_prepared(policy: Revisiting, refresh: int | None) -> None:
    """Refreshed at every step it is the uncached run; prepared, without counting positions as on a GPU, it is the loop's."""
    noise = prism.Noise.rows(0, 3)
    cached = prism.generate(Cached(model(), refresh=refresh), prompts(), policy, noise=noise, **OPTIONS)
    assert not bool(((cached.tokens == MASK) & ~prompts().frozen).any())
    if refresh == 1:
        assert torch.equal(cached.tokens, prism.generate(model(), prompts(), policy, noise=noise, **OPTIONS).tokens)
    prepared = prism.Prepared(Cached(model(), refresh=refresh), policy, waits=False, **OPTIONS)(prompts(), noise)
    for field in ("tokens", "forwards", "remasks"):
        assert torch.equal(getattr(prepared, field), getattr(cached, field))


def test_what_leaves_the_window_asks_for_no_new_cache() -> None:
    """Everything is computed at the two first steps of a block with something reopened, and a part at the others."""
    widths: list[int] = []
    judged = model()
    judged.backbone.layers[0].register_forward_pre_hook(lambda _, given: widths.append(given[0].shape[1]))
    tokens = torch.full((1, 20), MASK)
    tokens[:, :4] = 7
    policy = Revisiting(prism.Pair(prism.Counted(prism.Leftmost()), prism.LowQuality(prism.Centred(0))), 1)
    prism.generate(Cached(judged), prism.start(tokens, MASK), policy, noise=prism.Noise.rows(0, 1), **OPTIONS)
    assert widths == [20, 4, 4, 4] + [20, 20, 5, 5] * 3


def test_what_cannot_look_back_says_so() -> None:
    with pytest.raises(ValueError, match="Never gives tokens no score"):
        Revisiting(prism.Pair(prism.Counted(prism.Margin())), 1)
    with pytest.raises(ValueError, match="k=0"):
        Revisiting(PAIR, 0)
