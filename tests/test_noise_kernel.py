"""The noise kernel against its reference: interpreted on a CPU, compiled on a GPU, and compiled for one where there is none."""

from __future__ import annotations

import sys

import torch
from kernel_runs import run

from prism.noise import Noise, Purpose

LENGTHS = (1, 89, 300)


def test_numbers_are_the_reference_to_the_last_bit() -> None:
    assert run(__file__, "compare", interpreted=not torch.cuda.is_available()) == [str(length) for length in LENGTHS]


def test_it_compiles_for_a_gpu_that_is_not_here() -> None:
    assert run(__file__, "compile", interpreted=False) == ["False", "True"]


def compare() -> None:
    from prism.noise_kernel import uniform

    device = "cuda" if torch.cuda.is_available() else "cpu"
    for length in LENGTHS:
        noise = Noise.rows(7, 5, first=2**40)
        for step in (0, 1, 16, torch.tensor([3, 0, 9, 4, 2**33])):
            expected = noise.at(step).uniform(Purpose.TOKEN, length)
            there = step.to(device) if isinstance(step, torch.Tensor) else step
            found = uniform(noise.keys.to(device), there, int(Purpose.TOKEN), length)
            assert torch.equal(found.cpu(), expected), (length, step)
        print(length)
    assert uniform(torch.zeros(0, dtype=torch.long, device=device), 0, 1, 4).shape == (0, 4)


def compile_for_hopper() -> None:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from prism.noise_kernel import _uniform

    types = {"keys": "*i64", "steps": "*i64", "step": "i64", "uniforms": "*fp64", "purpose": "i32", "length": "i32"}
    for has_steps in (False, True):
        constants = {"HAS_STEPS": has_steps, "SIZE": 256}
        source = ASTSource(fn=_uniform, signature=types | dict.fromkeys(constants, "constexpr"), constexprs=constants)
        assert triton.compile(source, target=GPUTarget("cuda", 90, 32)).asm["cubin"]
        print(has_steps)


if __name__ == "__main__":
    {"compare": compare, "compile": compile_for_hopper}[sys.argv[1]]()
