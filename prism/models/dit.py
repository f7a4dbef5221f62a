"""The diffusion transformer of MDLM (Sahoo et al. 2024), after DiT (Peebles & Xie 2023): adaLN-zero, rotary positions, GELU.

Parameter names are those of the hub's `kuleshov-group/mdlm-owt`, whose weights load by name. Attention is SDPA, so it runs on
any device and takes a padding mask. Time conditioning is off by default, as in MDLM and PRISM: the condition is then one
learned constant.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import chain, repeat
from typing import NamedTuple, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from prism.models.backbone import Backbone, Cache, Facts
from prism.models.frugal import Dropout, standardised
from prism.state import Hidden, Mask, Tokens

Rotation = tuple[Float[Tensor, "l r"], Float[Tensor, "l r"]]
"""Cosines and sines of every position."""
Scaling = Callable[[Float[Tensor, " r"]], Float[Tensor, " r"]]
"""What a model trained further on longer texts makes of the rates at which its pairs turn."""
Places = Int[Tensor, "b m"]
"""Some positions of every row."""
SHORT = 128
"""Tokens up to which attention is one kernel, on a GPU."""
_HAS_TRITON = find_spec("triton") is not None


@dataclass(frozen=True)
class DiTConfig:
    """`DiTConfig.sudoku()` and `DiTConfig.owt()` are the paper's two models."""

    vocab_size: int
    mask_id: int
    length: int
    """The longest sequence it was trained for; rotary positions set no hard limit."""
    hidden_size: int = 768
    blocks: int = 12
    heads: int = 12
    cond_size: int = 128
    dropout: float = 0.1
    time_conditioning: bool = False
    learned_positions: bool = False
    """Learned absolute positions beside rotary's relative ones, for sequences of one layout such as boards; MDLM has none."""

    def __post_init__(self) -> None:
        for name in ("vocab_size", "length", "hidden_size", "blocks", "heads", "cond_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} must be at least 1.")
        check_heads(self.hidden_size, self.heads)
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout={self.dropout} must lie in [0, 1).")
        if not 0 <= self.mask_id < self.vocab_size:
            raise ValueError(f"mask_id={self.mask_id} is outside the vocabulary 0..{self.vocab_size - 1}.")

    @staticmethod
    def sudoku() -> DiTConfig:
        """28,558,091 parameters: 0 is the mask, 1–9 the digits, 10 ends a row of the board."""
        return DiTConfig(vocab_size=11, mask_id=0, length=89, hidden_size=512, blocks=8, heads=8)

    @staticmethod
    def owt() -> DiTConfig:
        """169,627,218 parameters: the GPT-2 vocabulary and a mask."""
        return DiTConfig(vocab_size=50258, mask_id=50257, length=1024)


def check_heads(hidden_size: int, heads: int) -> None:
    """Rotary positions turn pairs, so each head needs an even width."""
    if heads < 1 or hidden_size % (2 * heads):
        raise ValueError(f"hidden_size={hidden_size} must be a multiple of 2·heads, and heads={heads} at least 1.")


