"""From hidden states straight to the log-probability of one token each, through a linear vocabulary head: the cross-entropy of
training, without logits that anyone has to keep.

Logits are made some rows at a time, asked and let go; the way back makes them again, in 16 bits if the head computes in 16
bits. The head is widened to a round number of rows first, because products with rows of an odd length are several times slower
on a GPU. `Reading.each(log_probability, …)` in `prism.state` is the reference.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

LOGITS_AT_ONCE = 1 << 26  # in float32: 256 MiB
LOGITS_IN_CACHE = 1 << 20  # 4 MiB: they are read several times over, and a CPU would wait for memory each time
ROUND = 64
"""Rows of a vocabulary come in multiples of this."""
_HAS_TRITON = find_spec("triton") is not None


def rows_at_once(vocabulary: int, device: torch.device) -> int:
    """Of how many rows to make the logits before they are let go."""
    most = min(LOGITS_AT_ONCE, LOGITS_IN_CACHE) if device.type == "cpu" else LOGITS_AT_ONCE
    return max(1, most // vocabulary)


def log_probability_through(
    rows: Float[Tensor, "n d"],
    weight: Float[Tensor, "v d"],
    bias: Float[Tensor, " v"] | None,
    forbidden: Int[Tensor, " f"] | None,
    tokens: Int[Tensor, " n"],
) -> Float[Tensor, " n"]:
    """log softmax(weight · row + bias)[token] of every row, where `forbidden` tokens have probability 0."""
    device, tokens = rows.device.type, tokens.clamp_max(len(weight) - 1)  # a mask may be outside the vocabulary
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else weight.dtype
    spare = -len(weight) % ROUND
    weight, rows = weight.to(dtype), rows.to(dtype)
    bias = torch.zeros(len(weight), dtype=dtype, device=rows.device) if bias is None else bias.to(dtype)
    bias = bias if forbidden is None else bias.index_fill(0, forbidden, -torch.inf)
    if spare:
        weight, bias = F.pad(weight, (0, 0, 0, spare)), F.pad(bias, (0, spare), value=-torch.inf)
    return _Through.apply(rows, weight, bias, tokens)


def log_probability_in(logits: Float[Tensor, "n v"], tokens: Int[Tensor, " n"]) -> Float[Tensor, " n"]:
    """log softmax(logits)[token] of every row, where nobody learns from it: on a GPU one look at the logits as they are."""
    return _normalised(logits, tokens.clamp_max(logits.shape[-1] - 1))[0]


def entropy_of(logits: Float[Tensor, "n v"]) -> Float[Tensor, " n"]:
    """H = -Σ_v f(v) log f(v) of every row's f = softmax(logits), in nats; a forbidden id has f = 0 and adds nothing."""
    log_probabilities = (logits if logits.dtype == torch.float64 else logits.float()).log_softmax(-1)
    return -(log_probabilities.exp() * log_probabilities.clamp_min(-1e4)).sum(-1)


def entropy_in(logits: Float[Tensor, "n v"]) -> Float[Tensor, " n"]:
    """The same where nobody learns from it: on a GPU one look at the logits as they are."""
    if _on_gpu(logits):
        from prism.vocabulary_kernel import entropy

        return entropy(logits)
    return entropy_of(logits)


class _Through(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, rows: Float[Tensor, "n d"], weight: Float[Tensor, "v d"], bias: Float[Tensor, " v"], tokens: Tensor
    ) -> Float[Tensor, " n"]:
        parts = [
            _normalised(torch.addmm(bias, some, weight.T), wanted) for some, wanted in _chunks(weight, rows, tokens)
        ]
        found, normalisers = (torch.cat(part) for part in zip(*parts, strict=True))
        ctx.save_for_backward(rows, weight, bias, tokens, normalisers)
        return found

    @staticmethod
    def backward(ctx: Any, gradient: Float[Tensor, " n"]) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        rows, weight, bias, tokens, normalisers = ctx.saved_tensors
        of_rows, of_weight, of_bias, _ = ctx.needs_input_grad
        rows_slope = torch.empty_like(rows) if of_rows else None
        sums = torch.promote_types(weight.dtype, torch.float32)
        weight_slope = torch.zeros_like(weight, dtype=sums) if of_weight else None
        bias_slope = torch.zeros_like(bias, dtype=sums) if of_bias else None
        first = 0
        for some, *others in _chunks(weight, rows, tokens, normalisers, gradient.contiguous()):
            slope = torch.addmm(bias, some, weight.T)
            _differentiate(slope, *others)
            if rows_slope is not None:
                torch.mm(slope, weight, out=rows_slope[first : first + len(some)])
            if weight_slope is not None:
                weight_slope += slope.T @ some
            if bias_slope is not None:
                bias_slope += slope.sum(0, dtype=sums)
            first += len(some)
        return rows_slope, _as(weight_slope, weight), _as(bias_slope, bias), None


def _chunks(weight: Float[Tensor, "v d"], *tensors: Tensor) -> Any:
    return zip(*(tensor.split(rows_at_once(len(weight), weight.device)) for tensor in tensors), strict=True)


def _as(slope: Tensor | None, like: Tensor) -> Tensor | None:
    return None if slope is None else slope.to(like.dtype)


def _normalised(logits: Float[Tensor, "n v"], tokens: Int[Tensor, " n"]) -> tuple[Tensor, Tensor]:
    """log softmax(logits)[token], and the logarithm of what the softmax is divided by."""
    if _on_gpu(logits):
        from prism.vocabulary_kernel import normalise

        return normalise(logits, tokens)
    logits = logits if logits.dtype == torch.float64 else logits.float()
    normalisers = logits.logsumexp(-1)
    return logits.gather(-1, tokens[:, None])[:, 0] - normalisers, normalisers


def _differentiate(
    logits: Float[Tensor, "n v"], tokens: Int[Tensor, " n"], normalisers: Tensor, gradient: Tensor
) -> None:
    """Writes over the logits what Σ gradient · log softmax(logits)[token] gives as theirs."""
    if _on_gpu(logits):
        from prism.vocabulary_kernel import differentiate

        return differentiate(logits, tokens, normalisers, gradient)
    slope = (logits - normalisers[:, None]).exp_().mul_(-gradient[:, None])
    logits.copy_(slope.scatter_add_(1, tokens[:, None], gradient[:, None].to(slope.dtype)))
    return None


def _on_gpu(logits: Tensor) -> bool:
    return logits.is_cuda and _HAS_TRITON and logits.dtype != torch.float64
