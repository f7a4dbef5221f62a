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
    assert run(__file__, "compile", interpreted=False) == ["_uniform False", "_uniform True", "_keys"]


def compare() -> None:
    from prism.noise_kernel import keys, uniform

    device = "cuda" if torch.cuda.is_available() else "cpu"
    for seed, first in ((0, 0), (7, 1), (-(2**63), 2**40), (2**63 - 1, 3)):
        expected = Noise.rows(seed % 2**64, 300, first=first).keys
        assert torch.equal(keys(seed, first, 300, device).cpu(), expected), (seed, first)
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

    from prism.noise_kernel import _keys, _uniform

    uniform = {"keys": "*i64", "steps": "*i64", "step": "i64", "uniforms": "*fp64", "purpose": "i32", "length": "i32"}
    keys = {"keys": "*i64", "seed": "i64", "first": "i64", "count": "i32"}
    for kernel, types, constants in (
        (_uniform, uniform, {"HAS_STEPS": False, "SIZE": 256}),
        (_uniform, uniform, {"HAS_STEPS": True, "SIZE": 256}),
        (_keys, keys, {"SIZE": 256}),
    ):
        source = ASTSource(fn=kernel, signature=types | dict.fromkeys(constants, "constexpr"), constexprs=constants)
        assert triton.compile(source, target=GPUTarget("cuda", 90, 32)).asm["cubin"]
        print(kernel.__name__, *(value for name, value in constants.items() if name == "HAS_STEPS"))


if __name__ == "__main__":
    {"compare": compare, "compile": compile_for_hopper}[sys.argv[1]]()