class DiT(Backbone):
    def __init__(self, config: DiTConfig) -> None:
        super().__init__()
        self.config = config
        self.facts = Facts(config.mask_id, config.vocab_size, config.hidden_size)
        d, c = config.hidden_size, config.cond_size
        self.vocab_embed = _Embedding(d, config.vocab_size)
        if config.learned_positions:
            self.position_embed = _Embedding(d, config.length)
        self.sigma_map = _NoiseLevel(c)
        self.rotary = Rotary(d // config.heads)
        self.blocks = nn.ModuleList(DiTBlock(d, config.heads, c, config.dropout) for _ in range(config.blocks))
        self.output_layer = FinalLayer(d, config.vocab_size, c)
        self._settled: list[Folded] | None = None

    def forward(self, tokens: Tokens, attend: Mask | None = None, cache: Cache | None = None) -> Hidden:
        if cache is not None:
            raise ValueError("The DiT keeps no cache; leave cache=None.")
        x = self.vocab_embed(tokens)
        if self.config.learned_positions:
            x = x + self._positions(tokens.shape[1])
        condition = self._condition(tokens, attend) if self.config.time_conditioning else self.constant_condition()
        rotation = self.rotary(tokens.shape[1])
        for block, weights in zip(self.blocks, self._settled or repeat(None, len(self.blocks)), strict=True):
            x = block(x, condition, rotation, attend, weights)
        return self.output_layer.features(x, condition)

    @contextmanager
    def settled(self) -> Iterator[list[Tensor]]:
        if self.config.time_conditioning or not all(block.is_plain for block in self._dit_blocks):
            yield []
            return
        # compiled as the forward pass is
        fold = self._folded if self._compiled_call_impl is None else torch.compile(self._folded, dynamic=False)
        made = fold()
        self._settled = [
            Folded(*(weight.detach().requires_grad_(weight.requires_grad) for weight in one)) for one in made
        ]
        leaves = [weight for one in self._settled for weight in one]
        try:
            yield leaves
        finally:
            self._settled = None
        learned = [weight for weight, leaf in zip(chain(*made), leaves, strict=True) if leaf.grad is not None]
        if learned:
            torch.autograd.backward(learned, [leaf.grad for leaf in leaves if leaf.grad is not None])
        leaves.clear()

    def _folded(self) -> list[Folded]:
        """In the precision in which they are multiplied: their gradients come in it as well."""
        kind, condition = self.device.type, self.constant_condition()
        precision = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else next(self.parameters()).dtype
        return [Folded(*(weight.to(precision) for weight in block.folded(condition))) for block in self._dit_blocks]

    def constant_condition(self) -> Float[Tensor, "1 c"]:
        """Without time conditioning, that of every pass."""
        return F.silu(self.sigma_map(torch.zeros(1, device=self.device)))

    @property
    def _dit_blocks(self) -> list[DiTBlock]:
        return [cast(DiTBlock, block) for block in self.blocks]

    def unembed(self, hidden: Float[Tensor, "*n d"]) -> Float[Tensor, "*n v"]:
        return self.output_layer.linear(hidden)

    def projection(self) -> tuple[Tensor, Tensor | None]:
        return self.output_layer.linear.weight, self.output_layer.linear.bias

    def _positions(self, length: int) -> Float[Tensor, "l d"]:
        if length > self.config.length:
            raise ValueError(
                f"A sequence of {length} tokens has positions this DiT never learned; it knows {self.config.length}."
            )
        return self.position_embed.embedding[:length]

    def matrices(self) -> dict[Tensor, int]:
        """Not adaLN's, which only ever see a few conditions."""
        layers = [(name, layer) for name, layer in self.blocks.named_modules() if type(layer) is nn.Linear]
        return {layer.weight: 3 if "qkv" in name else 1 for name, layer in layers if "adaLN" not in name}

    def _condition(self, tokens: Tokens, attend: Mask | None) -> Float[Tensor, "b c"]:
        """Of the noise level σ = -log(1 - t), t read off the share of masks."""
        attend = torch.ones_like(tokens, dtype=torch.bool) if attend is None else attend
        t = ((tokens == self.facts.mask_id) & attend).sum(1) / attend.sum(1)
        return F.silu(self.sigma_map(-torch.log1p(-t.clamp_max(1 - 1e-3))))


class _Embedding(nn.Module):
    def __init__(self, d: int, vocab_size: int) -> None:
        super().__init__()
        self.embedding = nn.Parameter(torch.empty(vocab_size, d))
        nn.init.kaiming_uniform_(self.embedding, a=math.sqrt(5))

    def forward(self, tokens: Tokens) -> Hidden:
        return F.embedding(tokens, self.embedding)


class _NoiseLevel(nn.Module):
    """Sinusoids of the noise level through a small network."""

    frequencies = 256

    def __init__(self, cond_size: int) -> None:
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(self.frequencies, cond_size), nn.SiLU(), nn.Linear(cond_size, cond_size))

    def forward(self, sigma: Float[Tensor, " n"]) -> Float[Tensor, "n c"]:
        half = self.frequencies // 2
        rates = torch.exp(-math.log(10_000) * torch.arange(half, device=sigma.device) / half)
        angles = sigma[:, None] * rates
        features = torch.cat([angles.cos(), angles.sin()], dim=-1)
        return self.mlp(features.to(next(self.mlp.parameters()).dtype))


