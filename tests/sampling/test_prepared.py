"""The prepared sampler against the loop it stands for, and its step as one piece of work for the compiler."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch

import prism
from prism.noise import Noise
from prism.sampling.draw import Draw
from prism.sampling.loop import Plan, Progress, generate, turn
from prism.sampling.policies import METHODS, Method
from prism.sampling.policy import ranks_by_counting, ranks_by_sorting
from prism.sampling.prepared import Prepared
from prism.state import SMALL_VOCABULARY, State, start

LENGTH = 12


def model(vocabulary: int = 7) -> prism.PrismModel:
    torch.manual_seed(0)
    config = prism.DiTConfig(vocab_size=vocabulary, mask_id=0, length=LENGTH, hidden_size=16, blocks=1, heads=2)
    backbone = prism.DiT(config)
    for weight in backbone.parameters():
        torch.nn.init.normal_(weight, std=0.15)
    tuned = prism.attach(backbone, prism.FinalLayerConfig(16))
    torch.nn.init.normal_(tuned.quality_head.output_layer.linear.weight)
    return tuned.eval().double()  # products of other shapes round otherwise


def puzzle(rows: int, seed: int) -> State:
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(1, 7, (rows, LENGTH), generator=generator)
    return start(tokens * (torch.rand(rows, LENGTH, generator=generator) < 0.2), 0)


def built(method: Method) -> prism.Policy:
    return method.build(prism.Settings(amount=prism.Fixed(2)))


POLICIES: dict[str, prism.Policy] = {}
for one in METHODS:  # some names stand for equal policies, and differ in the model they are for
    if built(one) not in POLICIES.values():
        POLICIES[one.name] = built(one)
NAMES = list(POLICIES)
POLICIES["prism, doubting"] = prism.Pair(prism.Counted(), prism.LowQuality(prism.Every(), doubt=0.5))
POLICIES["prism, sure"] = prism.Pair(prism.CountedAndSure(prism.Margin(), 0.3), prism.LowQuality(prism.Fixed(2)))


@pytest.mark.parametrize("vocabulary", [7, SMALL_VOCABULARY + 44])
@pytest.mark.parametrize("policy", POLICIES.values(), ids=list(POLICIES))
def test_a_prepared_sampler_is_the_loop(policy: prism.Policy, vocabulary: int) -> None:
    """Batch after batch, of one shape and of another; a large vocabulary is read in places whose number is only bounded."""
    denoiser = model(vocabulary)
    prepared = Prepared(denoiser, policy, steps=6, draw=Draw(nucleus=0.9), waits=False)
    for rows, seed in ((3, 0), (3, 1), (2, 2)):
        state, noise = puzzle(rows, seed), Noise.rows(seed, rows)
        expected = generate(denoiser, state, policy, steps=6, noise=noise, draw=Draw(nucleus=0.9))
        found = prepared(state, noise)
        assert torch.equal(found.tokens, expected.tokens)
        torch.testing.assert_close(found.confidence, expected.confidence)
        for count in ("forwards", "remasks", "flipflops"):
            assert torch.equal(getattr(found, count), getattr(expected, count))


def test_a_run_without_room_is_done_again() -> None:
    """A sure model commits everything at once, for which nothing was prepared."""
    sure, policy = model(SMALL_VOCABULARY + 44), prism.Pair(prism.Threshold(1e-6))
    prepared = Prepared(sure, policy, steps=12, waits=False)
    state, noise = start(torch.zeros(4, LENGTH, dtype=torch.long), 0), Noise.rows(0, 4)
    found = prepared(state, noise)
    assert prepared.room >= 4 * LENGTH
    assert torch.equal(found.tokens, generate(sure, state, policy, steps=12, noise=noise).tokens)
    assert found.forwards.tolist() == [1, 1, 1, 1]


def test_a_run_without_room_is_not_done_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many steps write few tokens each, and PRISM many more: those it took back."""
    wide, steps, calls = model(SMALL_VOCABULARY + 44), 12, []
    policy = prism.Pair(prism.Counted(), prism.LowQuality(prism.Fixed(3)))
    predict = wide.predict

    def counted(*given: Any) -> Any:
        calls.append(given)
        return predict(*given)

    monkeypatch.setattr(wide, "predict", counted)
    monkeypatch.setattr("prism.sampling.prepared._ROOM", 0)  # a token a row, not enough once three go back
    monkeypatch.setattr("prism.sampling.prepared._PATIENCE", 4)
    state, noise = start(torch.zeros(4, LENGTH, dtype=torch.long), 0), Noise.rows(0, 4)
    found = Prepared(wide, policy, steps=steps, waits=False)(state, noise)
    assert found.remasks.sum() > 0
    assert steps < len(calls) < 2 * steps
    assert torch.equal(found.tokens, generate(wide, state, policy, steps=steps, noise=noise).tokens)


def test_ranks_by_counting_are_ranks_by_sorting() -> None:
    scores = torch.randint(0, 6, (50, 17), generator=torch.Generator().manual_seed(0)).double()
    scores[scores == 0] = -torch.inf
    assert torch.equal(ranks_by_counting(scores), ranks_by_sorting(scores))


def test_blocks_and_results_that_stay() -> None:
    denoiser, policy = model(), POLICIES["prism"]
    prepared = Prepared(denoiser, policy, steps=6, block=4)
    first = prepared(puzzle(2, 0), Noise.rows(0, 2))
    kept = first.tokens.clone()
    prepared(puzzle(2, 1), Noise.rows(1, 2))
    assert torch.equal(first.tokens, kept)
    assert torch.equal(kept, generate(denoiser, puzzle(2, 0), policy, steps=6, block=4, noise=Noise.rows(0, 2)).tokens)


def test_every_step_is_one_graph() -> None:
    """Nothing in it waits for the device or escapes to Python: what a CUDA graph needs, and compiling too. (In a process of its
    own, because the shape checks that tests run under are more Python than a compiler likes.)"""
    assert alone("trace") == NAMES


def test_a_compiled_sampler_is_the_loop() -> None:
    """The 64-bit hash of the noise above all, which a compiler that takes positions for indices would work out in 32 bits."""
    assert alone("compile") == ["vanilla", "prism"]


def alone(what: str) -> list[str]:
    done = subprocess.run([sys.executable, __file__, what], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.split()


def compile_two_samplers() -> None:
    for name in ("vanilla", "prism"):
        denoiser, policy, state, noise = model(), POLICIES[name], puzzle(3, 0), Noise.rows(5, 3)
        found = Prepared(denoiser, policy, steps=4, compiled=True)(state, noise)
        assert torch.equal(found.tokens, generate(denoiser, state, policy, steps=4, noise=noise).tokens)
        print(name)


def compile_every_step() -> None:
    for name in NAMES:
        denoiser, policy, noise, state = model(SMALL_VOCABULARY + 44), POLICIES[name], Noise.rows(0, 2), puzzle(2, 0)
        plan, before = Plan.of(state, policy, 6, policy.schedule, None), Progress.before(state)

        def step(*given: Any) -> torch.Tensor:
            return turn(*given)[1].state.tokens

        torch.compiler.reset()
        given = (denoiser, policy, plan, noise, Draw(nucleus=0.9), before, 2 * LENGTH - 1)
        found = torch.compile(step, fullgraph=True, dynamic=False, backend="eager")(*given)
        assert torch.equal(found, step(*given)), name
        print(name)


if __name__ == "__main__":
    {"trace": compile_every_step, "compile": compile_two_samplers}[sys.argv[1]]()
