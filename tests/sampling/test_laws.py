"""What every method promises. An entry in METHODS inherits all of this."""

from __future__ import annotations

import functools
import itertools
import math
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from stand_ins import Flat, Mixing, check_edits, check_end, masks, puzzles, record, small_world, tiny_dit
from torch import Tensor

from prism.noise import Noise
from prism.sampling.draw import Draw
from prism.sampling.loop import Denoiser, sample
from prism.sampling.order import ALL_ORDERS, Margin, RandomOrder
from prism.sampling.policies import METHODS, Settings
from prism.sampling.policy import Law, Moment, Never, Pair, Policy
from prism.sampling.remask import ALL_REMASKERS, Binomial, CappedBinomial, Centred, Every, Fixed
from prism.sampling.unmask import ALL_UNMASKERS, Counted, CountedAndSure, EntropyBounded, Factor, Threshold
from prism.schedule import Phase
from prism.state import Edit, State, Step, start


@dataclass(frozen=True)
class Case:
    name: str
    policy: Policy


AMOUNTS = (Fixed(2), Binomial(0.4), CappedBinomial(0.4), Centred(3), Every())


def _cases() -> list[Case]:
    """Every method with both orders, all amounts, a phase and two strengths, as far as it reads them."""
    cases = []
    for method in METHODS:
        settings = [Settings()]
        if "order" in method.uses:
            settings = [Settings(order=order) for order in (RandomOrder(), Margin())]
        if "amount" in method.uses:
            settings = [replace(s, amount=amount) for s in settings for amount in AMOUNTS]
            settings.append(Settings(amount=Fixed(1), phase=Phase(on=0.5, off=0.8)))
        if "doubt" in method.uses:
            settings += [replace(s, amount=Every(), doubt=0.4) for s in settings[:2]]
        if "eta" in method.uses:
            settings.append(Settings(eta=0.5))
        if "threshold" in method.uses:
            settings += [replace(s, threshold=0.6) for s in settings]
        for s in settings:
            words = [type(s.order).__name__] if "order" in method.uses else []
            words += [f"{s.amount}"] if "amount" in method.uses else []
            words += [f"doubt={s.doubt}"] if s.doubt is not None else []
            words += [f"eta={s.eta}"] if s.eta is not None else []
            words += [f"threshold={s.threshold}"] if s.threshold is not None else []
            cases.append(Case(" ".join([method.name, *words]), method.build(s)))
    return cases


def _parts() -> list[Case]:
    """Every order, unmasker and remasker, in combinations no method of the list uses."""
    cases = [Case(f"{order}", Pair(Counted(order))) for order in ALL_ORDERS]
    cases += [Case(f"{unmasker}", Pair(unmasker)) for unmasker in ALL_UNMASKERS]
    for remasker, unmasker in zip(itertools.cycle(ALL_REMASKERS), ALL_UNMASKERS, strict=False):
        cases.append(Case(f"{unmasker} {remasker.__name__}", Pair(unmasker, remasker(Fixed(2)))))
    return cases


CASES = _cases()
ONE_EACH = [method.build(Settings(amount=Fixed(2))) for method in METHODS]
names = [method.name for method in METHODS]
every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
every_part = pytest.mark.parametrize("case", _parts(), ids=lambda case: case.name)
every_method = pytest.mark.parametrize("policy", ONE_EACH, ids=names)


@functools.cache
def _dit() -> Denoiser:
    return tiny_dit()


def _committed(state: State) -> Tensor:
    return (~state.frozen & (state.tokens != state.mask_id)).sum(1)


def _alphas(policy: Policy, steps: int) -> list[float]:
    return policy.schedule.alpha(policy.times(steps)).tolist()


def _never_remasks(policy: Policy) -> bool:
    return isinstance(policy, Pair) and isinstance(policy.remasker, Never)


def _sets_its_own_pace(policy: Policy) -> bool:
    return isinstance(policy, Pair) and isinstance(policy.unmasker, (Threshold, Factor, EntropyBounded))


def _keeps_to_the_schedule_at_least(policy: Policy) -> bool:
    return isinstance(policy, Pair) and isinstance(policy.unmasker, CountedAndSure)


