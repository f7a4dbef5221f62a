"""ReMDM and its kin, joint rankings, and the identities between methods; bit for bit under shared noise."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from stand_ins import Flat, Given, Mixing, masks, moment, partly_written, puzzles, record, small_world

import prism.sampling
from prism.noise import Purpose
from prism.sampling.draw import Draw
from prism.sampling.order import Confidence, Margin, Order, RandomOrder, TopProbability
from prism.sampling.policies import (
    METHODS,
    RCR,
    RDM,
    CappedBinomial,
    DFMCorrector,
    ForwardBackward,
    P2Self,
    P2SelfPaper,
    ReMDMCap,
    ReMDMConf,
    ReMDMLoop,
    ReMDMRescale,
    ReMDMSwitch,
    Settings,
)
from prism.sampling.policy import Never, Pair, Policy
from prism.sampling.remask import LowQuality
from prism.sampling.unmask import Ancestral, Counted
from prism.schedule import Cosine, Linear, Phase, Plateau, Schedule

BOTH_ORDERS = (RandomOrder(), Margin())


def same_run(one: Policy, other: Policy, *, steps: int = 7, schedule: Schedule | None = None) -> int:
    """Asserts that two policies do the same, edit by edit; returns the number of remasks."""
    given = puzzles(11, 0, (1, 2, 3, 4, 5))
    runs = [record(Mixing(), given, policy, steps=steps, schedule=schedule) for policy in (one, other)]
    for left, right in zip(*runs, strict=True):
        assert torch.equal(left.edit.write, right.edit.write)
        assert torch.equal(left.edit.remask, right.edit.remask)
        assert torch.equal(left.after.tokens, right.after.tokens)
    return int(runs[0][-1].remasks.sum())


@pytest.mark.parametrize("order", BOTH_ORDERS, ids=str)
@pytest.mark.parametrize("kind", [ReMDMCap, ReMDMRescale, ReMDMSwitch])
def test_remdm_without_remasking_is_mdlm(kind: type[ReMDMCap], order: Order) -> None:
    given = puzzles(11, 0, (1, 2, 3, 4, 5))
    remdm = record(Mixing(), given, kind(order, eta=0.0), steps=7)
    mdlm = record(Mixing(), given, Pair(Ancestral(order), Never()), steps=7)
    for left, right in zip(remdm, mdlm, strict=True):
        assert torch.equal(left.after.tokens, right.after.tokens)
    assert remdm[-1].remasks.sum() == 0


@pytest.mark.parametrize("schedule", [Linear(), Cosine(), Plateau()], ids=str)
def test_forward_backward_is_dfm_of_strength_one(schedule: Schedule) -> None:
    """At the level of one decision; the two take steps of different sizes."""
    state = partly_written(40, 12, 3)
    taken_back = 0
    for step in range(8):
        at = moment(Flat(), state, step=step, steps=8, schedule=schedule)
        one, other = (policy.decide(at) for policy in (ForwardBackward(), DFMCorrector(strength=1.0, power=0.0)))
        assert torch.equal(one.write, other.write)
        assert torch.equal(one.remask, other.remask)
        taken_back += int(one.remask.sum())
    assert taken_back > 0


def test_p2_at_its_ends() -> None:
    """η = 0 is MaskGIT, η = 1 is RDM, and the paper's η multiplies the other side."""
    assert same_run(P2Self(0.0), Pair(Counted(Confidence()))) == 0
    assert same_run(P2Self(1.0), RDM()) > 0
    assert same_run(P2SelfPaper(1.0), RDM()) > 0


def test_p2_remasks_more_with_eta() -> None:
    for kind in (P2Self, P2SelfPaper):
        policies = [kind(eta) for eta in (0.0, 0.5, 1.0, 2.0)]
        remasks = [int(record(Mixing(), masks(16, 12, 0), p, steps=6)[-1].remasks.sum()) for p in policies]
        assert remasks[0] == 0
        assert remasks == sorted(remasks)
        assert remasks[1] < remasks[3]


