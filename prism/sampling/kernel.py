"""`Draw` in one Triton kernel: temperature, nucleus, the draw and the token's probability from a row of logits, read where it
lies. Nothing of the size of the vocabulary is written and nothing is sorted.

The nucleus is found by its least logit: the share of tokens at or above a pivot only falls as the pivot rises, so each pass
over the row moves one of two bounds onto a logit of the row, until they meet. The first pivot is where the nucleus would end
if the logits were normal, the others come from a straight line between the bounds, or the middle where that was of little
use. Sums are in float64, and logits are compared after the largest is taken off (which makes some of them equal), as in
`prism.sampling.draw`, the reference this is compared with; the same uniform numbers give the same tokens.

Where rows are few, a row is cut into pieces of the vocabulary, a program each, which tell each other what they found after
every pass and wait for the others' before the next. That cannot go on for ever: programs start in the order of their numbers
and the pieces of a row are neighbours, so whoever waits waits for programs that run or are the next to start, and the first row
not yet done needs only as many places on the chip as it has pieces. All of them sum the same numbers in the same order,
so that they take the same way through the search.
"""

from __future__ import annotations

import math
from functools import cache
from statistics import NormalDist

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra import libdevice

_INTERPRETED = triton.knobs.runtime.interpret
_BLOCK, _WARPS = 2048, 16
_TOLD = tl.constexpr(4)  # numbers a piece may tell at a meeting
_MOST_PIECES = 16  # meeting the others takes as long as looking at a few blocks


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
def _tell(slots, meeting, what, piece, value, PIECES: tl.constexpr):
    """Meetings take turns with two sets of slots: some still read what was told at one while others tell for the next."""
    tl.store(slots + (meeting % 2 * _TOLD + what) * PIECES + piece, value.to(tl.float64))


@triton.jit
def _meet(arrivals, meeting, PIECES: tl.constexpr):
    """Returns when all programs of the row are here, or have been: what they told before can be read."""
    arrived = tl.atomic_add(arrivals, 1, sem="acq_rel") + 1
    while arrived < meeting * PIECES:
        arrived = tl.atomic_add(arrivals, 0, sem="acquire")


@triton.jit
def _told(slots, meeting, what, nothing, PIECES: tl.constexpr, LANES: tl.constexpr):
    """What each piece told, in their order. Volatile: the slots held something else two meetings ago."""
    pieces = tl.arange(0, LANES)
    address = slots + (meeting % 2 * _TOLD + what) * PIECES + pieces
    return tl.load(address, mask=pieces < PIECES, other=nothing, volatile=True)