def check_law(steps: list[Step], policy: Policy, count: int) -> None:
    """The number of committed tokens after every step of every row, for sequences written in one block."""
    alphas = _alphas(policy, count)
    for step in steps:
        committed, earlier = _committed(step.after).tolist(), _committed(step.before).tolist()
        for row, place in enumerate(step.before.step.tolist()):
            length = int((~step.before.frozen[row]).sum())
            if place + 1 >= len(alphas) or length == 0:
                assert committed[row] == earlier[row] == length
            elif policy.law is Law.EXACT:
                assert committed[row] == math.ceil(alphas[place + 1] * length - 1e-9)
            elif _keeps_to_the_schedule_at_least(policy):
                assert committed[row] >= math.ceil(alphas[place + 1] * length - 1e-9)
                assert committed[row] > earlier[row] or committed[row] == length or step.edit.remask[row].any()
            elif _never_remasks(policy):
                at_least = _sets_its_own_pace(policy) and earlier[row] < length
                assert committed[row] >= earlier[row] + at_least


def check(model: Denoiser, given: State, policy: Policy, *, steps: int, **options: Any) -> list[Step]:
    recorded = record(model, given, policy, steps=steps, **options)
    check_edits(recorded, given)
    check_law(recorded, policy, steps)
    check_end(recorded, given)
    return recorded


@every_case
def test_laws_on_the_oracle(case: Case) -> None:
    for count in (4, 9):  # fewer steps than tokens, and more
        check(small_world(), puzzles(6, 3, (0, 1, 2)), case.policy, steps=count)


@every_part
def test_laws_of_the_parts(case: Case) -> None:
    for count in (1, 4):
        check(small_world(), puzzles(6, 3, (0, 1, 2)), case.policy, steps=count)


@every_method
def test_laws_on_a_network(policy: Policy) -> None:
    for count in (1, 2, 7):
        check(_dit(), puzzles(12, 0, (1, 2, 3, 4, 5)), policy, steps=count, draw=Draw(nucleus=0.9))


EXPECTED = [case for case in CASES if case.policy.law is Law.EXPECTED]


@pytest.mark.parametrize("case", EXPECTED, ids=lambda case: case.name)
def test_the_law_in_expectation(case: Case) -> None:
    """Positions of a ReMDM chain are independent, so the count after each step is Binomial(n, α(s)), whatever the order."""
    rows, length, count = 256, 32, 8
    alphas = _alphas(case.policy, count)
    n = rows * length
    for step, alpha in zip(record(Flat(), masks(rows, length, 3), case.policy, steps=count), alphas[1:], strict=True):
        spread = math.sqrt(n * alpha * (1 - alpha))
        assert abs(int(_committed(step.after).sum()) - n * alpha) <= 4 * spread + 1e-6


@every_method
def test_one_seed_one_result(policy: Policy) -> None:
    once, again, other = (record(_dit(), masks(4, 12, 0), policy, steps=3, seed=seed)[-1].after for seed in (1, 1, 2))
    assert torch.equal(once.tokens, again.tokens)
    assert torch.equal(once.confidence, again.confidence)
    assert not torch.equal(once.tokens, other.tokens)


@every_case
def test_rows_of_a_batch_do_not_influence_each_other(case: Case) -> None:
    """A row alone, and the rows in another order with padding behind them, all give the same tokens."""
    model, given = Mixing(), puzzles(9, 0, (1, 2, 3, 4, 5))
    together = record(model, given, case.policy, steps=4, seed=3)[-1]

    alone = record(model, start(given.tokens[3:4], 0), case.policy, steps=4, seed=3, first=3)[-1]
    assert torch.equal(alone.after.tokens[0], together.after.tokens[3])
    assert (alone.forwards[0], alone.remasks[0]) == (together.forwards[3], together.remasks[3])

    order = torch.tensor([3, 1, 5, 0, 2, 4])
    wide = torch.cat([given.tokens[order], torch.tensor([[0, 3, 0]]).expand(6, 3)], dim=1)
    state = start(wide, 0, lengths=torch.full((6,), 9))
    noise = Noise(Noise.rows(3, 6).keys[order])
    shuffled = list(sample(model, state, case.policy, steps=4, noise=noise))[-1]
    assert torch.equal(shuffled.after.tokens[:, :9], together.after.tokens[order])
    assert torch.equal(shuffled.after.tokens[:, 9:], wide[:, 9:])
    assert torch.equal(shuffled.forwards, together.forwards[order])