@pytest.mark.parametrize("policy", [P2Self(0.7), P2SelfPaper(0.7), RDM(), RCR()], ids=str)
def test_joint_rankings_by_hand(policy: Policy) -> None:
    """Every score from the table of probabilities, then the ⌈α(s)L⌉ best positions by a plain sort."""
    generator = torch.Generator().manual_seed(0)
    probabilities = torch.rand(8, 3, generator=generator).softmax(-1)
    state = partly_written(12, 8, 3)
    at = moment(Given(probabilities), state, step=4, steps=8)
    edit = policy.decide(at)
    draft = at.draft(state.masked).tokens
    for row in range(12):
        scores = []
        for i in range(8):
            masked = bool(state.masked[row, i])
            p = float(probabilities[i, (draft if masked else state.tokens)[row, i]])
            match policy:
                case P2Self(eta):
                    scores.append(math.log(p) if masked else eta * math.log(p))
                case P2SelfPaper(eta):
                    scores.append(eta * p if masked else p)
                case RDM():
                    scores.append(p)
                case _:
                    scores.append(p if masked else float(state.confidence[row, i]))
        best = set(sorted(range(8), key=lambda i: -scores[i])[:5])
        assert set(edit.write[row].nonzero()[:, 0].tolist()) == {i for i in best if state.masked[row, i]}
        assert set(edit.remask[row].nonzero()[:, 0].tolist()) == {
            i for i in range(8) if i not in best and not state.masked[row, i]
        }


def test_a_tie_leaves_the_committed_token_where_it_is() -> None:
    state = partly_written(20, 8, 3, share=0.5)
    certain = Given(torch.full((8, 3), 1 / 3))
    at = moment(certain, state, step=3, steps=8)
    too_many = state.committed.sum(1) > 4
    for policy in (P2Self(0.0), P2Self(1.0), P2SelfPaper(1.0), RDM()):
        assert not policy.decide(at).remask[~too_many].any()


def by_hand(policy: Policy, alpha_t: float, alpha_s: float, t: float) -> float:
    """σ before ReMDM's bound."""
    match policy:
        case ReMDMCap(eta=eta):
            return eta
        case ReMDMRescale(eta=eta):
            return eta * min(1.0, (1 - alpha_s) / alpha_t)
        case ReMDMSwitch(eta=eta, t_switch=switch):
            return eta if t <= switch else 0.0
        case ReMDMLoop(eta=eta, plateau=plateau):
            return eta if plateau.t_off < t <= plateau.t_on else 0.0
        case DFMCorrector(strength=a, power=g):
            return a * (t * (1 - t)) ** g * (alpha_s - alpha_t) / alpha_t
        case ForwardBackward():
            return (alpha_s - alpha_t) / alpha_t
    raise AssertionError(policy)


INDEPENDENT = (
    ReMDMCap(eta=0.3),
    ReMDMRescale(eta=0.3),
    ReMDMSwitch(eta=0.3),
    ReMDMLoop(eta=0.1),
    ForwardBackward(),
    DFMCorrector(),
)


@pytest.mark.parametrize("policy", INDEPENDENT, ids=lambda policy: type(policy).__name__)
def test_probabilities_of_a_step(policy: Policy) -> None:
    """Committed: mask where its number is below σ. Masked: token where its number is below (α_s - (1 - σ)α_t)/(1 - α_t)."""
    steps = 16
    times = policy.times(steps)
    state = partly_written(30, 40, 3, share=0.5)
    some = 0
    for step in range(1, len(times) - 1):
        at = moment(Flat(), state, step=step, steps=steps, times=times, schedule=policy.schedule)
        t, alpha_t, alpha_s = float(times[step]), float(at.budget.alpha_t[0]), float(at.budget.alpha_s[0])
        sigma = min(by_hand(policy, alpha_t, alpha_s, t), 1.0, (1 - alpha_s) / alpha_t)
        rate = (alpha_s - (1 - sigma) * alpha_t) / (1 - alpha_t)
        edit = policy.decide(at)
        assert torch.equal(edit.remask, state.committed & (at.uniform(Purpose.REMASK) < sigma))
        assert torch.equal(edit.write, state.masked & (at.uniform(Purpose.ORDER) < rate))
        some += int(edit.remask.sum())
    assert some > 0


