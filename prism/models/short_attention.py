"""Attention over a sequence short enough for one block, in one Triton kernel a direction: rotary turns, scores, softmax and the
mix of values, read from the product that made queries, keys and values and, backwards, written as its gradient.

A Sudoku of 89 tokens is too short for kernels that walk along a sequence: they spend the time on what lies between, on turning,
cutting and putting together. Here a program holds one head of one row, so nothing but its inputs is kept for the way back.
`prism.models.dit.attention` is the reference.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _turned(x, tokens, inside, cos, sin, STRIDE: tl.constexpr, HALF: tl.constexpr):
    """Both halves of a head of queries or keys, each pair turned by its position's angle."""
    where = x + tokens[:, None] * STRIDE + tl.arange(0, HALF)[None, :]
    first = tl.load(where, mask=inside[:, None], other=0.0)
    second = tl.load(where + HALF, mask=inside[:, None], other=0.0)
    turned = first * cos - second * sin, second * cos + first * sin
    return turned[0].to(first.dtype), turned[1].to(first.dtype)


@triton.jit
def _store_turned_back(x, tokens, inside, first, second, cos, sin, STRIDE: tl.constexpr, HALF: tl.constexpr):
    where = x + tokens[:, None] * STRIDE + tl.arange(0, HALF)[None, :]
    tl.store(where, (first * cos + second * sin).to(x.dtype.element_ty), mask=inside[:, None])
    tl.store(where + HALF, (second * cos - first * sin).to(x.dtype.element_ty), mask=inside[:, None])


@triton.jit
def _attention_of(q_first, q_second, k_first, k_second, inside, HALF: tl.constexpr):
    scores = tl.dot(q_first, tl.trans(k_first), input_precision="ieee")
    scores = tl.dot(q_second, tl.trans(k_second), acc=scores, input_precision="ieee") * (2 * HALF) ** -0.5
    scores = tl.where(inside[None, :], scores, float("-inf"))
    weights = tl.exp(scores - tl.max(scores, 1)[:, None])
    return weights / tl.sum(weights, 1)[:, None]


