"""The transformer of Llama, Mistral, Qwen, LLaDA and Dream, in both directions: RMSNorm, rotary positions, grouped queries,
SwiGLU.

One implementation for the family. Modules have the names of transformers' Llama, so its weights load by name; what makes a
causal model a masked diffusion model is the attention, here a number: the share of later positions a position may see.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from prism.models.backbone import Backbone, Cache, Facts, Field
from prism.models.dit import Rotary, rotate
from prism.state import Hidden, Mask, Tokens

Turns = tuple[Float[Tensor, "*n l r"], ...]
"""Cosines and sines of positions, the same for all rows or each row's own."""
Keep = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""Takes a layer's new keys and values and gives all of them."""
_CAUSAL = ("llama", "mistral", "qwen2", "qwen3")
"""Whose weights load by name."""


@dataclass(frozen=True)
class Llama3Scaling:
    """Rotary positions of Llama 3.1 and 3.2: pairs that turn less than `low` times within the `original` length turn `factor`
    times slower, those that turn more than `high` times as before, and those between are mixed of both."""

    factor: float
    low: float
    high: float
    original: int

    def __post_init__(self) -> None:
        if not (self.factor >= 1 and 0 < self.low < self.high and self.original >= 1):
            raise ValueError(f"{self} needs factor >= 1, 0 < low < high and original >= 1; copy config.json again.")

    def __call__(self, rates: Float[Tensor, " r"]) -> Float[Tensor, " r"]:
        turns = self.original * rates / (2 * math.pi)
        kept = ((turns - self.low) / (self.high - self.low)).clamp(0, 1)
        return kept * rates + (1 - kept) * rates / self.factor


@dataclass(frozen=True)
class LlamaConfig:
    vocab_size: int
    mask_id: int
    length: int
    """The longest sequence it was trained for; rotary positions set no hard limit."""
    hidden_size: int
    layers: int
    heads: int
    kv_heads: int
    intermediate_size: int
    head_size: int
    rope_theta: float = 10_000.0
    rope_scaling: Llama3Scaling | None = None
    norm_eps: float = 1e-5
    qkv_bias: bool = False
    """Qwen2's and Dream's."""
    qk_norm: bool = False
    """Whether every head's queries and keys are normed before they are turned: Qwen3's."""
    tied: bool = False
    """Whether the output projection is the embedding."""
    shifted: bool = False
    """Whether the prediction of token i is read at i - 1, as in the causal model it was made from."""
    known: int | None = None
    """Tokens the tokenizer knows, where the vocabulary is padded beyond them; the rest is never drawn."""

    def __post_init__(self) -> None:
        for name in ("vocab_size", "length", "hidden_size", "layers", "heads", "kv_heads", "intermediate_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} must be at least 1.")
        if self.heads % self.kv_heads:
            raise ValueError(f"heads={self.heads} must be a multiple of kv_heads={self.kv_heads}.")
        if self.head_size < 2 or self.head_size % 2:
            raise ValueError(f"head_size={self.head_size} must be even: rotary positions turn pairs.")
        if not 0 <= self.mask_id < self.vocab_size:
            raise ValueError(f"mask_id={self.mask_id} is outside the vocabulary 0..{self.vocab_size - 1}.")

    @staticmethod
    def of_saved(*, rope_scaling: Mapping[str, Any] | None = None, **settings: Any) -> LlamaConfig:
        """What a config.json written here says."""
        return LlamaConfig(rope_scaling=None if rope_scaling is None else Llama3Scaling(**rope_scaling), **settings)

    @staticmethod
    def of_causal(config: Mapping[str, Any], mask_id: int, length: int | None = None) -> LlamaConfig:
        """What the config.json of a Llama, Mistral, Qwen2 or Qwen3 says, for sequences of `length`, its longest if left out;
        what this family cannot express is refused."""
        kind = config.get("model_type")
        if kind not in _CAUSAL:
            known = f"{', '.join(_CAUSAL[:-1])} or {_CAUSAL[-1]}"
            raise ValueError(f"model_type {kind!r} is not of this family; give a {known} checkpoint.")
        activation = config.get("hidden_act", "silu")
        if activation != "silu":
            raise ValueError(f"hidden_act={activation!r} is not this family's; give a checkpoint with 'silu'.")
        if config.get("mlp_bias"):
            raise ValueError("mlp_bias=True: biases in the MLP are not supported; give a checkpoint without.")
        if config.get("attention_bias") and kind in ("llama", "qwen3"):  # the others' code does not ask
            raise ValueError("attention_bias=True: a bias after attention is not supported; give a checkpoint without.")
        length = length or config["max_position_embeddings"]
        windowed = kind == "mistral" or config.get("use_sliding_window")
        window = config.get("sliding_window", 4096) if windowed else None  # transformers' default
        if window is not None and window < length:
            raise ValueError(
                f"sliding_window={window} is shorter than sequences of {length} tokens, and attention here reaches all of "
                f"them; adapt it to sequences of at most {window} (--length, length=…)."
            )
        rope = config.get("rope_scaling") or config.get("rope_parameters") or {}  # transformers 4, transformers 5
        heads = config["num_attention_heads"]
        return LlamaConfig(
            vocab_size=config["vocab_size"],
            mask_id=mask_id,
            length=length,
            hidden_size=config["hidden_size"],
            layers=config["num_hidden_layers"],
            heads=heads,
            kv_heads=config.get("num_key_value_heads") or heads,
            intermediate_size=config["intermediate_size"],
            head_size=config.get("head_dim") or config["hidden_size"] // heads,
            rope_theta=rope.get("rope_theta") or config.get("rope_theta") or 10_000.0,
            rope_scaling=_scaling(rope, config),
            norm_eps=config.get("rms_norm_eps", 1e-6),
            qkv_bias=kind == "qwen2",
            qk_norm=kind == "qwen3",
            tied=bool(config.get("tie_word_embeddings")),
        )


