"""The Llama family as it is sampled from: queries, keys and values in one product, gate and up in another, LoRA worked into the
weights it stands beside (W + α/r · B·A, in float32 before it is rounded), the vocabulary in a round number of rows.

A step that computes one block of a cached text reads every weight for a few dozen tokens: it takes as long as reading them, and
every small operation in between counts. So the pieces of a layer on both sides of its attention are modules of their own, and
`compile` compiles those, once for all layers.
"""

from __future__ import annotations

from copy import copy
from typing import Any, TypeVar, cast

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from prism.models.backbone import Backbone
from prism.models.dit import rotate
from prism.models.llama import Keep, Layer, Llama, Turns, attention
from prism.vocabulary import ROUND

Part = TypeVar("Part", bound=nn.Module)


def can_be_fused(model: Backbone) -> bool:
    """A Llama whose weights are numbers: those of four bits stay as they are packed."""
    return type(model) is Llama and model.packed_from is None


class FusedLlama(Llama):
    """The same predictions as the model it is made from, whose weights it takes over: where no LoRA is worked into them they
    lie in memory once, and the old model's are views of the new one's."""

    @torch.no_grad()
    def __init__(self, model: Llama, dtype: torch.dtype) -> None:
        Backbone.__init__(self)
        self.config, self.facts, self.future = model.config, model.facts, model.future
        self.embed_tokens = _shared(model.embed_tokens, dtype)
        self.rotary = model.rotary
        self.layers = nn.ModuleList(FusedLayer(cast(Layer, layer), dtype) for layer in model.layers)
        self.norm = _shared(model.norm, dtype)
        self.lm_head = None if model.lm_head is None else _shared(model.lm_head, dtype)
        self.vocabulary = self._vocabulary(model)
        self.forbidden = model.forbidden[:0]
        self.to(model.device)

    def _vocabulary(self, model: Llama) -> nn.Linear:
        """The output projection with rows of zeros at its end, without which a product with it is several times slower on a
        GPU; what may not be drawn is forbidden by its bias."""
        mine, theirs = (it.embed_tokens if it.lm_head is None else it.lm_head for it in (self, model))
        rows, whole = self.config.vocab_size, round_rows(mine.weight.data)
        mine.weight.data = whole[:rows]
        if theirs.weight.dtype == whole.dtype:
            theirs.weight.data = whole[:rows]
        return linear(whole, whole.new_zeros(len(whole)).index_fill(0, model.forbidden, -torch.inf), whole.dtype)

    def unembed(self, hidden: Float[Tensor, "*n d"]) -> Float[Tensor, "*n v"]:
        return self.vocabulary(hidden)[..., : self.config.vocab_size]

    def projection(self) -> tuple[Tensor, Tensor | None]:
        rows = self.config.vocab_size
        return self.vocabulary.weight[:rows], self.vocabulary.bias[:rows]

    def compile(self, *settings: Any, **others: Any) -> None:
        """Piece by piece; the whole would take minutes and gain nothing."""
        for layer in self.layers:
            for piece in layer.children():
                piece.compile(*settings, **others)


class FusedLayer(nn.Module):
    def __init__(self, layer: Layer, dtype: torch.dtype) -> None:
        super().__init__()
        self.before, self.after = Before(layer, dtype), After(layer, dtype)

    def forward(
        self, x: Float[Tensor, "b l d"], rotation: Turns, visible: Bool[Tensor, "..."] | None, keep: Keep | None = None
    ) -> Float[Tensor, "b l d"]:
        q, k, v = self.before(x, rotation)
        k, v = (k, v) if keep is None else keep(k, v)
        return self.after(x, attention(q, k, v, visible))


class Before(nn.Module):
    """Of the attention: norm, queries, keys and values, turned to their positions."""

    def __init__(self, layer: Layer, dtype: torch.dtype) -> None:
        super().__init__()
        parts = (layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj)
        self.norm, self.qkv = _shared(layer.input_layernorm, dtype), _joined(parts, dtype)
        self.q_norm, self.k_norm = (_shared(part, dtype) for part in (layer.self_attn.q_norm, layer.self_attn.k_norm))
        self.head_size = layer.self_attn.head_size
        self.sizes = [part.out_features // self.head_size for part in parts]

    def forward(self, x: Float[Tensor, "b l d"], rotation: Turns) -> tuple[Float[Tensor, "b h l s"], ...]:
        heads = self.qkv(self.norm(x)).unflatten(-1, (-1, self.head_size))
        q, k, v = heads.split(self.sizes, dim=2)
        q, k, v = (part.transpose(1, 2) for part in (self.q_norm(q), self.k_norm(k), v))
        return rotate(q, rotation), rotate(k, rotation), v


class After(nn.Module):
    """The attention: its output, norm and SwiGLU, with the residual stream past both."""

    def __init__(self, layer: Layer, dtype: torch.dtype) -> None:
        super().__init__()
        self.out, self.norm = _joined((layer.self_attn.o_proj,), dtype), _shared(layer.post_attention_layernorm, dtype)
        self.gate_up = _joined((layer.mlp.gate_proj, layer.mlp.up_proj), dtype)
        self.down = _joined((layer.mlp.down_proj,), dtype)

    def forward(self, x: Float[Tensor, "b l d"], mixed: Float[Tensor, "b h l s"]) -> Float[Tensor, "b l d"]:
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        gate, up = self.gate_up(self.norm(x)).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up)


def _joined(parts: tuple[Any, ...], dtype: torch.dtype) -> nn.Linear:
    """One linear layer for all of them, plain ones or PEFT's, its rows one part after another."""
    weights = [_merged(part).to(dtype) for part in parts]
    whole = weights[0] if len(weights) == 1 else torch.cat(weights)
    for part, rows in zip(parts, whole.split([len(weight) for weight in weights]), strict=True):
        if type(part) is nn.Linear and part.weight.dtype == dtype:
            part.weight.data = rows
    biases = [part.bias for part in parts if part.bias is not None]
    return linear(whole, torch.cat(biases) if biases else None, dtype)


def linear(weight: Float[Tensor, "o i"], bias: Float[Tensor, " o"] | None, dtype: torch.dtype) -> nn.Linear:
    """A layer over these, which learns nothing."""
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
    layer.weight = nn.Parameter(weight.detach().to(dtype), requires_grad=False)
    if bias is not None:
        layer.bias = nn.Parameter(bias.detach().to(dtype), requires_grad=False)
    return layer


def round_rows(tensor: Float[Tensor, "v ..."]) -> Float[Tensor, "w ..."]:
    """With zeros at its end, up to a round number of rows."""
    spare = -len(tensor) % ROUND
    return torch.cat([tensor, tensor.new_zeros(spare, *tensor.shape[1:])]) if spare else tensor


def _merged(part: Any) -> Tensor:
    """Its weight, with what LoRA adds to it."""
    if type(part) is nn.Linear:
        return part.weight.data
    return part.base_layer.weight.float() + part.get_delta_weight("default").float()


def _shared(part: Part, dtype: torch.dtype) -> Part:
    """A module with weights of its own to freeze, over the same memory where the type is the same."""
    twin = copy(part)
    twin._parameters = {
        name: weight if weight is None else nn.Parameter(weight.data.to(dtype), requires_grad=False)
        for name, weight in part._parameters.items()
    }
    return twin
