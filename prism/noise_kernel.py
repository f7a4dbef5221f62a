"""The numbers of `prism.noise`, keys and uniforms, in a kernel each: the hash is some forty operations on integers, and one by
one they cost forty launches. `Noise.rows` and `Noise.uniform` on a CPU are the reference, to the last bit."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 256


@triton.jit
def _mix(x):
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB
    return x ^ (x >> 31)


@triton.jit
def _absorb(state, coordinate):
    return _mix(state + (coordinate.to(tl.uint64) + 1) * 0x9E3779B97F4A7C15)


@triton.jit(do_not_specialize=["step", "purpose", "length"])
def _uniform(keys, steps, step, uniforms, purpose, length, HAS_STEPS: tl.constexpr, SIZE: tl.constexpr):
    row = tl.program_id(0)
    if HAS_STEPS:
        step = tl.load(steps + row)
    stream = _absorb(_absorb(tl.load(keys + row).to(tl.uint64), step), purpose)
    places = tl.program_id(1) * SIZE + tl.arange(0, SIZE)
    bits = _absorb(stream, places) >> 12
    tl.store(
        uniforms + row.to(tl.int64) * length + places, (bits.to(tl.float64) + 0.5) * 2.0**-52, mask=places < length
    )


@triton.jit(do_not_specialize=["seed", "first", "count"])
def _keys(keys, seed, first, count, SIZE: tl.constexpr):
    rows = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    key = _absorb(_mix(seed.to(tl.uint64)), first + rows.to(tl.int64))
    tl.store(keys + rows, key.to(tl.int64, bitcast=True), mask=rows < count)


def keys(seed: int, first: int, count: int, device: torch.device | str) -> Tensor:
    """Of the rows `first`, `first` + 1, …; `seed` is a signed number of 64 bits."""
    found = torch.empty(count, dtype=torch.long, device=device)
    with torch.cuda.device_of(found):  # Triton launches on the current device, whatever the tensors'
        _keys[(triton.cdiv(count, BLOCK),)](found, seed, first, count, SIZE=BLOCK)
    return found


def uniform(keys: Tensor, step: Tensor | int, purpose: int, length: int) -> Tensor:
    """(b, length) numbers for b `keys`; `step` is one for all rows or one a row."""
    uniforms = torch.empty(len(keys), length, dtype=torch.float64, device=keys.device)
    steps, number = (step.contiguous(), 0) if isinstance(step, Tensor) else (keys, step)
    grid = (len(keys), triton.cdiv(length, BLOCK))
    with torch.cuda.device_of(uniforms):  # Triton launches on the current device, whatever the tensors'
        _uniform[grid](
            keys.contiguous(), steps, number, uniforms, purpose, length, HAS_STEPS=isinstance(step, Tensor), SIZE=BLOCK
        )
    return uniforms