def test_dfm_steps() -> None:
    assert len(DFMCorrector().times(64)) - 1 == 72
    for steps in (1, 2, 3, 16, 128):
        times = DFMCorrector().times(steps)
        assert len(times) - 1 >= steps
        assert times[0] == 1
        assert times[-1] == 0
        assert (times.diff() < 0).all()
        for t, s in zip(times[1:-2].tolist(), times[2:-1].tolist(), strict=True):
            beta = 10 * (t * (1 - t)) ** 0.25
            assert (1 + beta) * (t - s) / t <= 1 + 1e-9  # mask → token
            assert beta * (t - s) / (1 - t) <= 1 + 1e-9  # token → mask
    torch.testing.assert_close(DFMCorrector(strength=0.0).times(10), Linear().alpha(torch.arange(11).double() / 10))


def test_conf_takes_back_sigma_max_tokens_a_step() -> None:
    """As published: σ_max <= 1 tokens a step in expectation, the less confident ones up to e times as often."""
    state = partly_written(4000, 10, 3, share=0.6)
    at = moment(Flat(), state, step=6, steps=10)
    edit = ReMDMConf().decide(at)
    sigma_max = float(at.budget.sigma_max[0])
    assert sigma_max == pytest.approx((1 - 0.7) / 0.6)
    some = state.committed.any(1)
    expected = sigma_max * float(some.sum())
    assert abs(int(edit.remask.sum()) - expected) < 4 * math.sqrt(expected)
    weights = (-state.confidence.double()).exp() * state.committed
    share = weights / weights.sum(1, keepdim=True).clamp_min(1e-9)
    assert torch.equal(edit.remask, state.committed & (at.uniform(Purpose.REMASK) < sigma_max * share))
    assert torch.equal(edit.write, state.masked & (at.uniform(Purpose.ORDER) < at.budget.commit_rate[:, None]))


BUDGETS = {
    "ReMDM-cap .04": (ReMDMCap(eta=0.04), 1.19),
    "ReMDM-cap .008": (ReMDMCap(eta=0.008), 0.24),
    "ReMDM-loop .02": (ReMDMLoop(eta=0.02), 0.58),
    "ReMDM-rescale .045": (ReMDMRescale(eta=0.045), 0.70),
    "ReMDM-conf": (ReMDMConf(), 0.04),
    "forward-backward": (ForwardBackward(), 0.98),
    "DFM": (DFMCorrector(), 6.10),
    "PRISM 2.56/N": (Pair(Counted(), LowQuality(CappedBinomial(2.56 / 64), Phase(on=0.5))), 0.88),
}


@pytest.mark.parametrize("name", BUDGETS)
def test_remasks_per_token_at_64_steps(name: str) -> None:
    """The budgets the published OpenWebText comparison spends (methods.md, section 0), L = 1024.

    The published samplers stop at t = 1e-5 and remask in their last step too; ours ends there, so it spends up to σ·α of one
    step less: 1/64 for forward–backward.
    """
    policy, published = BUDGETS[name]
    rows, length = 8, 1024
    per_token = record(Flat(2), masks(rows, length, 2), policy, steps=64)[-1].remasks.double() / length
    assert abs(per_token.mean() - published) < 0.02 + 4 * per_token.std() / math.sqrt(rows)


def test_forward_passes_of_dfm_are_its_own() -> None:
    assert record(Flat(), masks(1, 4, 3), DFMCorrector(), steps=8)[-1].forwards.tolist() == [29]


def test_every_method_has_its_own_name_and_cites_something() -> None:
    assert len({method.name for method in METHODS}) == len(METHODS)
    papers = (Path(prism.sampling.__file__).parent.parent / "papers.bib").read_text(encoding="utf-8")
    for method in METHODS:
        assert all(f"{{{key}," in papers for key in method.build(Settings()).cites)
        assert method.uses <= {*Settings.__dataclass_fields__, "schedule"}


def test_argmax_draws_make_confidence_top_probability() -> None:
    """LLaDA's greedy decoding: with argmax drafts, the drawn token's probability is the top one."""
    given = masks(4, 6, 3)
    one, other = (
        record(small_world(), given, Pair(Counted(order)), steps=3, draw=Draw(temperature=0.0))[-1].after.tokens
        for order in (Confidence(), TopProbability())
    )
    assert torch.equal(one, other)
