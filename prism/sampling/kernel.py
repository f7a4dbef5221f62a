"""`Draw` in one Triton kernel: temperature, nucleus, the draw and the token's probability from a row of logits, read where it
lies. Nothing of the size of the vocabulary is written and nothing is sorted.

The nucleus is found by its least logit: the share of tokens at or above a pivot only falls as the pivot rises, so three pivots
a pass close in on it until no logit lies between the bounds. Sums are in float64, and logits are compared after the largest is
taken off (which makes some of them equal), as in `prism.sampling.draw`, the reference this is compared with; the same uniform
numbers give the same tokens.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra import libdevice

_INTERPRETED = triton.knobs.runtime.interpret
_BLOCK = 4096


@triton.jit
def _exp(x, INTERPRETED: tl.constexpr):
    """The exponential of torch's own kernels; `tl.exp` is a faster and rougher one."""
    if INTERPRETED:
        return tl.exp(x)
    return libdevice.exp(x)


@triton.jit
def _draw(
    logits,
    uniforms,
    tokens,
    log_probabilities,
    vocabulary,
    stride,
    per_temperature,
    NUCLEUS: tl.constexpr,
    KEEP_CROSSING: tl.constexpr,
    REACH: tl.constexpr,
    BLOCK: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    logits += row * stride
    uniform = tl.load(uniforms + row)
    vocabulary = tl.where(uniform >= 0, vocabulary, 0)  # padding: nothing to look at
    lanes = tl.arange(0, BLOCK)
    nothing = float("-inf")

    highest = tl.full([BLOCK], nothing, tl.float32)
    for first in range(0, vocabulary, BLOCK):
        value = tl.load(logits + first + lanes, mask=first + lanes < vocabulary, other=nothing).to(tl.float32)
        highest = tl.maximum(highest, value)
    top = tl.max(highest, 0)

    plain = tl.zeros([BLOCK], tl.float64)
    warm = tl.zeros([BLOCK], tl.float64)
    for first in range(0, vocabulary, BLOCK):
        value = tl.load(logits + first + lanes, mask=first + lanes < vocabulary, other=nothing).to(tl.float32)
        plain += _exp(value - top, INTERPRETED).to(tl.float64)
        warm += _exp((value - top) * per_temperature, INTERPRETED).to(tl.float64)
    normaliser = tl.sum(plain, 0)
    kept = tl.sum(warm, 0)

    least = nothing
    if NUCLEUS < 1:
        share = kept * NUCLEUS
        low = -REACH  # what lies below weighs less than 1 - NUCLEUS: the share at `low` is too large,
        high = 1.0  # and at `high` there is nothing
        between = 1
        while between > 0:
            width = high - low
            one, two, three = low + 0.25 * width, low + 0.5 * width, low + 0.75 * width
            mass1 = tl.zeros([BLOCK], tl.float64)
            mass2 = tl.zeros([BLOCK], tl.float64)
            mass3 = tl.zeros([BLOCK], tl.float64)
            count0 = tl.zeros([BLOCK], tl.int32)
            count1 = tl.zeros([BLOCK], tl.int32)
            count2 = tl.zeros([BLOCK], tl.int32)
            count3 = tl.zeros([BLOCK], tl.int32)
            for first in range(0, vocabulary, BLOCK):
                value = tl.load(logits + first + lanes, mask=first + lanes < vocabulary, other=nothing).to(tl.float32)
                value = (value - top) * per_temperature
                weight = _exp(value, INTERPRETED).to(tl.float64)
                mass1 += tl.where(value >= one, weight, 0.0)
                mass2 += tl.where(value >= two, weight, 0.0)
                mass3 += tl.where(value >= three, weight, 0.0)
                count0 += ((value > low) & (value < one)).to(tl.int32)
                count1 += ((value > one) & (value < two)).to(tl.int32)
                count2 += ((value > two) & (value < three)).to(tl.int32)
                count3 += ((value > three) & (value < high)).to(tl.int32)
            within1, within2, within3 = tl.sum(mass1, 0), tl.sum(mass2, 0), tl.sum(mass3, 0)
            if KEEP_CROSSING:
                small1, small2, small3 = within1 < share, within2 < share, within3 < share
            else:
                small1, small2, small3 = within1 <= share, within2 <= share, within3 <= share
            if small1:
                high, between = one, tl.sum(count0, 0)
            elif small2:
                low, high, between = one, two, tl.sum(count1, 0)
            elif small3:
                low, high, between = two, three, tl.sum(count2, 0)
            else:
                low, between = three, tl.sum(count3, 0)
        least = tl.minimum(high, 0.0)
        if KEEP_CROSSING:
            below = tl.full([BLOCK], nothing, tl.float32)
            for first in range(0, vocabulary, BLOCK):
                value = tl.load(logits + first + lanes, mask=first + lanes < vocabulary, other=nothing).to(tl.float32)
                value = (value - top) * per_temperature
                below = tl.maximum(below, tl.where(value < high, value, nothing))
            least = tl.minimum(tl.max(below, 0), 0.0)
        inside = tl.zeros([BLOCK], tl.float64)
        for first in range(0, vocabulary, BLOCK):
            value = tl.load(logits + first + lanes, mask=first + lanes < vocabulary, other=nothing).to(tl.float32)
            value = (value - top) * per_temperature
            inside += tl.where(value >= least, _exp(value, INTERPRETED).to(tl.float64), 0.0)
        kept = tl.sum(inside, 0)

    wanted = uniform * kept
    before = wanted * 0.0
    found, first = -1, 0
    last = -1  # rounding may leave nothing above `wanted`
    while (found < 0) & (first < vocabulary):
        value = tl.load(logits + first + lanes, mask=first + lanes < vocabulary, other=nothing).to(tl.float32)
        value = (value - top) * per_temperature
        weight = _exp(value, INTERPRETED).to(tl.float64)
        weight = tl.where(value >= least, weight, 0.0)
        reached = before + tl.cumsum(weight, 0)
        hit = tl.min(tl.where((reached > wanted) & (weight > 0), lanes, BLOCK), 0)
        found = tl.where(hit < BLOCK, first + hit, -1)
        last = tl.maximum(last, tl.max(tl.where(weight > 0, first + lanes, -1), 0))
        before += tl.sum(weight, 0)
        first += BLOCK
    token = tl.where(found >= 0, found, last)
    tl.store(tokens + row, tl.maximum(token, 0).to(tl.int64))
    chosen = tl.load(logits + token, mask=token >= 0, other=0.0).to(tl.float32) - top
    tl.store(log_probabilities + row, (chosen.to(tl.float64) - tl.log(normaliser)).to(tl.float32))


_SCHEMA = "(Tensor logits, Tensor uniforms, float temperature, float nucleus, bool keep_crossing) -> (Tensor, Tensor)"


@torch.library.custom_op("prism::draw", mutates_args=(), schema=_SCHEMA)
def draw(
    logits: Tensor, uniforms: Tensor, temperature: float, nucleus: float, keep_crossing: bool
) -> tuple[Tensor, Tensor]:
    """One token per row of `logits` and its log-probability at temperature 1; a negative uniform number marks padding."""
    rows, vocabulary = logits.shape
    tokens = torch.empty(rows, dtype=torch.long, device=logits.device)
    log_probabilities = torch.empty(rows, dtype=torch.float32, device=logits.device)
    if rows:
        assert logits.stride(1) == 1
        _draw[(rows,)](
            logits,
            uniforms,
            tokens,
            log_probabilities,
            vocabulary,
            logits.stride(0),
            1 / temperature,
            NUCLEUS=nucleus,
            KEEP_CROSSING=keep_crossing,
            REACH=math.log(vocabulary / max(1 - nucleus, 1e-300)) + 1,
            BLOCK=_BLOCK,
            INTERPRETED=_INTERPRETED,
            num_warps=8,
        )
    return tokens, log_probabilities


@draw.register_fake
def _(
    logits: Tensor, uniforms: Tensor, temperature: float, nucleus: float, keep_crossing: bool
) -> tuple[Tensor, Tensor]:
    return torch.empty_like(uniforms, dtype=torch.long), torch.empty_like(uniforms, dtype=torch.float32)
