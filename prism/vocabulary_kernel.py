"""Triton kernels of `prism.vocabulary`, each a single pass or two over logits that are read where they lie."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Int
from torch import Tensor

_BLOCK, _WARPS = 4096, 8


@triton.jit
def _highest(logits, vocabulary, BLOCK: tl.constexpr):
    lanes = tl.arange(0, BLOCK)
    highest = tl.full([BLOCK], float("-inf"), tl.float32)
    for first in range(0, vocabulary, BLOCK):
        value = tl.load(logits + first + lanes, mask=first + lanes < vocabulary, other=float("-inf"))
        highest = tl.maximum(highest, value.to(tl.float32))
    return tl.max(highest, 0)


@triton.jit
def _normalise(logits, tokens, log_probabilities, normalisers, vocabulary, stride, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    logits += row * stride
    lanes, top = tl.arange(0, BLOCK), _highest(logits, vocabulary, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    for first in range(0, vocabulary, BLOCK):
        value = tl.load(logits + first + lanes, mask=first + lanes < vocabulary, other=float("-inf"))
        total += tl.exp(value.to(tl.float32) - top)
    normaliser = top + tl.log(tl.sum(total, 0))
    chosen = tl.load(logits + tl.load(tokens + row)).to(tl.float32)
    tl.store(log_probabilities + row, chosen - normaliser)
    tl.store(normalisers + row, normaliser)


@triton.jit
def _entropy(logits, entropies, vocabulary, stride, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    logits += row * stride
    lanes, top = tl.arange(0, BLOCK), _highest(logits, vocabulary, BLOCK)
    total, weighted = tl.zeros([BLOCK], tl.float32), tl.zeros([BLOCK], tl.float32)
    for first in range(0, vocabulary, BLOCK):
        value = tl.load(logits + first + lanes, mask=first + lanes < vocabulary, other=float("-inf"))
        below = value.to(tl.float32) - top
        share = tl.exp(below)
        total += share
        weighted += tl.where(share > 0, share * below, 0.0)  # a forbidden id is infinitely far below
    total = tl.sum(total, 0)
    tl.store(entropies + row, tl.log(total) - tl.sum(weighted, 0) / total)


@triton.jit
def _differentiate(logits, tokens, normalisers, gradient, vocabulary, stride, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    places = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    where = logits + row * stride + places
    value = tl.load(where, mask=places < vocabulary, other=float("-inf")).to(tl.float32)
    chosen = tl.where(places == tl.load(tokens + row), 1.0, 0.0)
    slope = tl.load(gradient + row) * (chosen - tl.exp(value - tl.load(normalisers + row)))
    tl.store(where, slope.to(logits.dtype.element_ty), mask=places < vocabulary)


@torch.library.custom_op(
    "prism::normalise", mutates_args=(), schema="(Tensor logits, Tensor tokens) -> (Tensor, Tensor)"
)
def normalise(logits: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """log softmax(logits)[token], and the logarithm of what the softmax is divided by."""
    log_probabilities = torch.empty(len(logits), dtype=torch.float32, device=logits.device)
    normalisers = torch.empty_like(log_probabilities)
    if not len(logits):
        return log_probabilities, normalisers
    block = min(_BLOCK, triton.next_power_of_2(logits.shape[1]))
    with torch.cuda.device_of(logits):  # Triton launches on the current device, whatever the tensors'
        _normalise[(len(logits),)](
            logits,
            tokens,
            log_probabilities,
            normalisers,
            logits.shape[1],
            logits.stride(0),
            BLOCK=block,
            num_warps=_WARPS,
        )
    return log_probabilities, normalisers


@normalise.register_fake
def _(logits: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
    log_probabilities = torch.empty_like(tokens, dtype=torch.float32)
    return log_probabilities, torch.empty_like(log_probabilities)


@torch.library.custom_op("prism::entropy", mutates_args=(), schema="(Tensor logits) -> Tensor")
def entropy(logits: Tensor) -> Tensor:
    """H(softmax(logits)) of every row, in nats."""
    entropies = torch.empty(len(logits), dtype=torch.float32, device=logits.device)
    if not len(logits):
        return entropies
    block = min(_BLOCK, triton.next_power_of_2(logits.shape[1]))
    with torch.cuda.device_of(logits):  # Triton launches on the current device, whatever the tensors'
        _entropy[(len(logits),)](logits, entropies, logits.shape[1], logits.stride(0), BLOCK=block, num_warps=_WARPS)
    return entropies


@entropy.register_fake
def _(logits: Tensor) -> Tensor:
    return logits.new_empty(logits.shape[:1], dtype=torch.float32)


def differentiate(
    logits: Float[Tensor, "n v"],
    tokens: Int[Tensor, " n"],
    normalisers: Float[Tensor, " n"],
    gradient: Float[Tensor, " n"],
) -> None:
    """Writes over the logits what Σ gradient · log softmax(logits)[token] gives as theirs."""
    block = min(_BLOCK, triton.next_power_of_2(logits.shape[1]))
    grid = len(logits), triton.cdiv(logits.shape[1], block)
    with torch.cuda.device_of(logits):  # Triton launches on the current device, whatever the tensors'
        _differentiate[grid](
            logits, tokens, normalisers, gradient, logits.shape[1], logits.stride(0), BLOCK=block, num_warps=_WARPS
        )
