"""One model writes, another judges."""

from __future__ import annotations

import pytest
import torch
from tiny_models import MASK, SIZE, dit, shaken, tokens

from prism.models.attach import attach
from prism.models.heads import FinalLayerConfig
from prism.models.judge import Judged
from prism.noise import Noise
from prism.sampling.loop import generate
from prism.sampling.policy import Pair
from prism.sampling.remask import Fixed, LowQuality
from prism.sampling.unmask import Counted
from prism.state import start


def test_tokens_are_the_writers_and_quality_the_judges() -> None:
    writer, judge = shaken(dit(), seed=1), shaken(attach(shaken(dit(), seed=2), FinalLayerConfig(SIZE)), seed=3)
    x = tokens()
    everywhere = torch.ones_like(x, dtype=torch.bool)
    with torch.no_grad():
        found = Judged(writer, judge).predict(x)
        assert torch.equal(found.logits(everywhere), writer.predict(x).logits(everywhere))
        assert torch.equal(found.quality, judge.predict(x).quality)
        assert not torch.equal(found.logits(everywhere), judge.predict(x).logits(everywhere))


def test_every_step_costs_two_forward_passes() -> None:
    writer, judge = shaken(dit()), attach(dit(), FinalLayerConfig(SIZE))
    state = start(torch.full((2, 6), MASK), MASK)
    policy = Pair(Counted(), LowQuality(Fixed(1)))
    done = generate(Judged(writer.eval(), judge.eval()), state, policy, steps=6, noise=Noise.rows(0, 2))
    assert done.forwards.tolist() == [12, 12]
    assert not (done.tokens == MASK).any()


def test_who_cannot_judge() -> None:
    with pytest.raises(ValueError, match="no quality head"):
        Judged(dit(), attach(dit(), None, tune_backbone=True))
    with pytest.raises(ValueError, match="no quality head"):
        Judged(dit(), dit())


def test_judge_and_writer_are_both_there_to_be_moved_and_counted() -> None:
    writer, judge = dit(), attach(dit(), FinalLayerConfig(SIZE))
    both = Judged(writer, judge)
    assert len(list(both.parameters())) == len(list(writer.parameters())) + len(list(judge.parameters()))
    assert both.quality_head is judge.quality_head
    assert all(weight.dtype == torch.float64 for weight in both.double().parameters())