class ModulatedNorm(nn.Module):
    """LayerNorm with a scale, then adaLN's own: LN(x)·w·(1 + scale) + shift."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d))

    def forward(
        self, x: Float[Tensor, "b l d"], shift: Float[Tensor, "n 1 d"], scale: Float[Tensor, "n 1 d"]
    ) -> Float[Tensor, "b l d"]:
        scale, shift = (self.weight * (1 + scale)).to(x), shift.to(x)  # under autocast they are bfloat16, x is not
        if len(scale) == 1:  # one condition for the whole batch: norm and modulation are one operation
            return F.layer_norm(x, x.shape[-1:], scale[0, 0], shift[0, 0])
        return F.layer_norm(x, x.shape[-1:]) * scale + shift


class Folded(NamedTuple):
    """The weights of a block with one condition for the whole batch worked in, where adaLN's scale s, shift t and gate g cost
    nothing:

        W·(LN(x)·s + t) + b = (W·s)·LN(x) + (W·t + b),    g·(W·x + b) = (g·W)·x + g·b
    """

    qkv: Float[Tensor, "d3 d"]
    qkv_bias: Float[Tensor, " d3"]
    out: Float[Tensor, "d d"]
    up: Float[Tensor, "d4 d"]
    up_bias: Float[Tensor, " d4"]
    down: Float[Tensor, "d d4"]
    down_bias: Float[Tensor, " d"]


class DiTBlock(nn.Module):
    def __init__(self, d: int, heads: int, cond_size: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = ModulatedNorm(d)
        self.attn_qkv = nn.Linear(d, 3 * d, bias=False)
        self.attn_out = nn.Linear(d, d, bias=False)
        self.norm2 = ModulatedNorm(d)
        self.mlp = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(approximate="tanh"), nn.Linear(4 * d, d))
        self.dropout = Dropout(dropout)
        self.adaLN_modulation = zero_init(nn.Linear(cond_size, 6 * d))

    def forward(
        self,
        x: Float[Tensor, "b l d"],
        condition: Float[Tensor, "n c"],
        rotation: Rotation,
        attend: Bool[Tensor, "b l"] | None,
        weights: Folded | None = None,
    ) -> Float[Tensor, "b l d"]:
        """`weights` are `folded(condition)`, if they are known."""
        if weights is None and (len(condition) > 1 or not self.is_plain):
            shift1, scale1, gate1, shift2, scale2, gate2 = self.adaLN_modulation(condition)[:, None].chunk(6, dim=-1)
            mixed = attention(self.attn_qkv(self.norm1(x, shift1, scale1)), self.heads, rotation, attend)
            x = x + self.dropout(gate1 * self.attn_out(mixed))
            return x + self.dropout(gate2 * self.mlp(self.norm2(x, shift2, scale2)))
        weights = weights or self.folded(condition)
        mixed = attention(F.linear(standardised(x), weights.qkv, weights.qkv_bias), self.heads, rotation, attend)
        return self._after_attention(x, mixed, weights)

    def at(
        self,
        places: Places,
        x: Float[Tensor, "b l d"],
        condition: Float[Tensor, "1 c"],
        rotation: Rotation,
        attend: Bool[Tensor, "b l"] | None,
    ) -> Float[Tensor, "b m d"]:
        """The same at a few `places` of every row: only keys and values are made of all others."""
        weights, d, size = self.folded(condition), x.shape[-1], x.shape[-1] // self.heads
        normed = standardised(x)
        q = F.linear(gathered(normed, places), weights.qkv[:d], weights.qkv_bias[:d]).unflatten(-1, (self.heads, size))
        k, v = F.linear(normed, weights.qkv[d:], weights.qkv_bias[d:]).unflatten(-1, (2, self.heads, size)).unbind(2)
        q = rotate(q, tuple(part[places][:, :, None] for part in rotation))
        k = rotate(k, tuple(part[:, None] for part in rotation))
        visible = None if attend is None else attend[:, None, None, :]
        q, k, v = (part.transpose(1, 2) for part in (q, k, v))
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=visible)
        return self._after_attention(gathered(x, places), mixed.transpose(1, 2).flatten(2), weights)

    def _after_attention(
        self, x: Float[Tensor, "b l d"], mixed: Float[Tensor, "b l d"], weights: Folded
    ) -> Float[Tensor, "b l d"]:
        x = x + self.dropout(F.linear(mixed, weights.out))
        wide = self.mlp[1](F.linear(standardised(x), weights.up, weights.up_bias))
        return x + self.dropout(F.linear(wide, weights.down, weights.down_bias))

    @property
    def is_plain(self) -> bool:
        """A linear layer with LoRA is more than its weight."""
        return all(type(layer) is nn.Linear for layer in (self.attn_qkv, self.attn_out, self.mlp[0], self.mlp[2]))

    def folded(self, condition: Float[Tensor, "1 c"]) -> Folded:
        shift1, scale1, gate1, shift2, scale2, gate2 = (
            self.adaLN_modulation(condition)[0].to(self.norm1.weight).chunk(6)
        )
        up, down = cast(nn.Linear, self.mlp[0]), cast(nn.Linear, self.mlp[2])
        return Folded(
            qkv=self.attn_qkv.weight * (self.norm1.weight * (1 + scale1)),
            qkv_bias=(self.attn_qkv.weight @ shift1).to(self.attn_qkv.weight),
            out=self.attn_out.weight * gate1[:, None],
            up=up.weight * (self.norm2.weight * (1 + scale2)),
            up_bias=up.weight @ shift2 + up.bias,
            down=down.weight * gate2[:, None],
            down_bias=down.bias * gate2,
        )


def gathered(x: Float[Tensor, "b l d"], places: Places) -> Float[Tensor, "b m d"]:
    return x.gather(1, places[..., None].expand(-1, -1, x.shape[-1]))


def attention(
    qkv: Float[Tensor, "b l d3"], heads: int, rotation: Rotation, attend: Bool[Tensor, "b l"] | None
) -> Float[Tensor, "b l d"]:
    if attend is None and qkv.is_cuda and _HAS_TRITON and qkv.shape[1] <= SHORT:
        from prism.models.short_attention import fits, short_attention

        if fits(qkv, heads):
            return short_attention(qkv, *rotation, heads)
    b, length, d = qkv.shape[0], qkv.shape[1], qkv.shape[2] // 3
    qkv = qkv.view(b, length, 3, heads, d // heads)
    turned = rotate(qkv[:, :, :2], tuple(part[:, None, None] for part in rotation))
    # a token's heads stay side by side in memory, and so they are in what attention returns: nothing is copied
    q, k, v = (part.transpose(1, 2) for part in (*turned.unbind(2), qkv[:, :, 2]))
    mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=None if attend is None else attend[:, None, None, :])
    return mixed.transpose(1, 2).reshape(b, length, d)


class FinalLayer(nn.Module):
    """Norm, adaLN and an output projection: the vocabulary head of the DiT, and with one output PRISM's Sudoku head."""

    def __init__(self, d: int, out: int, cond_size: int) -> None:
        super().__init__()
        self.norm_final = ModulatedNorm(d)
        self.linear = zero_init(nn.Linear(d, out))
        self.adaLN_modulation = zero_init(nn.Linear(cond_size, 2 * d))

    def features(self, x: Float[Tensor, "b l d"], condition: Float[Tensor, "n c"]) -> Float[Tensor, "b l d"]:
        shift, scale = self.adaLN_modulation(condition)[:, None].chunk(2, dim=-1)
        return self.norm_final(x, shift, scale)


