"""Two layers of a transformer that, compiled, keep less for the way back: what they would keep costs more time to write and to
read again than to do without. Not compiled, they are torch's own."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

EPSILON = 1e-5


def standardised(x: Float[Tensor, "*n d"]) -> Float[Tensor, "*n d"]:
    """Mean 0 and variance 1 (LayerNorm without weights); in a compiled pass under autocast, in the precision that whoever
    multiplies it next wants."""
    if torch.compiler.is_compiling() and torch.is_autocast_enabled(x.device.type) and x.dtype == torch.float32:
        found: Tensor = _Standardised.apply(x, torch.get_autocast_dtype(x.device.type))
        return found
    return F.layer_norm(x, x.shape[-1:], eps=EPSILON)


class _Standardised(torch.autograd.Function):
    """What is kept is the rounded result, which the matrix product after it keeps anyway, instead of an exact one besides."""

    @staticmethod
    def forward(ctx: Any, x: Float[Tensor, "*n d"], precision: torch.dtype) -> Float[Tensor, "*n d"]:
        centred = x - x.mean(-1, keepdim=True)
        rate = torch.rsqrt(centred.square().mean(-1, keepdim=True) + EPSILON)
        result = (centred * rate).to(precision)
        ctx.save_for_backward(result, rate)
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Float[Tensor, "*n d"]) -> tuple[Float[Tensor, "*n d"], None]:
        result, rate = ctx.saved_tensors
        gradient, result = gradient.float(), result.float()
        along = (gradient * result).mean(-1, keepdim=True) * result
        return rate * (gradient - gradient.mean(-1, keepdim=True) - along), None


class Dropout(nn.Module):
    """Compiled, a mask is a hash of two random numbers and the place: some fifteen operations and not the seventy of torch's
    generator, and made anew on the way back instead of kept."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share

    def forward(self, x: Float[Tensor, "*n d"]) -> Float[Tensor, "*n d"]:
        if not torch.compiler.is_compiling() or not self.training or self.share == 0 or x.numel() >= 1 << 31:
            return F.dropout(x, self.share, self.training)
        keys = torch.randint(0, 1 << 31, (2,), device=x.device).int()
        place = torch.arange(x.numel(), device=x.device, dtype=torch.int32).view(x.shape)
        number = _mixed(_mixed(place ^ keys[0]) + keys[1]) & 0x7FFFFFFF
        return torch.where(number >= int(self.share * (1 << 31)), x * (1 / (1 - self.share)), 0.0)


def _mixed(x: Int[Tensor, "..."]) -> Int[Tensor, "..."]:
    """The finaliser of MurmurHash3 (Appleby) on 32 bits, which wrap around; shifts fill with zeros, unlike torch's."""
    x = (x ^ ((x >> 16) & 0xFFFF)) * -2048144789
    x = (x ^ ((x >> 13) & 0x7FFFF)) * -1028477387
    return x ^ ((x >> 16) & 0xFFFF)
