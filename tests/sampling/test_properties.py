"""The laws over whatever hypothesis comes up with: shapes, prompts, padding, blocks, schedules, steps, amounts, policies."""

from __future__ import annotations

import math

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from stand_ins import Mixing, check_edits, check_end

from prism.noise import Noise
from prism.sampling.draw import Draw
from prism.sampling.loop import sample
from prism.sampling.order import ALL_ORDERS
from prism.sampling.policies import METHODS, Settings
from prism.sampling.policy import Law, Policy
from prism.sampling.remask import Binomial, CappedBinomial, Centred, Fixed
from prism.schedule import Cosine, Linear, Phase, Plateau, Schedule
from prism.state import State, Step, start

MODEL = Mixing(suppressed=(4,))

amounts = st.one_of(
    st.integers(0, 12).map(Fixed),
    st.integers(0, 12).map(Centred),
    st.floats(0, 1).map(Binomial),
    st.floats(0, 1).map(CappedBinomial),
)
phases = st.tuples(st.floats(0, 1), st.floats(0, 1)).map(lambda ends: Phase(min(ends), max(ends)))
schedules = st.sampled_from([Linear(), Cosine(), Plateau(), Plateau(t_on=0.9, t_off=0.5, alpha_on=0.2)])
draws = st.builds(
    Draw,
    temperature=st.sampled_from([0.0, 0.5, 1.0, 2.0]),
    top_k=st.sampled_from([None, 1, 3]),
    nucleus=st.sampled_from([0.0, 0.3, 0.9, 1.0]),
    keep_crossing=st.booleans(),
)


@st.composite
def policies(draw: st.DrawFn) -> Policy:
    method = draw(st.sampled_from(METHODS))
    eta = draw(st.one_of(st.none(), st.floats(0, 1)))
    return method.build(Settings(draw(st.sampled_from(ALL_ORDERS)), draw(amounts), draw(phases), eta))


@st.composite
def states(draw: st.DrawFn) -> State:
    """Up to four rows of up to ten positions, prompts anywhere, padding behind some."""
    rows, width = draw(st.integers(1, 4)), draw(st.integers(1, 10))
    shape = st.lists(
        st.lists(st.sampled_from([0, 0, 1, 2, 3, 5]), min_size=width, max_size=width), min_size=rows, max_size=rows
    )
    tokens = torch.tensor(draw(shape))
    lengths = None
    if draw(st.booleans()):
        lengths = torch.tensor(draw(st.lists(st.integers(1, width), min_size=rows, max_size=rows)))
    return start(tokens, 0, lengths=lengths)


def check_counts(steps: list[Step], schedule: Schedule, count: int, block: int | None) -> None:
    """⌈α(s)·L⌉ tokens of the current block after every step; time runs afresh in each block, from its first step."""
    for step in steps:
        for row in range(len(step.before.tokens)):
            free = ~step.before.frozen[row]
            window = step.before.editable[row]
            if not window.any():
                continue
            blocks = -(-int(free.sum()) // (block or 99))
            current = int((free.long().cumsum(0) - 1)[window][0]) // (block or 99)
            spent = [count // blocks + (b < count % blocks) for b in range(current + 1)]
            place = int(step.before.step[row]) - sum(spent[:-1])
            alpha = float(schedule.alpha(torch.tensor(1 - (place + 1) / spent[-1], dtype=torch.float64)))
            assert int(step.after.committed[row].sum()) == math.ceil(alpha * int(window.sum()) - 1e-9)


@settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(
    policies(),
    states(),
    schedules,
    draws,
    st.integers(1, 14),
    st.one_of(st.none(), st.integers(1, 6)),
    st.integers(0, 9),
)
def test_laws(
    policy: Policy, state: State, schedule: Schedule, draw: Draw, count: int, block: int | None, seed: int
) -> None:
    free = (~state.frozen).sum(1)
    blocks = torch.ceil(free / block).long() if block else (free > 0).long()
    count = max(count, int(blocks.max()))  # at least one step for every block
    noise = Noise.rows(seed, len(state.tokens))
    steps = list(sample(MODEL, state, policy, steps=count, noise=noise, draw=draw, schedule=schedule, block=block))
    assert bool(steps) == bool(free.any())
    if not steps:
        return
    check_edits(steps, state)
    check_end(steps, state)
    assert set(steps[-1].after.tokens[~state.frozen].tolist()) <= {1, 2, 3, 5}
    if policy.law is Law.EXACT:
        assert int(steps[-1].forwards.max()) <= count
        check_counts(steps, schedule, count, block)