def zero_init(linear: nn.Linear) -> nn.Linear:
    nn.init.zeros_(linear.weight)
    nn.init.zeros_(linear.bias)
    return linear


class Rotary(nn.Module):
    """Cosines and sines of position · base^(-2i/d) (Su et al. 2021).

    A table, because a compiler that sees how they are made makes them anew for every element it turns: 20 % of a training step.
    """

    cos: Tensor
    sin: Tensor
    known = 4096
    """Positions in the table; those of longer sequences are computed."""

    def __init__(self, head_size: int, base: float = 10_000.0, scaling: Scaling | None = None) -> None:
        super().__init__()
        self.head_size, self.base, self.scaling = head_size, base, scaling
        cos, sin = self._angles(self.known, torch.device("cpu"))  # real even where the weights are still on "meta"
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def forward(self, length: int) -> Rotation:
        if length > self.known:
            return self._angles(length, self.cos.device)
        return self.cos[:length], self.sin[:length]

    def _angles(self, length: int, device: torch.device) -> Rotation:
        rates = self.base ** (-torch.arange(0, self.head_size, 2, device=device).float() / self.head_size)
        rates = rates if self.scaling is None else self.scaling(rates)
        angles = torch.arange(length, device=device).float()[:, None] * rates
        return angles.cos(), angles.sin()


def rotate(x: Float[Tensor, "*n e"], rotation: tuple[Float[Tensor, "..."], ...]) -> Float[Tensor, "*n e"]:
    """Each pair (i, i + e/2) turned by its angle."""
    cos, sin = (part.to(x.dtype) for part in rotation)
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
