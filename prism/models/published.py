"""Masked diffusion models of the hub that are Llamas under other names: LLaDA (Nie et al. 2025) and Dream (Ye et al. 2025).

Their checkpoints come with code of their own, which is never run: what their config.json says is translated, and their weights
load into `Llama` by name.

- LLaDA-8B, LLaDA-1.5 and iLLaDA: OLMo's names, no biases, predictions read in place.
- Dream-7B, Dream-Coder and DiffuCoder: Qwen2's names and biases, predictions read one position to the left, and a vocabulary
  padded beyond what the tokenizer knows.
- Block-causal models (LLaDA2.x, SDAR) would need attention to one's own block and those before it, mixtures of experts for
  LLaDA2, and quality judged without the right context; LLaDA-MoE would need mixtures of experts. They are refused (`refusal`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from prism.models.folder import Folder, ModelError
from prism.models.llama import LlamaConfig

LORA_TARGETS = ("q_proj", "k_proj", "v_proj")
"""Where the paper puts LoRA, in both families; the vocabulary projection has a name of its own here."""

_BLOCKS = "attention that ends with the block, and quality judged without what follows it"
_EXPERTS = "mixtures of experts"
_BLOCK_CAUSAL = {
    "bd3lm": _BLOCKS,
    "Fast_dLLM_Qwen": _BLOCKS,
    "llada2_moe": f"{_EXPERTS}, {_BLOCKS}",
    "sdar": _BLOCKS,
    "sdar_moe": f"{_EXPERTS}, {_BLOCKS}",
}
"""Kinds of `config.json`, and what they would need."""

_LLADA_NAMES = {
    "attn_norm": "input_layernorm",
    "q_proj": "self_attn.q_proj",
    "k_proj": "self_attn.k_proj",
    "v_proj": "self_attn.v_proj",
    "attn_out": "self_attn.o_proj",
    "ff_norm": "post_attention_layernorm",
    "ff_proj": "mlp.gate_proj",
    "up_proj": "mlp.up_proj",
    "ff_out": "mlp.down_proj",
}
_LLADA_MEANS = {
    "activation_type": "silu",
    "alibi": False,
    "block_type": "llama",
    "include_bias": False,
    "include_qkv_bias": False,
    "layer_norm_type": "rms",
    "rope": True,
    "attention_layer_norm": False,
    "scale_logits": False,
    "input_emb_norm": False,
    "clip_qkv": None,
    "rope_scaling": None,
}
"""What this implementation takes for granted; a config that says otherwise is refused."""


def refusal(config: Mapping[str, Any]) -> str | None:
    """What it is that this `config.json` describes, and what it would need here; None where that is not known to be missing."""
    kind = config.get("model_type")
    if kind in _BLOCK_CAUSAL:
        what = "is block-causal: a position sees its own block and those before it"
        return f"{what}. Missing here: {_BLOCK_CAUSAL[kind]}; give one that sees both sides (LLaDA-8B, iLLaDA, Dream)."
    # LLaDA-MoE was published under LLaDA's own model_type.
    named = "MoE" in str(config.get("architectures"))
    if kind == "llada_moe" or (kind == "llada" and (named or config.get("num_experts"))):
        return f"is LLaDA-MoE. Missing here: {_EXPERTS}; give one without (LLaDA-8B, iLLaDA, Dream)."
    return None


def llada_config(config: Mapping[str, Any], mask_id: int | None) -> LlamaConfig:
    for name, meant in _LLADA_MEANS.items():
        if config.get(name, meant) != meant:
            raise ValueError(f"{name}={config[name]!r} is not LLaDA's; it must be {meant!r}")
    heads = config["n_heads"]
    return LlamaConfig(
        vocab_size=config.get("embedding_size") or config["vocab_size"],
        mask_id=_mask_id(config, mask_id),
        length=config["max_sequence_length"],
        hidden_size=config["d_model"],
        layers=config["n_layers"],
        heads=heads,
        kv_heads=config.get("n_kv_heads") or heads,
        intermediate_size=config.get("mlp_hidden_size") or config["mlp_ratio"] * config["d_model"],
        head_size=config["d_model"] // heads,
        rope_theta=config.get("rope_theta", 10_000.0),
        norm_eps=config.get("rms_norm_eps", 1e-5),
        tied=bool(config.get("weight_tying")),
    )


def llada_name(name: str) -> str:
    """Our name of one of LLaDA's weights. Its blocks and its vocabulary have an `ff_out` each."""
    name = name.removeprefix("model.transformer.")
    outside = {"wte.weight": "embed_tokens.weight", "ln_f.weight": "norm.weight", "ff_out.weight": "lm_head.weight"}
    if name in outside:
        return outside[name]
    return re.sub(r"^blocks\.(\d+)\.(\w+)\.", lambda m: f"layers.{m[1]}.{_LLADA_NAMES.get(m[2], m[2])}.", name)


def dream_config(config: Mapping[str, Any], mask_id: int | None, known: int | None) -> LlamaConfig:
    """Dream's config.json is Qwen2's with a mask; `known` is how many tokens its tokenizer has."""
    causal = LlamaConfig.of_causal({**config, "model_type": "qwen2"}, mask_id=_mask_id(config, mask_id))
    settings = {**vars(causal), "shifted": True, "known": known}
    return LlamaConfig(**settings)


def dream_name(name: str) -> str:
    return name.removeprefix("model.")


def _mask_id(config: Mapping[str, Any], mask_id: int | None) -> int:
    found = config.get("mask_token_id") if mask_id is None else mask_id
    if found is None:
        raise ValueError("it names no mask_token_id; say which id the mask has (--mask_id ID, mask_id=ID)")
    return int(found)


def known_tokens(path: Path) -> int | None:
    """One more than the largest id the tokenizer in the folder knows; None where no tokenizer lies there."""
    folder, ids = Folder(path), list[int]()
    files = {name: folder.json(name) for name in _TOKENIZER if (path / name).is_file()}
    for name, content in files.items():
        try:
            ids += _TOKENIZER[name](content)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ModelError(
                f"{path / name} does not say which tokens there are ({type(error).__name__}: {error}); copy it again from its "
                "source."
            ) from error
    return max(ids) + 1 if ids else None


def _of_tokenizer(content: Mapping[str, Any]) -> list[int]:
    vocabulary = content["model"]["vocab"]
    pieces = range(len(vocabulary)) if isinstance(vocabulary, list) else vocabulary.values()  # Unigram's is a list
    return [*map(int, pieces), *(int(token["id"]) for token in content.get("added_tokens", ()))]


def _of_vocabulary(content: Mapping[str, Any]) -> list[int]:
    return [int(token) for token in content.values()]


_TOKENIZER: dict[str, Callable[[Mapping[str, Any]], list[int]]] = {
    "tokenizer.json": _of_tokenizer,
    "vocab.json": _of_vocabulary,
    "added_tokens.json": _of_vocabulary,
    "tokenizer_config.json": lambda content: [int(token) for token in content.get("added_tokens_decoder", {})],
}
"""The files that name tokens, and the ids each of them names."""