@pytest.mark.parametrize("name", ["prism", "remdm-cap", "p2-joint", "threshold"])
def test_a_network_sees_neither_padding_nor_its_neighbours(name: str) -> None:
    """Rows of different lengths in one padded batch, each compared with itself alone and unpadded."""
    policy = ONE_EACH[names.index(name)]
    lengths = [12, 7, 4]
    rows = torch.zeros(3, 12, dtype=torch.long)
    rows[0, 3] = rows[1, 0] = rows[2, 3] = 4
    rows[1, 7:], rows[2, 4:] = 5, 2
    batch = record(_dit(), start(rows, 0, lengths=torch.tensor(lengths)), policy, steps=4)[-1]
    for row, length in enumerate(lengths):
        alone = record(_dit(), start(rows[row : row + 1, :length], 0), policy, steps=4, first=row)[-1]
        assert torch.equal(alone.after.tokens[0], batch.after.tokens[row, :length])
        torch.testing.assert_close(alone.after.confidence[0], batch.after.confidence[row, :length])


@every_method
def test_blocks_are_written_left_to_right(policy: Policy) -> None:
    given = puzzles(12, 0, (1, 2, 3, 4, 5))
    steps = record(Mixing(), given, policy, steps=8, block=4)
    check_edits(steps, given)
    check_end(steps, given)
    free = ~given.frozen
    block_of = (free.long().cumsum(1) - 1) // 4
    current = torch.zeros(len(free), dtype=torch.long)
    for step in steps:
        for row in range(len(free)):
            edited = (step.edit.write | step.edit.remask)[row]
            if not edited.any():
                continue
            blocks = block_of[row][edited].unique()
            assert len(blocks) == 1
            assert blocks[0] >= current[row]
            current[row] = blocks[0]
            earlier, later = (free[row] & side for side in (block_of[row] < blocks[0], block_of[row] > blocks[0]))
            assert (step.after.tokens[row][earlier] != 0).all()
            assert (step.after.tokens[row][later] == 0).all()


@every_method
def test_forbidden_tokens_are_never_drawn(policy: Policy) -> None:
    """The mask has id 0 here and ids 2 and 4 are suppressed, though the network likes them."""
    model = Mixing(suppressed=(2, 4))
    for draw in (Draw(temperature=0.0), Draw(temperature=3.0, top_k=5), Draw(nucleus=0.99, keep_crossing=True)):
        tokens = record(model, masks(8, 10, 0), policy, steps=2, draw=draw)[-1].after.tokens
        assert set(tokens.unique().tolist()) <= {1, 3, 5}


@every_method
def test_forward_passes(policy: Policy) -> None:
    """Counted methods take exactly the steps asked for while there is a token for each, and stop when all is written."""
    forwards = record(Mixing(), puzzles(12, 0, (1, 2, 3, 4, 5)), policy, steps=4)[-1].forwards.tolist()
    long = record(Mixing(), masks(2, 3, 0), policy, steps=20)
    most = len(policy.times(4)) - 1
    assert max(forwards) <= most
    if policy.law is Law.EXACT:
        assert forwards == [4, 4, 4, 4, 1, 0]  # a single mask is committed at once: ⌈1/4⌉ = 1
        assert long[-1].forwards.tolist() == [14, 14]  # ⌈3(l + 1)/20⌉ = 3 from l = 13 on
        assert len(long) == 14
    if not policy.rests_when_full:
        assert forwards == [most] * 5 + [0]
        assert (long[-1].forwards == len(policy.times(20)) - 1).all()
    else:
        assert not long[-1].after.masked.any()


def test_the_checks_can_fail() -> None:
    """A policy that writes one token too few breaks the law of counted policies."""

    class Lazy(Pair):
        def decide(self, now: Moment) -> Edit:
            edit = super().decide(now)
            return replace(edit, write=edit.write & (edit.write.cumsum(1) > 1))

    with pytest.raises(AssertionError):
        check(small_world(), masks(2, 6, 3), Lazy(Counted()), steps=3)