@triton.jit
def _draw(
    logits,
    uniforms,
    tokens,
    log_probabilities,
    arrivals,
    slots,
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
    PIECES: tl.constexpr,
    LANES: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) // PIECES
    logits += row * stride
    uniform = tl.load(uniforms + row)
    if uniform < 0:  # padding
        tl.store(tokens + row, 0)
        tl.store(log_probabilities + row, 0.0)
        return
    lanes = tl.arange(0, BLOCK)
    nothing = float("-inf")
    begin, end = 0, vocabulary
    if PIECES > 1:
        piece = tl.program_id(0) % PIECES
        length = tl.cdiv(vocabulary, BLOCK * PIECES) * BLOCK
        begin = piece * length
        end = tl.minimum(begin + length, vocabulary)
        arrivals += row
        slots += row * (2 * _TOLD * PIECES)

    highest = tl.full([BLOCK], nothing, tl.float32)
    for first in range(begin, end, BLOCK):
        highest = tl.maximum(highest, _logits(logits, first, lanes, vocabulary, readable))
    if PIECES > 1:
        _tell(slots, 1, 0, piece, tl.max(highest, 0), PIECES)
        _meet(arrivals, 1, PIECES)
        highest = _told(slots, 1, 0, nothing, PIECES, LANES)
    top = tl.max(highest, 0).to(tl.float32)

    total = tl.zeros([BLOCK], tl.float64)
    cold = tl.zeros([BLOCK], tl.float64)
    mean = tl.zeros([BLOCK], tl.float32)
    square = tl.zeros([BLOCK], tl.float32)
    for first in range(begin, end, BLOCK):
        value = _scaled(logits, first, lanes, vocabulary, readable, top, per_temperature)
        weight = _exp(value, INTERPRETED)
        total += weight.to(tl.float64)
        if NUCLEUS < 1:
            finite = tl.maximum(value, -REACH)  # what weighs nothing may be minus infinity
            mean += weight * finite
            square += weight * finite * finite
        if WARM:
            cold += _exp(_scaled(logits, first, lanes, vocabulary, readable, top, 1.0), INTERPRETED).to(tl.float64)
    if PIECES > 1:
        _tell(slots, 2, 0, piece, tl.sum(total, 0), PIECES)
        if NUCLEUS < 1:
            _tell(slots, 2, 1, piece, tl.sum(mean, 0), PIECES)
            _tell(slots, 2, 2, piece, tl.sum(square, 0), PIECES)
        if WARM:
            _tell(slots, 2, 3, piece, tl.sum(cold, 0), PIECES)
        _meet(arrivals, 2, PIECES)
        total = _told(slots, 2, 0, 0.0, PIECES, LANES)
        if NUCLEUS < 1:
            mean = _told(slots, 2, 1, 0.0, PIECES, LANES)
            square = _told(slots, 2, 2, 0.0, PIECES, LANES)
        if WARM:
            cold = _told(slots, 2, 3, 0.0, PIECES, LANES)
    kept = tl.sum(total, 0)
    normaliser = kept  # at temperature 1
    if WARM:
        normaliser = tl.sum(cold, 0)

    least = nothing
    if NUCLEUS < 1:
        share = kept * NUCLEUS
        low, within_low = -REACH, kept  # what lies below weighs less than 1 - NUCLEUS: from here up is too much,
        below, within = 0.0, kept * 0.0  # and all above `below` is not
        least, middle = 0.0, tl.sum(mean, 0).to(tl.float32) / kept.to(tl.float32)
        square_mean = tl.sum(square, 0).to(tl.float32) / kept.to(tl.float32)
        spread = tl.sqrt(tl.maximum(square_mean - middle * middle, 0.0))
        pivot = middle + QUANTILE * spread
        if PIECES > 1:
            meeting, total_low, total_within = 2, total, total * 0.0
        while low < below:
            width = below - low
            pivot = tl.minimum(pivot, below)
            pivot = tl.where(pivot > low, pivot, below)
            mass = tl.zeros([BLOCK], tl.float64)
            above = tl.full([BLOCK], float("inf"), tl.float32)
            under = tl.full([BLOCK], nothing, tl.float32)
            for first in range(begin, end, BLOCK):
                value = _scaled(logits, first, lanes, vocabulary, readable, top, per_temperature)
                reaches = value >= pivot
                mass += tl.where(reaches, _exp(value, INTERPRETED), 0.0).to(tl.float64)
                above = tl.minimum(above, tl.where(reaches, value, float("inf")))
                under = tl.maximum(under, tl.where(reaches, nothing, value))
            if PIECES > 1:
                meeting += 1
                _tell(slots, meeting, 0, piece, tl.sum(mass, 0), PIECES)
                _tell(slots, meeting, 1, piece, tl.min(above, 0), PIECES)
                _tell(slots, meeting, 2, piece, tl.max(under, 0), PIECES)
                _meet(arrivals, meeting, PIECES)
                mass = _told(slots, meeting, 0, 0.0, PIECES, LANES)
                above = _told(slots, meeting, 1, float("inf"), PIECES, LANES)
                under = _told(slots, meeting, 2, nothing, PIECES, LANES)
            at_least = tl.sum(mass, 0)
            fits = at_least < share if KEEP_CROSSING else at_least <= share
            if fits:
                least, below, within = tl.min(above, 0).to(tl.float32), tl.max(under, 0).to(tl.float32), at_least
            else:
                low, within_low = tl.min(above, 0).to(tl.float32), at_least
            if PIECES > 1:
                total_low = tl.where(fits, total_low, mass)
                total_within = tl.where(fits, mass, total_within)
            line = ((within_low - share) / (within_low - within)).to(tl.float32)
            pivot = low + (below - low) * tl.where(below - low < 0.5 * width, line, 0.5)
        if KEEP_CROSSING:
            least, kept = low, within_low
        else:
            kept = tl.where(within > 0, within, within_low)  # the most likely token always stays
        if PIECES > 1:
            total = total_low if KEEP_CROSSING else tl.where(within > 0, total_within, total_low)

    wanted = uniform * kept
    before, first = wanted * 0.0, begin
    if PIECES > 1:  # the one in which `wanted` falls goes on
        pieces = tl.arange(0, LANES)
        hit = tl.min(tl.where((tl.cumsum(total, 0) > wanted) & (total > 0), pieces, LANES), 0)
        last = tl.max(tl.where(total > 0, pieces, 0), 0)
        if piece != tl.minimum(hit, last):
            return
        before = tl.sum(tl.where(pieces < piece, total, 0.0), 0)
    start, lasting, before_lasting = -1, begin, before  # rounding may leave nothing above `wanted`: then the last
    while (start < 0) & (first < end):
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
    token = lasting + tl.minimum(hit, last)
    tl.store(tokens + row, token.to(tl.int64))
    chosen = tl.load(logits + token).to(tl.float32) - top
    tl.store(log_probabilities + row, (chosen.to(tl.float64) - tl.log(normaliser)).to(tl.float32))


