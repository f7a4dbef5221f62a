"""`Draw` in one Triton kernel: temperature, nucleus, the draw and the token's probability from a row of logits, read where it
lies. Nothing of the size of the vocabulary is written and nothing is sorted.

The nucleus is found by its least logit: the share of tokens at or above a pivot only falls as the pivot rises, so each pass
over the row moves one of two bounds onto a logit of the row, until they meet. The first pivot is where the nucleus would end
if the logits were normal, the others come from a straight line between the bounds, or the middle where that was of little
use. Sums are in float64, and logits are compared after the largest is taken off (which makes some of them equal), as in
`prism.sampling.draw`, the reference this is compared with; the same uniform numbers give the same tokens.
"""

from __future__ import annotations

import math
from statistics import NormalDist

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra import libdevice

_INTERPRETED = triton.knobs.runtime.interpret
_BLOCK, _WARPS = 2048, 16


@triton.jit
def _exp(x, INTERPRETED: tl.constexpr):
    """The exponential of torch's own kernels; `tl.exp` is a faster and rougher one."""
    if INTERPRETED:
        return tl.exp(x)
    return libdevice.exp(x)


@triton.jit
def _logits(logits, first, lanes, vocabulary, readable):
    """Minus infinity beyond the vocabulary. `readable` is where memory ends: a round number, or loads would come one by one."""
    value = tl.load(logits + first + lanes, mask=first + lanes < readable, other=float("-inf")).to(tl.float32)
    return tl.where(first + lanes < vocabulary, value, float("-inf"))


@triton.jit
def _scaled(logits, first, lanes, vocabulary, readable, top, per_temperature):
    """Logits below the largest, which is 0."""
    return (_logits(logits, first, lanes, vocabulary, readable) - top) * per_temperature


@triton.jit
def _draw(
    logits,
    uniforms,
    tokens,
    log_probabilities,
    vocabulary,
    readable,
    stride,
    per_temperature,
    NUCLEUS: tl.constexpr,
    KEEP_CROSSING: tl.constexpr,
    REACH: tl.constexpr,
    QUANTILE: tl.constexpr,
    WARM: tl.constexpr,
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
        highest = tl.maximum(highest, _logits(logits, first, lanes, vocabulary, readable))
    top = tl.max(highest, 0)

    total = tl.zeros([BLOCK], tl.float64)
    cold = tl.zeros([BLOCK], tl.float64)
    mean = tl.zeros([BLOCK], tl.float32)
    square = tl.zeros([BLOCK], tl.float32)
    for first in range(0, vocabulary, BLOCK):
        value = _scaled(logits, first, lanes, vocabulary, readable, top, per_temperature)
        weight = _exp(value, INTERPRETED)
        total += weight.to(tl.float64)
        if NUCLEUS < 1:
            finite = tl.maximum(value, -REACH)  # what weighs nothing may be minus infinity
            mean += weight * finite
            square += weight * finite * finite
        if WARM:
            cold += _exp(_scaled(logits, first, lanes, vocabulary, readable, top, 1.0), INTERPRETED).to(tl.float64)
    kept = tl.sum(total, 0)
    normaliser = kept  # at temperature 1
    if WARM:
        normaliser = tl.sum(cold, 0)

    least = nothing
    if NUCLEUS < 1:
        share = kept * NUCLEUS
        low, within_low = -REACH, kept  # what lies below weighs less than 1 - NUCLEUS: from here up is too much,
        below, within = 0.0, kept * 0.0  # and all above `below` is not
        least, middle = 0.0, tl.sum(mean, 0) / kept.to(tl.float32)
        spread = tl.sqrt(tl.maximum(tl.sum(square, 0) / kept.to(tl.float32) - middle * middle, 0.0))
        pivot = middle + QUANTILE * spread
        while low < below:
            width = below - low
            pivot = tl.minimum(pivot, below)
            pivot = tl.where(pivot > low, pivot, below)
            mass = tl.zeros([BLOCK], tl.float64)
            above = tl.full([BLOCK], float("inf"), tl.float32)
            under = tl.full([BLOCK], nothing, tl.float32)
            for first in range(0, vocabulary, BLOCK):
                value = _scaled(logits, first, lanes, vocabulary, readable, top, per_temperature)
                reaches = value >= pivot
                mass += tl.where(reaches, _exp(value, INTERPRETED), 0.0).to(tl.float64)
                above = tl.minimum(above, tl.where(reaches, value, float("inf")))
                under = tl.maximum(under, tl.where(reaches, nothing, value))
            at_least = tl.sum(mass, 0)
            fits = at_least < share if KEEP_CROSSING else at_least <= share
            if fits:
                least, below, within = tl.min(above, 0), tl.max(under, 0), at_least
            else:
                low, within_low = tl.min(above, 0), at_least
            line = ((within_low - share) / (within_low - within)).to(tl.float32)
            pivot = low + (below - low) * tl.where(below - low < 0.5 * width, line, 0.5)
        if KEEP_CROSSING:
            least, kept = low, within_low
        else:
            kept = tl.where(within > 0, within, within_low)  # the most likely token always stays

    wanted = uniform * kept
    before, first = wanted * 0.0, 0
    start, lasting, before_lasting = -1, 0, wanted * 0.0  # rounding may leave nothing above `wanted`: then the last
    while (start < 0) & (first < vocabulary):
        value = _scaled(logits, first, lanes, vocabulary, readable, top, per_temperature)
        here = tl.sum(tl.where(value >= least, _exp(value, INTERPRETED), 0.0).to(tl.float64), 0)
        lasting = tl.where(here > 0, first, lasting)
        before_lasting = tl.where(here > 0, before, before_lasting)
        start = tl.where(before + here > wanted, first, -1)
        before += here
        first += BLOCK
    value = _scaled(logits, lasting, lanes, vocabulary, readable, top, per_temperature)
    weight = tl.where(value >= least, _exp(value, INTERPRETED), 0.0).to(tl.float64)
    reached = before_lasting + tl.cumsum(weight, 0)
    hit = tl.min(tl.where((reached > wanted) & (weight > 0), lanes, BLOCK), 0)
    last = tl.max(tl.where(weight > 0, lanes, 0), 0)
    token = tl.where(vocabulary > 0, lasting + tl.minimum(hit, last), 0)
    tl.store(tokens + row, token.to(tl.int64))
    chosen = tl.load(logits + token).to(tl.float32) - top
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
            _readable(logits),
            logits.stride(0),
            1 / temperature,
            NUCLEUS=nucleus,
            KEEP_CROSSING=keep_crossing,
            REACH=math.log(vocabulary / max(1 - nucleus, 1e-300)) + 1,
            QUANTILE=-NormalDist().inv_cdf(nucleus) if nucleus < 1 else 0.0,
            WARM=temperature != 1,
            BLOCK=_BLOCK,
            INTERPRETED=_INTERPRETED,
            num_warps=_WARPS,
        )
    return tokens, log_probabilities


def _readable(logits: Tensor) -> int:
    """The vocabulary rounded up, where rows have room for it."""
    rounded = triton.cdiv(logits.shape[1], 16) * 16
    end = logits.storage_offset() + (len(logits) - 1) * logits.stride(0) + rounded
    return rounded if end * logits.element_size() <= logits.untyped_storage().nbytes() else logits.shape[1]


@draw.register_fake
def _(
    logits: Tensor, uniforms: Tensor, temperature: float, nucleus: float, keep_crossing: bool
) -> tuple[Tensor, Tensor]:
    return torch.empty_like(uniforms, dtype=torch.long), torch.empty_like(uniforms, dtype=torch.float32)
