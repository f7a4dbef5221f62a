"""A causal language model as a distribution: it writes exact samples and tells the exact likelihood of any sequence.

Two uses. As a judge it gives generated text its perplexity. As a *truth* it is the data: a corpus written by it has a known
law, so that whatever a model trained on that corpus writes can be held against the law itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from os import PathLike
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from prism.models.folder import ModelError
from prism.models.llama import Attention, Layer, Llama, LlamaConfig, attention
from prism.noise import Noise, Purpose
from prism.recording import record
from prism.state import Mask, Reading, Tokens

_HAS_TRITON = find_spec("triton") is not None


class Causal:
    """`llama` read from left to right; every sequence begins with the token `start`."""

    def __init__(self, llama: Llama, start: int) -> None:
        llama.future = 0.0
        self.llama, self.start = llama.eval().requires_grad_(False), start

    @torch.no_grad()
    def log_likelihood(self, tokens: Tokens, attend: Mask | None = None) -> Float[Tensor, "b k"]:
        """log p(x^i | x^1 … x^{i-1}) of every token after the first; 0 on padding."""
        hidden, wanted = self.llama(tokens, attend)[:, :-1], tokens[:, 1:]
        everywhere = torch.ones_like(wanted, dtype=torch.bool)
        reading = Reading(hidden.flatten(0, 1), self.llama.unembed, self.llama.config.vocab_size, everywhere, None)
        return reading.of(wanted).view_as(wanted) * (1 if attend is None else attend[:, 1:])

    def write(
        self, noise: Noise, length: int, draw: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
    ) -> tuple[Tokens, Float[Tensor, "b k"]]:
        """A sequence for every row of `noise`, and the log-likelihood of its tokens after the first, as they were drawn."""
        *_, last = self.writing(iter([noise]), length, draw)
        return last

    @torch.no_grad()
    def writing(
        self,
        noises: Iterator[Noise],
        length: int,
        draw: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]],
        *,
        rough: bool = False,
    ) -> Iterator[tuple[Tokens, Float[Tensor, "b k"]]]:
        """Batch after batch of equal size. On a GPU a position's whole work is recorded and replayed.

        `rough` computes with 11 binary digits where float32 has 24: a GPU multiplies by TF32, and what is looked back at is
        kept in float16. What is written is then the law's to within that; it is for corpora, of which there is never enough.
        """
        page: _Page | None = None
        for noise in noises:
            with _multiplying("high" if rough else "highest"):
                if page is None:
                    page = _Page(self.llama, noise, length, self.start, torch.float16 if rough else None)
                    turn = partial(page.turn, draw)
                    again = record(turn) if page.keys.is_cuda else turn
                page.clear(noise)
                for _ in range(length - 1):
                    again()
            yield page.tokens.clone(), page.logs.clone()


@contextmanager
def _multiplying(precision: str) -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


class _Page:
    """A batch being written: always the same memory, so that the work at a position can be recorded."""

    def __init__(self, llama: Llama, noise: Noise, length: int, start: int, kept: torch.dtype | None) -> None:
        config, device, count = llama.config, llama.device, len(noise.keys)
        self.llama, self.start, self.keys = llama, start, noise.keys.clone()
        self.position = torch.zeros(1, dtype=torch.long, device=device)
        self.tokens = torch.zeros(count, length, dtype=torch.long, device=device)
        self.logs = torch.zeros(count, length - 1, device=device)
        shape = (config.layers, 2, count, config.kv_heads, length, config.head_size)
        self.past = torch.zeros(shape, dtype=kept or llama.embed_tokens.weight.dtype, device=device)
        self.rotation = tuple(part.to(device) for part in llama.rotary(length))

    def clear(self, noise: Noise) -> None:
        self.keys.copy_(noise.keys)
        self.position.zero_()
        self.tokens.fill_(self.start)

    def turn(self, draw: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]) -> None:
        """The token after `position`."""
        x = self.llama.embed_tokens(self.tokens.index_select(1, self.position))
        rotation = tuple(part.index_select(0, self.position) for part in self.rotation)
        for layer, (keys, values) in zip(self.llama.layers, self.past, strict=True):
            assert isinstance(layer, Layer)
            x = x + self._attend(layer.self_attn, layer.input_layernorm(x), rotation, keys, values)
            x = x + layer.mlp(layer.post_attention_layernorm(x))
        logits = self.llama.unembed(self.llama.norm(x)[:, 0])
        uniforms = Noise(self.keys, self.position.expand(len(self.keys))).uniform(Purpose.TOKEN, 1)[:, 0]
        drawn, logs = draw(logits, uniforms)
        self.logs.index_copy_(1, self.position, logs[:, None].to(self.logs.dtype))
        self.position += 1
        self.tokens.index_copy_(1, self.position, drawn[:, None])

    def _attend(self, part: Attention, x: Tensor, rotation: tuple[Tensor, ...], keys: Tensor, values: Tensor) -> Tensor:
        q, k, v = part.heads(x, rotation)
        keys.index_copy_(2, self.position, k.to(keys.dtype))
        values.index_copy_(2, self.position, v.to(values.dtype))
        return part.o_proj(look_back(q, keys, values, self.position).transpose(1, 2).flatten(2))


def look_back(
    q: Float[Tensor, "b h 1 s"], k: Float[Tensor, "b g m s"], v: Float[Tensor, "b g m s"], position: Int[Tensor, " 1"]
) -> Float[Tensor, "b h 1 s"]:
    """Attention to everything up to `position`."""
    if q.is_cuda and _HAS_TRITON:
        from prism.models.look_back import look_back as kernel

        return kernel(q, k, v, position)
    visible = torch.arange(k.shape[2], device=k.device) <= position
    return attention(q, k.to(q.dtype), v.to(q.dtype), visible[None])


def load_llama2c(path: str | PathLike[str]) -> Causal:
    """A checkpoint of llama2.c (version 0: seven int32, then float32 tensors), such as stories15M.bin."""
    source = Path(path)
    try:
        header = np.fromfile(source, dtype="<i4", count=7).tolist()
        numbers = np.fromfile(source, dtype="<f4", offset=28)
    except OSError as error:
        raise ModelError(f"{source} cannot be read ({error.strerror}); check the path.") from error
    if len(header) < 7 or min(header[:5]) < 1 or header[0] % (2 * header[3]) or header[3] % header[4]:
        raise ModelError(f"{source} does not begin like a llama2.c checkpoint; give stories15M.bin or its like.")
    d, inner, layers, heads, kv_heads, vocabulary, length = header
    size, rows = d // heads, abs(vocabulary)
    config = LlamaConfig(
        vocab_size=rows,
        mask_id=0,  # <unk>, which it never writes; nothing is masked here
        length=length,
        hidden_size=d,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        intermediate_size=inner,
        head_size=size,
        tied=vocabulary > 0,
    )
    shapes = {
        "embed_tokens": (rows, d),
        "input_layernorm": (layers, d),
        "self_attn.q_proj": (layers, heads * size, d),
        "self_attn.k_proj": (layers, kv_heads * size, d),
        "self_attn.v_proj": (layers, kv_heads * size, d),
        "self_attn.o_proj": (layers, d, heads * size),
        "post_attention_layernorm": (layers, d),
        "mlp.gate_proj": (layers, inner, d),
        "mlp.down_proj": (layers, d, inner),
        "mlp.up_proj": (layers, inner, d),
        "norm": (d,),
        "cosines": (length, size // 2),
        "sines": (length, size // 2),
        "lm_head": (0 if config.tied else rows, d),
    }
    if sum(math.prod(shape) for shape in shapes.values()) != len(numbers):
        raise ModelError(f"{source} holds {len(numbers):,} numbers and its header asks for others; copy it again.")
    ends = np.cumsum([math.prod(shape) for shape in shapes.values()])
    parts = {
        name: torch.from_numpy(part.copy()).view(shape)
        for (name, shape), part in zip(shapes.items(), np.split(numbers, ends[:-1]), strict=True)
    }
    weights = {f"{name}.weight": parts[name] for name in ("embed_tokens", "norm")}
    weights |= {} if config.tied else {"lm_head.weight": parts["lm_head"]}
    for name in (name for name in shapes if "." in name or "layernorm" in name):
        for layer, weight in enumerate(parts[name]):
            turns = name.endswith(("q_proj", "k_proj"))
            weights[f"layers.{layer}.{name}.weight"] = halves(weight, size) if turns else weight
    model = Llama(config)
    model.load_state_dict(weights)
    return Causal(model, start=1)


def halves(weight: Float[Tensor, "e d"], size: int) -> Float[Tensor, "e d"]:
    """llama2.c turns neighbours (2i, 2i + 1), we turn (i, i + size/2): the rows of every head in our order."""
    return weight.unflatten(0, (-1, size // 2, 2)).transpose(1, 2).reshape(weight.shape)
