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
from prism.sampling.prepared import Prepared
from prism.state import State, start

LENGTH = 12


def model() -> prism.PrismModel:
    torch.manual_seed(0)
    config = prism.DiTConfig(vocab_size=7, mask_id=0, length=LENGTH, hidden_size=16, blocks=1, heads=2)
    backbone = prism.DiT(config)
    for weight in backbone.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    tuned = prism.attach(backbone, prism.FinalLayerConfig(16))
    torch.nn.init.normal_(tuned.quality_head.output_layer.linear.weight)
    return tuned.eval()


def puzzle(rows: int, seed: int) -> State:
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(1, 7, (rows, LENGTH), generator=generator)
    return start(tokens * (torch.rand(rows, LENGTH, generator=generator) < 0.2), 0)


def built(method: Method) -> prism.Policy:
    return method.build(prism.Settings(amount=prism.Fixed(2)))


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_a_prepared_sampler_is_the_loop(method: Method) -> None:
    """Batch after batch, of one shape and of another."""
    denoiser, policy = model(), built(method)
    prepared = Prepared(denoiser, policy, steps=6, draw=Draw(nucleus=0.9))
    for rows, seed in ((3, 0), (3, 1), (2, 2)):
        state, noise = puzzle(rows, seed), Noise.rows(seed, rows)
        expected = generate(denoiser, state, policy, steps=6, noise=noise, draw=Draw(nucleus=0.9))
        found = prepared(state, noise)
        assert torch.equal(found.tokens, expected.tokens)
        assert torch.equal(found.confidence, expected.confidence)
        for count in ("forwards", "remasks", "flipflops"):
            assert torch.equal(getattr(found, count), getattr(expected, count))


def test_blocks_and_results_that_stay() -> None:
    denoiser, policy = model(), built(next(m for m in METHODS if m.name == "prism"))
    prepared = Prepared(denoiser, policy, steps=6, block=4)
    first = prepared(puzzle(2, 0), Noise.rows(0, 2))
    kept = first.tokens.clone()
    prepared(puzzle(2, 1), Noise.rows(1, 2))
    assert torch.equal(first.tokens, kept)
    assert torch.equal(kept, generate(denoiser, puzzle(2, 0), policy, steps=6, block=4, noise=Noise.rows(0, 2)).tokens)


def test_every_step_is_one_graph() -> None:
    """Nothing in it waits for the device or escapes to Python: what a CUDA graph needs, and compiling too. (In a process of its
    own, because the shape checks that tests run under are more Python than a compiler likes.)"""
    done = subprocess.run([sys.executable, __file__], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split() == [method.name for method in METHODS]


def compile_every_step() -> None:
    for method in METHODS:
        denoiser, policy, noise, state = model(), built(method), Noise.rows(0, 2), puzzle(2, 0)
        plan, before = Plan.of(state, policy, 6, policy.schedule, None), Progress.before(state)

        def step(*given: Any) -> torch.Tensor:
            return turn(*given)[1].state.tokens

        torch.compiler.reset()
        given = (denoiser, policy, plan, noise, Draw(), before)
        found = torch.compile(step, fullgraph=True, dynamic=False, backend="eager")(*given)
        assert torch.equal(found, step(*given)), method.name
        print(method.name)


if __name__ == "__main__":
    compile_every_step()