@triton.jit
def _head(qkv, cosines, sines, length, HEADS: tl.constexpr, HALF: tl.constexpr, BLOCK: tl.constexpr):
    """The program's row and head: where its queries and its mixed values begin, which tokens there are, their angles, both
    halves of queries and keys, turned, and values."""
    row, head = (tl.program_id(0) // HEADS).to(tl.int64), tl.program_id(0) % HEADS
    width: tl.constexpr = 2 * HALF
    stride: tl.constexpr = 3 * HEADS * width
    tokens = tl.arange(0, BLOCK)
    inside = tokens < length
    angles = tokens[:, None] * HALF + tl.arange(0, HALF)[None, :]
    cos = tl.load(cosines + angles, mask=inside[:, None], other=0.0)
    sin = tl.load(sines + angles, mask=inside[:, None], other=0.0)
    begin = row * length * stride + head * width
    q_first, q_second = _turned(qkv + begin, tokens, inside, cos, sin, stride, HALF)
    k_first, k_second = _turned(qkv + begin + HEADS * width, tokens, inside, cos, sin, stride, HALF)
    values = begin + 2 * HEADS * width + tokens[:, None] * stride + tl.arange(0, width)[None, :]
    v = tl.load(qkv + values, mask=inside[:, None], other=0.0)
    mixed = row * length * HEADS * width + head * width + tokens[:, None] * (HEADS * width) + tl.arange(0, width)
    return begin, values, mixed, tokens, inside, cos, sin, q_first, q_second, k_first, k_second, v


@triton.jit
def _forward(qkv, cosines, sines, mixed, length, HEADS: tl.constexpr, HALF: tl.constexpr, BLOCK: tl.constexpr):
    _, _, where, _, inside, _, _, q_first, q_second, k_first, k_second, v = _head(
        qkv, cosines, sines, length, HEADS, HALF, BLOCK
    )
    weights = _attention_of(q_first, q_second, k_first, k_second, inside, HALF)
    out = tl.dot(weights.to(v.dtype), v, input_precision="ieee")
    tl.store(mixed + where, out.to(v.dtype), mask=inside[:, None])


@triton.jit
def _backward(
    gradient, qkv, cosines, sines, result, length, HEADS: tl.constexpr, HALF: tl.constexpr, BLOCK: tl.constexpr
):
    begin, values, where, tokens, inside, cos, sin, q_first, q_second, k_first, k_second, v = _head(
        qkv, cosines, sines, length, HEADS, HALF, BLOCK
    )
    width: tl.constexpr = 2 * HALF
    stride: tl.constexpr = 3 * HEADS * width
    d_out = tl.load(gradient + where, mask=inside[:, None], other=0.0)
    weights = _attention_of(q_first, q_second, k_first, k_second, inside, HALF)
    d_v = tl.dot(tl.trans(weights.to(v.dtype)), d_out, input_precision="ieee")
    tl.store(result + values, d_v.to(v.dtype), mask=inside[:, None])
    d_weights = tl.dot(d_out, tl.trans(v), input_precision="ieee")
    pull = tl.sum(weights * d_weights, 1)[:, None]  # through the softmax's denominator
    d_scores = (weights * (d_weights - pull) * width**-0.5).to(v.dtype)
    d_first = tl.dot(d_scores, k_first, input_precision="ieee")
    d_second = tl.dot(d_scores, k_second, input_precision="ieee")
    _store_turned_back(result + begin, tokens, inside, d_first, d_second, cos, sin, stride, HALF)
    d_first = tl.dot(tl.trans(d_scores), q_first, input_precision="ieee")
    d_second = tl.dot(tl.trans(d_scores), q_second, input_precision="ieee")
    _store_turned_back(result + begin + HEADS * width, tokens, inside, d_first, d_second, cos, sin, stride, HALF)


def fits(qkv: Tensor, heads: int) -> bool:
    """In 16 bits, where a block's products are fast, and with halves of heads that a block can have."""
    return qkv.dtype in (torch.bfloat16, torch.float16) and qkv.shape[-1] / (6 * heads) in (16, 32, 64)


_SCHEMA = "(Tensor qkv, Tensor cosines, Tensor sines, int heads) -> Tensor"
_BACKWARD_SCHEMA = "(Tensor gradient, Tensor qkv, Tensor cosines, Tensor sines, int heads) -> Tensor"


@torch.library.custom_op("prism::short_attention", mutates_args=(), schema=_SCHEMA)
def short_attention(qkv: Tensor, cosines: Tensor, sines: Tensor, heads: int) -> Tensor:
    """The mixed values (b, l, d) of queries, keys and values (b, l, 3d)."""
    b, length, d = qkv.shape[0], qkv.shape[1], qkv.shape[2] // 3
    qkv, mixed = qkv.contiguous(), qkv.new_empty(b, length, d)
    sizes = {"HEADS": heads, "HALF": d // heads // 2, "BLOCK": max(16, triton.next_power_of_2(length))}
    _forward[(b * heads,)](qkv, cosines.contiguous(), sines.contiguous(), mixed, length, **sizes, num_warps=4)
    return mixed


@torch.library.custom_op("prism::short_attention_backward", mutates_args=(), schema=_BACKWARD_SCHEMA)
def short_attention_backward(gradient: Tensor, qkv: Tensor, cosines: Tensor, sines: Tensor, heads: int) -> Tensor:
    b, length, d = gradient.shape
    gradient, qkv, result = gradient.contiguous(), qkv.contiguous(), qkv.new_empty(b, length, 3 * d)
    sizes = {"HEADS": heads, "HALF": d // heads // 2, "BLOCK": max(16, triton.next_power_of_2(length))}
    tables = cosines.contiguous(), sines.contiguous()
    _backward[(b * heads,)](gradient, qkv, *tables, result, length, **sizes, num_warps=8)
    return result


@short_attention.register_fake
def _(qkv: Tensor, cosines: Tensor, sines: Tensor, heads: int) -> Tensor:
    return qkv.new_empty(qkv.shape[0], qkv.shape[1], qkv.shape[2] // 3)


@short_attention_backward.register_fake
def _(gradient: Tensor, qkv: Tensor, cosines: Tensor, sines: Tensor, heads: int) -> Tensor:
    return qkv.new_empty(qkv.shape)


def _keep(ctx, inputs, output) -> None:
    qkv, cosines, sines, ctx.heads = inputs
    ctx.save_for_backward(qkv, cosines, sines)


def _gradients(ctx, gradient):
    return short_attention_backward(gradient, *ctx.saved_tensors, ctx.heads), None, None, None


short_attention.register_autograd(_gradients, setup_context=_keep)
