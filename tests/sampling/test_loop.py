from __future__ import annotations

import itertools

import pytest
import torch
from stand_ins import Flat, Given, Mixing, masks, method, puzzles, record
from torch import Tensor

from prism.noise import Noise
from prism.sampling.draw import Draw
from prism.sampling.loop import generate, sample
from prism.sampling.order import Confidence, Leftmost
from prism.sampling.policies import METHODS, Settings
from prism.sampling.policy import Pair, Policy
from prism.sampling.remask import Anywhere, Fixed, LowQuality
from prism.sampling.unmask import Counted, Threshold
from prism.schedule import Cosine, Plateau
from prism.state import Prediction, Step, start


class Spy(Mixing):
    """Counts forward passes, and the rows of every call of the vocabulary head."""

    def __init__(self) -> None:
        super().__init__()
        self.calls, self.rows = 0, []  # type: ignore[var-annotated]

    def predict(self, tokens: Tensor, attend: Tensor | None = None) -> Prediction:
        self.calls += 1
        assert not torch.is_grad_enabled()
        return super().predict(tokens, attend)

    def unembed(self, hidden: Tensor) -> Tensor:
        self.rows.append(len(hidden))
        return super().unembed(hidden)


def test_only_the_rows_written_are_computed() -> None:
    """With a random order the vocabulary head sees the committed rows and no others."""
    model = Spy()
    steps = record(model, masks(3, 12, 0), method("prism", Settings(amount=Fixed(2))), steps=6)
    assert model.calls == 6
    assert model.rows == [int(step.edit.write.sum()) for step in steps]


@pytest.mark.parametrize("name", ["prism", "remdm-cap", "threshold"])
@pytest.mark.parametrize("block", [None, 3])
def test_a_run_can_be_gone_on_with(name: str, block: int | None) -> None:
    """By some of its rows, from any step: the steps that were left, and not one more."""
    model, policy = Spy(), method(name, Settings(amount=Fixed(1)))
    steps = record(model, masks(3, 12, 0), policy, steps=8, block=block)
    rows = torch.tensor([2, 0])
    for place in (0, 3):
        model.calls = 0
        noise = Noise(Noise.rows(0, 3).keys[rows])
        rest = list(sample(model, steps[place].after.rows(rows), policy, steps=8, noise=noise, block=block))
        assert model.calls <= len(steps) - place - 1
        assert torch.equal(rest[-1].after.tokens, steps[-1].after.tokens[rows])
        assert torch.equal(steps[place].forwards[rows] + rest[-1].forwards, steps[-1].forwards[rows])


def test_forward_passes_of_a_costly_model_count() -> None:
    model = Flat()
    model.forwards = 2
    assert record(model, masks(2, 4, 3), Pair(Counted()), steps=4)[-1].forwards.tolist() == [8, 8]


def test_early_stop() -> None:
    """A policy that is sure of everything ends after one step, and rows that end early cost nothing more."""
    sure = Given(torch.tensor([[0.98, 0.01, 0.01]]).expand(6, 3))
    steps = record(sure, masks(2, 6, 3), Pair(Threshold(0.9)), steps=6)
    assert len(steps) == 1
    assert steps[-1].forwards.tolist() == [1, 1]

    unsure = torch.cat([sure.logits.exp()[:3, :3], torch.full((3, 3), 1 / 3)])
    rows = torch.tensor([[3, 3, 3, 0, 0, 0], [3, 3, 3, 3, 3, 3]])
    steps = record(Given(unsure), start(rows, 3), Pair(Threshold(0.9)), steps=6)
    assert steps[-1].forwards.tolist() == [1, 4]
    assert len(steps) == 4


def test_nothing_to_generate() -> None:
    given = start(torch.tensor([[1, 2], [3, 3]]), 0)
    assert record(Mixing(), given, Pair(Counted()), steps=3) == []
    result = generate(Mixing(), given, Pair(Counted()), steps=3)
    assert torch.equal(result.tokens, given.tokens)
    assert result.forwards.tolist() == [0, 0]


@pytest.mark.parametrize(
    "policy", [method.build(Settings(amount=Fixed(2))) for method in METHODS], ids=lambda p: str(p)[:40]
)
def test_given_tokens_that_are_not_frozen(policy: Policy) -> None:
    """They count as generated: they may be taken back, and nothing is masked in the end."""
    tokens = torch.tensor([[1, 2, 3, 4, 5, 1, 2, 3], [1, 0, 0, 0, 0, 0, 0, 2], [1, 2, 3, 4, 0, 0, 0, 0]])
    frozen = torch.zeros_like(tokens, dtype=torch.bool)
    frozen[:, 0] = True
    steps = record(Mixing(), start(tokens, 0, frozen=frozen), policy, steps=4)
    assert (steps[-1].after.tokens != 0).all()
    assert (steps[-1].after.tokens[:, 0] == 1).all()


def test_flipflops() -> None:
    """With one possible token every token that was taken back comes back the same; with a hundred hardly any does."""
    policy = Pair(Counted(), Anywhere(Fixed(2)))
    only = record(Given(torch.tensor([[1.0, 0.0]]).expand(12, 2)), masks(3, 12, 2), policy, steps=12)[-1]
    assert torch.equal(only.flipflops, only.remasks)
    assert (only.remasks > 0).all()
    many = record(Flat(1000), masks(3, 12, 1000), policy, steps=12)[-1]
    assert many.flipflops.sum() <= 1


