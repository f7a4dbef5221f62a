"""The policy for puzzles: what is sure, a guess, and the way back to the beginning."""

from __future__ import annotations

import pytest
import torch
from stand_ins import Given, masks, moment, record
from torch import Tensor

from prism.sampling.draw import Draw
from prism.sampling.policies.restart import Restart
from prism.state import State, start

SURE, OPEN = [0.9998, 0.0001, 0.0001], [0.6, 0.3, 0.1]


def board(written: int, length: int = 12) -> State:
    """The first positions written by the policy, the others masked."""
    tokens = torch.full((1, length), 3)
    tokens[:, :written] = 0
    return start(tokens, 3, frozen=torch.zeros(1, length, dtype=torch.bool))


def model(sure: list[int], quality: float = 0.999, length: int = 12) -> Given:
    rows = [SURE if i in sure else OPEN for i in range(length)]
    return Given(torch.tensor(rows, dtype=torch.float64), torch.full((length,), quality))


def places(mask: Tensor) -> list[int]:
    return mask[0].nonzero()[:, 0].tolist()


def test_what_is_sure_is_written_and_nothing_else() -> None:
    edit = Restart().decide(moment(model([4, 7]), board(2), step=3, steps=50))
    assert places(edit.write) == [4, 7]
    assert places(edit.remask) == []


def test_a_guess_is_one_position_in_proportion_to_the_margins() -> None:
    state = start(torch.full((4000, 3), 3), 3)
    probabilities = torch.tensor([[0.6, 0.3, 0.1], [0.8, 0.2, 0.0], [0.55, 0.45, 0.0]])  # margins 0.3, 0.6, 0.1
    write = Restart().decide(moment(Given(probabilities), state, step=0, steps=50)).write
    assert (write.sum(1) == 1).all()
    torch.testing.assert_close(write.double().mean(0), torch.tensor([0.3, 0.6, 0.1]).double(), atol=0.03, rtol=0)


@pytest.mark.parametrize(("written", "back"), [(8, False), (9, True)])
def test_few_masks_are_not_guessed_at(written: int, back: bool) -> None:
    edit = Restart().decide(moment(model([]), board(written), step=20, steps=50))
    assert places(edit.remask) == (list(range(written)) if back else [])
    assert bool(edit.write.any()) is not back


def test_the_last_mask_waits_for_the_verdict() -> None:
    everything = list(range(12))
    edit = Restart().decide(moment(model(everything), board(8), step=20, steps=50))
    assert len(places(edit.write)) == 3  # of four
    right = Restart().decide(moment(model(everything), board(11), step=21, steps=50))
    assert places(right.write) == [11]
    wrong = Restart().decide(moment(model(everything, quality=0.98), board(11), step=21, steps=50))
    assert places(wrong.write) == []
    assert places(wrong.remask) == everything[:11]


def test_no_time_to_begin_again() -> None:
    doubted = model(list(range(12)), quality=0.5)
    for step, back in ((43, True), (44, False), (48, False), (49, False)):
        edit = Restart().decide(moment(doubted, board(11), step=step, steps=50))
        assert bool(edit.remask.any()) is back
        assert bool(edit.write.any()) is not back


def test_a_sure_model_takes_two_steps_and_a_hopeless_one_ends() -> None:
    sure = record(model(list(range(12))), masks(2, 12, 3), Restart(), steps=20, draw=Draw(temperature=0.0))
    assert sure[-1].forwards.tolist() == [2, 2]
    hopeless = record(model([], quality=0.1), masks(2, 12, 3), Restart(), steps=20)
    assert (hopeless[-1].remasks > 0).all()
    assert not hopeless[-1].after.masked.any()


def test_settings_are_shares() -> None:
    with pytest.raises(ValueError, match="quality="):
        Restart(quality=2.0)