_SCHEMA = "(Tensor logits, Tensor uniforms, float temperature, float nucleus, bool keep_crossing) -> (Tensor, Tensor)"


@torch.library.custom_op("prism::draw", mutates_args=(), schema=_SCHEMA)
def draw(
    logits: Tensor, uniforms: Tensor, temperature: float, nucleus: float, keep_crossing: bool
) -> tuple[Tensor, Tensor]:
    """One token per row of `logits` and its log-probability at temperature 1; a negative uniform number marks padding."""
    return _launch(logits, uniforms, temperature, nucleus, keep_crossing, _pieces(logits))


def _launch(
    logits: Tensor, uniforms: Tensor, temperature: float, nucleus: float, keep_crossing: bool, pieces: int
) -> tuple[Tensor, Tensor]:
    """`draw` with every row in so many pieces."""
    rows, vocabulary = logits.shape
    tokens = torch.empty(rows, dtype=torch.long, device=logits.device)
    log_probabilities = torch.empty(rows, dtype=torch.float32, device=logits.device)
    arrivals = slots = None
    if pieces > 1:
        arrivals = torch.zeros(rows, dtype=torch.int32, device=logits.device)
        slots = torch.empty(rows, 2, _TOLD.value, pieces, dtype=torch.float64, device=logits.device)
    if rows:
        assert logits.stride(1) == 1
        with torch.cuda.device_of(logits):  # Triton launches on the current device, whatever the tensors'
            _draw[(rows * pieces,)](
                logits,
                uniforms,
                tokens,
                log_probabilities,
                arrivals,
                slots,
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
                PIECES=pieces,
                LANES=triton.next_power_of_2(pieces),
                INTERPRETED=_INTERPRETED,
                num_warps=_WARPS,
            )
    return tokens, log_probabilities


def _pieces(logits: Tensor) -> int:
    """About as many programs as the chip has processors, if three of four rows are padding, as most of the time in a
    `Prepared` sampler. The interpreter runs one program at a time: none may wait there."""
    rows, vocabulary = logits.shape
    if _INTERPRETED or not rows:
        return 1
    blocks = triton.cdiv(vocabulary, _BLOCK)
    most = max(1, min(4 * _processors(logits.device) // rows, _MOST_PIECES, blocks))
    return triton.cdiv(blocks, triton.cdiv(blocks, most))  # no more than have a block


@cache
def _processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count


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