def test_generate_is_sample_to_its_end() -> None:
    seen: list[Step] = []
    noise = Noise.rows(5, 6)
    arguments = {"steps": 5, "noise": noise, "draw": Draw(nucleus=0.9), "schedule": Cosine(), "block": 3}
    given, policy = puzzles(9, 0, (1, 2, 3)), method("prism")
    result = generate(Mixing(), given, policy, watch=seen.append, **arguments)  # type: ignore[arg-type]
    last = list(sample(Mixing(), given, policy, **arguments))[-1]  # type: ignore[arg-type]
    assert torch.equal(result.tokens, last.after.tokens)
    assert torch.equal(result.confidence, last.after.confidence)
    assert torch.equal(result.remasks, last.remasks)
    assert len(seen) > 0
    assert all(torch.equal(a.after.tokens, b.before.tokens) for a, b in itertools.pairwise(seen))


def test_a_run_may_be_taken_up_in_the_middle() -> None:
    """The state carries its step, so the rest of a run follows from any of its states."""
    given, policy = masks(3, 12, 0), method("remdm-cap")
    steps = record(Mixing(), given, policy, steps=6)
    rest = record(Mixing(), steps[2].after, policy, steps=6)
    assert torch.equal(rest[-1].after.tokens, steps[-1].after.tokens)
    assert rest[-1].forwards.tolist() == [3, 3, 3]


def test_the_generator_leaves_gradients_as_they_were() -> None:
    for _ in sample(Mixing(), masks(1, 4, 0), Pair(Counted()), steps=2):
        assert torch.is_grad_enabled()


@pytest.mark.parametrize(("steps", "block", "expected"), [(8, 4, [3, 3, 1]), (7, 5, [4, 3]), (3, 4, [1, 1, 1])])
def test_steps_are_shared_among_blocks(steps: int, block: int, expected: list[int]) -> None:
    """The first blocks take what does not divide; a block that is full does not wait (the third of the first case)."""
    recorded = record(Flat(), masks(1, 9, 3), Pair(Counted(Leftmost())), steps=steps, block=block)
    places = [step.edit.write[0].nonzero()[:, 0].max().item() // block for step in recorded]
    assert [places.count(b) for b in range(len(expected))] == expected


def test_blocks_count_free_positions_and_rows_differ() -> None:
    """Prompts between them do not use up a block, and a row of one block has all the steps for it."""
    tokens = torch.zeros(2, 8, dtype=torch.long)
    tokens[0, [1, 2, 5]] = 4
    tokens[1, 3:] = 4
    steps = record(Mixing(), start(tokens, 0), Pair(Counted(Leftmost())), steps=3, block=3)
    first = [step.before.editable[0].nonzero()[:, 0].tolist() for step in steps]
    assert first == [[0, 3, 4], [0, 3, 4], [6, 7]]
    assert [step.edit.write[1].sum().item() for step in steps] == [1, 1, 1]


def test_the_remasker_sees_its_block_alone() -> None:
    steps = record(Flat(), masks(4, 12, 3), Pair(Counted(), LowQuality(Fixed(1))), steps=12, block=6)
    remasked = [step.edit.remask[0].sum().item() for step in steps]
    assert remasked == [0, 0, 1, 1, 1, 0] * 2  # 1 < committed < 6 - 1 in either block


def test_another_schedule() -> None:
    for schedule in (Cosine(), Plateau(t_on=0.8, t_off=0.2, alpha_on=0.5)):
        steps = record(Flat(), masks(2, 40, 3), method("prism"), steps=10, schedule=schedule)
        for place, step in enumerate(steps):
            alpha = schedule.alpha(torch.tensor(1 - (place + 1) / 10, dtype=torch.float64))
            assert step.after.committed.sum(1).tolist() == [int(torch.ceil(alpha * 40 - 1e-9))] * 2


def test_the_default_noise_is_seed_zero() -> None:
    plain = list(sample(Mixing(), masks(2, 6, 0), Pair(Counted()), steps=3))
    assert torch.equal(
        plain[-1].after.tokens, record(Mixing(), masks(2, 6, 0), Pair(Counted()), steps=3)[-1].after.tokens
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"steps": 0}, "steps=0"),
        ({"steps": 4, "block": 0}, "block=0"),
        ({"steps": 2, "block": 2}, "3 blocks"),
        ({"steps": 2, "noise": Noise.rows(0, 3)}, "3 rows"),
    ],
)
def test_bad_calls(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        list(sample(Mixing(), masks(2, 6, 0), Pair(Counted()), **arguments))  # type: ignore[arg-type]


def test_a_missing_head_is_named() -> None:
    class Headless(Mixing):
        def predict(self, tokens: Tensor, attend: Tensor | None = None) -> Prediction:
            return super(Mixing, self).predict(tokens, attend)

    with pytest.raises(ValueError, match="no quality head"):
        record(Headless(), masks(1, 8, 0), method("prism"), steps=8)


def test_a_token_of_vanishing_probability_is_still_committed() -> None:
    """Hot draws pick tokens whose probability is 0 in float32; their confidence is then 0 and their turn still comes."""
    extreme = Given(torch.tensor([[1.0, 1e-60, 1e-60]], dtype=torch.float64).expand(6, 3))
    rows = torch.tensor([[0, 0, 3, 3, 3, 3]])
    for name in ("p2-joint", "rdm", "rcr"):
        steps = record(extreme, start(rows, 3), method(name), steps=2, draw=Draw(temperature=50.0))
        assert steps[0].after.committed.sum() == 2
    by_confidence = Pair(Counted(Confidence()))
    steps = record(extreme, start(rows, 3), by_confidence, steps=2, draw=Draw(temperature=50.0))
    assert steps[0].after.committed.sum() == 2
