"""Attention over a sequence short enough for one block, in one Triton kernel a direction: rotary turns, scores, softmax and the
mix of values, read from the product that made queries, keys and values and, backwards, written as its gradient.

A Sudoku of 89 tokens is too short for kernels that walk along a sequence: they spend the time on what lies between, on turning,
cutting and putting together. Here a program holds one head of one row: forwards all its keys, and queries in turn; backwards
all its queries, and keys in turn. Small enough for several on a processor, one computes while another waits for memory.
`prism.models.dit.attention` is the reference.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _angles(cosines, sines, tokens, inside, HALF: tl.constexpr):
    where = tokens[:, None] * HALF + tl.arange(0, HALF)[None, :]
    cos = tl.load(cosines + where, mask=inside[:, None], other=0.0)
    return cos, tl.load(sines + where, mask=inside[:, None], other=0.0)


@triton.jit
def _turned(x, tokens, inside, cos, sin, STRIDE: tl.constexpr, HALF: tl.constexpr):
    """Both halves of a head of queries or keys, each pair turned by its position's angle."""
    where = tokens[:, None] * STRIDE + tl.arange(0, HALF)[None, :]
    first = tl.load(x + where, mask=inside[:, None], other=0.0)
    second = tl.load(x + HALF + where, mask=inside[:, None], other=0.0)
    turned = first * cos - second * sin, second * cos + first * sin
    return turned[0].to(first.dtype), turned[1].to(first.dtype)


@triton.jit
def _store_turned_back(x, tokens, inside, first, second, cos, sin, STRIDE: tl.constexpr, HALF: tl.constexpr):
    where = tokens[:, None] * STRIDE + tl.arange(0, HALF)[None, :]
    tl.store(x + where, (first * cos + second * sin).to(x.dtype.element_ty), mask=inside[:, None])
    tl.store(x + HALF + where, (second * cos - first * sin).to(x.dtype.element_ty), mask=inside[:, None])


@triton.jit
def _scores(q_first, q_second, k_first, k_second, there, HALF: tl.constexpr):
    """In units of log 2, since powers of 2 are what the chip computes."""
    scores = tl.dot(q_first, tl.trans(k_first), input_precision="ieee")
    scores = tl.dot(q_second, tl.trans(k_second), acc=scores, input_precision="ieee")
    return tl.where(there[None, :], scores * ((2 * HALF) ** -0.5 * 1.4426950408889634), float("-inf"))