def _scaling(rope: Mapping[str, Any], config: Mapping[str, Any]) -> Llama3Scaling | None:
    kind = rope.get("rope_type", rope.get("type", "default"))
    share = rope.get("partial_rotary_factor", config.get("partial_rotary_factor"))
    if kind not in ("default", "llama3") or share not in (None, 1):
        said = f"of type {kind!r}" if share in (None, 1) else f"of {share} of a head"
        raise ValueError(
            f"Scaled rotary positions {said} are not supported; take a checkpoint with none, or with llama3's."
        )
    if kind == "default":
        return None
    original = rope.get("original_max_position_embeddings") or config["max_position_embeddings"]
    return Llama3Scaling(rope["factor"], rope["low_freq_factor"], rope["high_freq_factor"], original)


class Llama(Backbone):
    future: float | Tensor = 1.0
    """The share of later positions each position sees: 1 is masked diffusion's attention, 0 a causal model's. A tensor stands
    for a share between them, where adapting a causal model passes through: a fresh pattern is drawn at every forward pass."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.config = config
        self.facts = Facts(
            config.mask_id,
            config.vocab_size,
            config.hidden_size,
            field=Field.SHIFTED if config.shifted else Field.SAME,
            suppressed=() if config.known is None else tuple(range(config.known, config.vocab_size)),
        )
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.rotary = Rotary(config.head_size, config.rope_theta, config.rope_scaling)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.layers))
        self.norm = RMSNorm(config.hidden_size, config.norm_eps)
        self.lm_head = None if config.tied else nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    def forward(self, tokens: Tokens, attend: Mask | None = None, cache: Cache | None = None) -> Hidden:
        visible = self._visible(tokens.shape[1], tokens.device)
        if attend is not None:
            visible = attend[:, None, None, :] if visible is None else visible & attend[:, None, None, :]
        rotation = self.rotary(tokens.shape[1])
        if cache is not None and cache.positions is not None:
            tokens = tokens.gather(1, cache.positions)
            rotation = tuple(part[cache.positions][:, None] for part in rotation)  # of every row, for all heads
        x = self.embed_tokens(tokens)
        for number, layer in enumerate(self.layers):
            x = layer(x, rotation, visible, None if cache is None else partial(cache.layer, number))
        x = self.norm(x)
        return x if cache is None else cache.hidden(x)

    def unembed(self, hidden: Float[Tensor, "*n d"]) -> Float[Tensor, "*n v"]:
        return F.linear(hidden, self.embed_tokens.weight) if self.lm_head is None else self.lm_head(hidden)

    def projection(self) -> tuple[Tensor, Tensor | None]:
        return (self.embed_tokens if self.lm_head is None else self.lm_head).weight, None

    def _visible(self, length: int, device: torch.device) -> Bool[Tensor, "l l"] | None:
        """Which positions each position sees; None where it sees all."""
        widening = isinstance(self.future, Tensor)
        if not widening and self.future == 1:
            return None
        past = torch.ones(length, length, dtype=torch.bool, device=device).tril()
        return past | (torch.rand(length, length, device=device) < self.future) if widening else past


class Layer(nn.Module):
    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.norm_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.norm_eps)
        self.mlp = SwiGLU(config.hidden_size, config.intermediate_size)

    def forward(
        self, x: Float[Tensor, "b l d"], rotation: Turns, visible: Bool[Tensor, "..."] | None, keep: Keep | None = None
    ) -> Float[Tensor, "b l d"]:
        x = x + self.self_attn(self.input_layernorm(x), rotation, visible, keep)
        return x + self.mlp(self.post_attention_layernorm(x))


class Attention(nn.Module):
    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        d, size = config.hidden_size, config.head_size
        self.head_size = size
        self.q_proj = nn.Linear(d, config.heads * size, bias=config.qkv_bias)
        self.k_proj = nn.Linear(d, config.kv_heads * size, bias=config.qkv_bias)
        self.v_proj = nn.Linear(d, config.kv_heads * size, bias=config.qkv_bias)
        self.o_proj = nn.Linear(config.heads * size, d, bias=False)
        self.q_norm, self.k_norm = (
            RMSNorm(size, config.norm_eps) if config.qk_norm else nn.Identity() for _ in range(2)
        )

    def forward(
        self, x: Float[Tensor, "b l d"], rotation: Turns, visible: Bool[Tensor, "..."] | None, keep: Keep | None = None
    ) -> Float[Tensor, "b l d"]:
        q, k, v = self.heads(x, rotation)
        k, v = (k, v) if keep is None else keep(k, v)
        return self.o_proj(attention(q, k, v, visible).transpose(1, 2).flatten(2))

    def heads(self, x: Float[Tensor, "b l d"], rotation: Turns) -> tuple[Float[Tensor, "b h l s"], ...]:
        """Queries, keys and values, the first two turned to their positions."""
        parts = (self.q_proj, self.k_proj, self.v_proj)
        q, k, v = (part(x).unflatten(-1, (-1, self.head_size)) for part in parts)
        q, k, v = (part.transpose(1, 2) for part in (self.q_norm(q), self.k_norm(k), v))
        return rotate(q, rotation), rotate(k, rotation), v


def attention(
    q: Float[Tensor, "b h l s"],
    k: Float[Tensor, "b g m s"],
    v: Float[Tensor, "b g m s"],
    visible: Bool[Tensor, "..."] | None,
) -> Float[Tensor, "b h l s"]:
    """Queries share keys and values in groups; with a mask, only torch's slowest kernel knows groups: they are spelled out."""
    shared = q.shape[1] // k.shape[1]
    if visible is not None and shared > 1:
        k, v = k.repeat_interleave(shared, dim=1), v.repeat_interleave(shared, dim=1)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=visible, enable_gqa=q.shape[1] != k.shape[1])


class SwiGLU(nn.Module):
    def __init__(self, d: int, inner: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(d, inner, bias=False)
        self.up_proj = nn.Linear(d, inner, bias=False)
        self.down_proj = nn.Linear(inner, d, bias=False)

    def forward(self, x: Float[Tensor, "b l d"]) -> Float[Tensor, "b l d"]:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class RMSNorm(nn.Module):
    """x / rms(x) · w, computed in float32 at least and rounded once."""

    def __init__(self, d: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(d)), eps

    def forward(self, x: Float[Tensor, "*n d"]) -> Float[Tensor, "*n d"]:
        return F.rms_norm(x, x.shape[-1:], self.weight, self.eps).to(x.dtype)  # which autocast may have widened
