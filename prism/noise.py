"""Random numbers that depend on (row, step, purpose, position) and on nothing else.

Counter-based: each number is a hash of its coordinates (the splitmix64 finaliser, Steele et al. 2014, applied once per
coordinate), so there is no generator state to carry, save or synchronise. A row draws the same numbers alone, in a batch,
padded, on the CPU and on a GPU, in one process or in eight, before and after a resumed run.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum
from importlib.util import find_spec

import torch
from jaxtyping import Float, Int
from torch import Tensor

_HAS_TRITON = find_spec("triton") is not None


class Purpose(IntEnum):
    """What a number is for: two uses in one step never share a number."""

    LEVEL = 1
    MASKING = 2
    ORDER = 3
    TOKEN = 4
    REMASK = 5
    AMOUNT = 6
    PERTURBATION = 7
    EXAMPLE = 8


def _signed(unsigned: int) -> int:
    return unsigned - (1 << 64) if unsigned >= 1 << 63 else unsigned


_GOLDEN = _signed(0x9E3779B97F4A7C15)
_GOLDEN_INVERSE = _signed(pow(0x9E3779B97F4A7C15, -1, 1 << 64))
_FIRST = _signed(0xBF58476D1CE4E5B9)
_SECOND = _signed(0x94D049BB133111EB)


def _shift_right(x: Int[Tensor, "..."], bits: int) -> Int[Tensor, "..."]:
    return (x >> bits) & ((1 << (64 - bits)) - 1)  # torch shifts int64 arithmetically; the hash needs zeros on the left


def _mix(x: Int[Tensor, "..."]) -> Int[Tensor, "..."]:
    x = (x ^ _shift_right(x, 30)) * _FIRST
    x = (x ^ _shift_right(x, 27)) * _SECOND
    return x ^ _shift_right(x, 31)


def _absorb(state: Int[Tensor, "..."], coordinate: Int[Tensor, "..."] | int) -> Int[Tensor, "..."]:
    if isinstance(coordinate, int):
        return _mix(state + _signed((coordinate + 1) * _GOLDEN % (1 << 64)))
    # state + (coordinate + 1) · golden; as a product of the sum, because torch.compile takes a coordinate that is an arange for
    # an index and would multiply it by the 64-bit constant in 32 bits
    return _mix((state * _GOLDEN_INVERSE + (coordinate + 1)) * _GOLDEN)


@dataclass(frozen=True)
class Noise:
    keys: Int[Tensor, " b"]
    """One key per row."""
    step: Int[Tensor, " b"] | int = 0

    @staticmethod
    def rows(seed: int, count: int, *, first: int = 0, device: torch.device | str = "cpu") -> Noise:
        """Noise for `count` rows; row i is the same whichever batch it stands in, its number being `first + i`."""
        if torch.device(device).type == "cuda" and _HAS_TRITON:
            from prism.noise_kernel import keys

            return Noise(keys(_signed(seed % (1 << 64)), first, count, device))
        numbers = torch.arange(first, first + count, device=device)
        return Noise(_absorb(_mix(torch.full_like(numbers, _signed(seed % (1 << 64)))), numbers))

    def at(self, step: Int[Tensor, " b"] | int) -> Noise:
        return replace(self, step=step)

    def replica(self, index: int) -> Noise:
        """Independent noise for the same rows (PRISM's several y from one z)."""
        return self if index == 0 else replace(self, keys=_absorb(self.keys, index))

    def uniform(self, purpose: Purpose, length: int) -> Float[Tensor, "b l"]:
        """Float64 uniforms in (0, 1), one per position."""
        # a compiler makes it one kernel by itself, together with what reads it
        if self.keys.is_cuda and _HAS_TRITON and not torch.compiler.is_compiling():
            from prism.noise_kernel import uniform

            return uniform(self.keys, self.step, int(purpose), length)
        stream = _absorb(_absorb(self.keys, self.step), int(purpose))
        positions = torch.arange(length, device=self.keys.device)
        bits = _shift_right(_absorb(stream[:, None], positions[None, :]), 12)
        return (bits.double() + 0.5) * 2.0**-52  # 53 bits with the half: exact in float64, never 0 and never 1

    def gumbel(self, purpose: Purpose, length: int) -> Float[Tensor, "b l"]:
        return -(-self.uniform(purpose, length).log()).log()