@triton.jit
def _head(length, HEADS: tl.constexpr, HALF: tl.constexpr):
    """Where the program's head of its row begins: in queries, in mixed values, and among heads of tokens."""
    row, head = (tl.program_id(0) // HEADS).to(tl.int64), tl.program_id(0) % HEADS
    width: tl.constexpr = 2 * HALF
    first = row * length * HEADS
    return first * (3 * width) + head * width, first * width + head * width, first + head * length


@triton.jit
def _forward(
    qkv,
    cosines,
    sines,
    mixed,
    totals,
    length,
    HEADS: tl.constexpr,
    HALF: tl.constexpr,
    BLOCK: tl.constexpr,
    QUERIES: tl.constexpr,
):
    begin, out, of_head = _head(length, HEADS, HALF)
    width: tl.constexpr = 2 * HALF
    stride: tl.constexpr = 3 * HEADS * width
    columns = tl.arange(0, width)[None, :]
    keys = tl.arange(0, BLOCK)
    there = keys < length
    cos, sin = _angles(cosines, sines, keys, there, HALF)
    k_first, k_second = _turned(qkv + begin + HEADS * width, keys, there, cos, sin, stride, HALF)
    v = tl.load(qkv + begin + 2 * HEADS * width + (keys[:, None] * stride + columns), mask=there[:, None], other=0.0)
    for first in range(0, length, QUERIES):
        tokens = first + tl.arange(0, QUERIES)
        inside = tokens < length
        q_cos, q_sin = _angles(cosines, sines, tokens, inside, HALF)
        q_first, q_second = _turned(qkv + begin, tokens, inside, q_cos, q_sin, stride, HALF)
        scores = _scores(q_first, q_second, k_first, k_second, there, HALF)
        highest = tl.max(scores, 1)
        weights = tl.exp2(scores - highest[:, None])
        total = tl.sum(weights, 1)
        values = tl.dot((weights / total[:, None]).to(v.dtype), v, input_precision="ieee")
        tl.store(mixed + out + (tokens[:, None] * (HEADS * width) + columns), values.to(v.dtype), mask=inside[:, None])
        tl.store(totals + of_head + tokens, highest + tl.log2(total), mask=inside)


@triton.jit
def _backward(
    gradient,
    qkv,
    cosines,
    sines,
    mixed,
    totals,
    result,
    length,
    HEADS: tl.constexpr,
    HALF: tl.constexpr,
    BLOCK: tl.constexpr,
    KEYS: tl.constexpr,
):
    begin, out, of_head = _head(length, HEADS, HALF)
    width: tl.constexpr = 2 * HALF
    stride: tl.constexpr = 3 * HEADS * width
    columns = tl.arange(0, width)[None, :]
    tokens = tl.arange(0, BLOCK)
    inside = tokens < length
    where = tokens[:, None] * (HEADS * width) + columns
    d_out = tl.load(gradient + out + where, mask=inside[:, None], other=0.0)
    values = tl.load(mixed + out + where, mask=inside[:, None], other=0.0)
    pull = tl.sum(d_out.to(tl.float32) * values.to(tl.float32), 1)  # through the softmax's denominator
    total = tl.load(totals + of_head + tokens, mask=inside, other=float("inf"))  # beyond the end all weights are 0
    cos, sin = _angles(cosines, sines, tokens, inside, HALF)
    q_first, q_second = _turned(qkv + begin, tokens, inside, cos, sin, stride, HALF)
    d_q_first = tl.zeros((BLOCK, HALF), tl.float32)
    d_q_second = tl.zeros((BLOCK, HALF), tl.float32)
    for first in range(0, length, KEYS):
        keys = first + tl.arange(0, KEYS)
        there = keys < length
        k_cos, k_sin = _angles(cosines, sines, keys, there, HALF)
        k_first, k_second = _turned(qkv + begin + HEADS * width, keys, there, k_cos, k_sin, stride, HALF)
        where_v = keys[:, None] * stride + columns
        v = tl.load(qkv + begin + 2 * HEADS * width + where_v, mask=there[:, None], other=0.0)
        weights = tl.exp2(_scores(q_first, q_second, k_first, k_second, there, HALF) - total[:, None])
        d_v = tl.dot(tl.trans(weights.to(v.dtype)), d_out, input_precision="ieee")
        tl.store(result + begin + 2 * HEADS * width + where_v, d_v.to(v.dtype), mask=there[:, None])
        d_weights = tl.dot(d_out, tl.trans(v), input_precision="ieee")
        d_scores = (weights * (d_weights - pull[:, None]) * width**-0.5).to(v.dtype)
        d_k_first = tl.dot(tl.trans(d_scores), q_first, input_precision="ieee")
        d_k_second = tl.dot(tl.trans(d_scores), q_second, input_precision="ieee")
        _store_turned_back(
            result + begin + HEADS * width, keys, there, d_k_first, d_k_second, k_cos, k_sin, stride, HALF
        )
        d_q_first = tl.dot(d_scores, k_first, acc=d_q_first, input_precision="ieee")
        d_q_second = tl.dot(d_scores, k_second, acc=d_q_second, input_precision="ieee")
    cos, sin = _angles(cosines, sines, tokens, inside, HALF)
    _store_turned_back(result + begin, tokens, inside, d_q_first, d_q_second, cos, sin, stride, HALF)


def fits(qkv: Tensor, heads: int) -> bool:
    """In 16 bits, where a block's products are fast, and with halves of heads that a block can have."""
    return qkv.dtype in (torch.bfloat16, torch.float16) and qkv.shape[-1] / (6 * heads) in (16, 32, 64)


def short_attention(qkv: Tensor, cosines: Tensor, sines: Tensor, heads: int) -> Tensor:
    """The mixed values (b, l, d) of queries, keys and values (b, l, 3d)."""
    return _short_attention(qkv, cosines, sines, heads)[0]


_SCHEMA = "(Tensor qkv, Tensor cosines, Tensor sines, int heads) -> (Tensor, Tensor)"
_BACKWARD_SCHEMA = (
    "(Tensor gradient, Tensor qkv, Tensor cosines, Tensor sines, Tensor mixed, Tensor totals, int heads) -> Tensor"
)


@torch.library.custom_op("prism::short_attention", mutates_args=(), schema=_SCHEMA)
def _short_attention(qkv: Tensor, cosines: Tensor, sines: Tensor, heads: int) -> tuple[Tensor, Tensor]:
    """Mixed values, and the logarithm of each softmax's denominator."""
    b, length, d = qkv.shape[0], qkv.shape[1], qkv.shape[2] // 3
    qkv, mixed = qkv.contiguous(), qkv.new_empty(b, length, d)
    totals = torch.empty(b, heads, length, device=qkv.device)
    sizes = {"HEADS": heads, "HALF": d // heads // 2, "BLOCK": _block(length), "QUERIES": min(64, _block(length))}
    tables = cosines.contiguous(), sines.contiguous()
    with torch.cuda.device_of(qkv):  # Triton launches on the current device, whatever the tensors'
        _forward[(b * heads,)](qkv, *tables, mixed, totals, length, **sizes, num_warps=4, num_stages=1, maxnreg=128)
    return mixed, totals


@torch.library.custom_op("prism::short_attention_backward", mutates_args=(), schema=_BACKWARD_SCHEMA)
def _short_attention_backward(
    gradient: Tensor, qkv: Tensor, cosines: Tensor, sines: Tensor, mixed: Tensor, totals: Tensor, heads: int
) -> Tensor:
    b, length, d = gradient.shape
    gradient, qkv, result = gradient.contiguous(), qkv.contiguous(), qkv.new_empty(b, length, 3 * d)
    sizes = {"HEADS": heads, "HALF": d // heads // 2, "BLOCK": _block(length), "KEYS": min(64, _block(length))}
    inputs = gradient, qkv, cosines.contiguous(), sines.contiguous(), mixed.contiguous(), totals
    with torch.cuda.device_of(qkv):  # Triton launches on the current device, whatever the tensors'
        _backward[(b * heads,)](*inputs, result, length, **sizes, num_warps=8, num_stages=1, maxnreg=128)
    return result


def _block(length: int) -> int:
    return max(16, triton.next_power_of_2(length))


@_short_attention.register_fake
def _(qkv: Tensor, cosines: Tensor, sines: Tensor, heads: int) -> tuple[Tensor, Tensor]:
    b, length, width = qkv.shape
    return qkv.new_empty(b, length, width // 3), qkv.new_empty(b, heads, length, dtype=torch.float32)


@_short_attention_backward.register_fake
def _(
    gradient: Tensor, qkv: Tensor, cosines: Tensor, sines: Tensor, mixed: Tensor, totals: Tensor, heads: int
) -> Tensor:
    return qkv.new_empty(qkv.shape)


def _keep(ctx, inputs, output) -> None:
    qkv, cosines, sines, ctx.heads = inputs
    ctx.save_for_backward(qkv, cosines, sines, *output)


def _gradients(ctx, gradient, _):
    return _short_attention_backward(gradient, *ctx.saved_tensors, ctx.heads), None, None, None


_short_attention.register_autograd(_gradients, setup_context=_keep)
