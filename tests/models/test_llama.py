"""The Llama family against transformers (causal) and against loops (both directions)."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from prism.models.llama import Llama, LlamaConfig

VOCABULARY = 30


def theirs(kind: str, **changes: Any) -> Any:
    from transformers import LlamaConfig as HubLlama
    from transformers import LlamaForCausalLM, Qwen2ForCausalLM
    from transformers import Qwen2Config as HubQwen

    settings = {
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 64,
        "attn_implementation": "eager",
        **changes,
    }
    torch.manual_seed(0)
    model = LlamaForCausalLM(HubLlama(**settings)) if kind == "llama" else Qwen2ForCausalLM(HubQwen(**settings))
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    return model.eval()


def ours(model: Any) -> Llama:
    config = LlamaConfig.of_causal(model.config.to_dict(), mask_id=0)
    found = Llama(config)
    weights = {name.removeprefix("model."): value for name, value in model.state_dict().items()}
    if config.tied:
        weights.pop("lm_head.weight", None)
    found.load_state_dict(weights)
    found.future = 0.0
    return found.eval()


@torch.no_grad()
@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("llama", {}),
        ("llama", {"tie_word_embeddings": True, "head_dim": 16}),
        ("llama", {"num_key_value_heads": 4, "rms_norm_eps": 1e-3, "rope_parameters": {"rope_theta": 500.0}}),
        ("qwen2", {}),
    ],
)
def test_a_causal_model_is_transformers_own(kind: str, changes: dict[str, Any]) -> None:
    model = theirs(kind, **changes)
    found = ours(model)
    x = torch.randint(VOCABULARY, (3, 11), generator=torch.Generator().manual_seed(1))
    expected = model(input_ids=x, output_hidden_states=True)
    torch.testing.assert_close(found(x), expected.hidden_states[-1], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(found.unembed(found(x)), expected.logits, atol=1e-4, rtol=1e-4)


def with_loops(weights: dict[str, Tensor], row: Tensor, config: LlamaConfig) -> Tensor:
    """One sequence, every position seeing every other, written out: the last hidden states."""

    def linear(name: str, x: Tensor) -> Tensor:
        product = torch.einsum("...i,oi->...o", x, weights[f"{name}.weight"])
        return product + weights[f"{name}.bias"] if f"{name}.bias" in weights else product

    def norm(name: str, x: Tensor) -> Tensor:
        return x / (x.pow(2).mean(-1, keepdim=True) + config.norm_eps).sqrt() * weights[f"{name}.weight"]

    def turned(vector: Tensor, position: int) -> Tensor:
        half, out = len(vector) // 2, torch.empty_like(vector)
        for pair in range(half):
            angle = position * config.rope_theta ** (-2 * pair / len(vector))
            a, b = vector[pair], vector[pair + half]
            out[pair] = a * math.cos(angle) - b * math.sin(angle)
            out[pair + half] = a * math.sin(angle) + b * math.cos(angle)
        return out

    x, size = weights["embed_tokens.weight"][row], config.head_size
    for layer in range(config.layers):
        name = f"layers.{layer}"
        inner = norm(f"{name}.input_layernorm", x)
        q, k, v = (linear(f"{name}.self_attn.{part}_proj", inner) for part in "qkv")
        mixed = torch.zeros(len(row), config.heads * size)
        for head in range(config.heads):
            mine = slice(head * size, (head + 1) * size)
            group = head * config.kv_heads // config.heads
            shared = slice(group * size, (group + 1) * size)
            queries = torch.stack([turned(q[i, mine], i) for i in range(len(row))])
            keys = torch.stack([turned(k[i, shared], i) for i in range(len(row))])
            share = (queries @ keys.T / math.sqrt(size)).softmax(-1)
            mixed[:, mine] = share @ v[:, shared]
        x = x + linear(f"{name}.self_attn.o_proj", mixed)
        inner = norm(f"{name}.post_attention_layernorm", x)
        gate = linear(f"{name}.mlp.gate_proj", inner)
        x = x + linear(f"{name}.mlp.down_proj", gate / (1 + torch.exp(-gate)) * linear(f"{name}.mlp.up_proj", inner))
    return norm("norm", x)


def both_ways(**changes: Any) -> Llama:
    settings = {
        "vocab_size": VOCABULARY,
        "mask_id": 3,
        "length": 32,
        "hidden_size": 24,
        "layers": 2,
        "heads": 4,
        "kv_heads": 2,
        "intermediate_size": 40,
        "head_size": 6,
        "rope_theta": 200.0,
    }
    torch.manual_seed(0)
    model = Llama(LlamaConfig(**{**settings, **changes}))
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    return model.eval()


@torch.no_grad()
@pytest.mark.parametrize("qkv_bias", [False, True])
@pytest.mark.parametrize("lengths", [None, [9, 6, 2]])
def test_both_directions_against_loops(lengths: list[int] | None, qkv_bias: bool) -> None:
    model = both_ways(qkv_bias=qkv_bias)
    x = torch.randint(VOCABULARY, (3, 9), generator=torch.Generator().manual_seed(1))
    attend = None if lengths is None else torch.arange(9) < torch.tensor(lengths)[:, None]
    hidden, weights = model(x, attend), model.state_dict()
    for row in range(3):
        end = 9 if lengths is None else lengths[row]
        expected = with_loops(weights, x[row, :end], model.config)
        torch.testing.assert_close(hidden[row, :end], expected, atol=1e-4, rtol=1e-4)


@torch.no_grad()
def test_half_of_the_future_is_seen() -> None:
    """Drawn anew at every pass; the past is always seen."""
    model = both_ways()
    model.future = torch.tensor(0.5)
    seen = torch.stack([model._visible(16, torch.device("cpu")) for _ in range(200)]).float().mean(0)
    assert seen.tril().sum() == 16 * 17 / 2
    later = seen[torch.ones(16, 16).triu(1).bool()]
    assert 0.3 < later.min() < later.mean() < later.max() < 0.7
    assert abs(later.mean() - 0.5) < 0.02


def test_shifted_and_padded_vocabularies_are_facts() -> None:
    model = both_ways(shifted=True, known=27)
    x = torch.randint(VOCABULARY, (2, 5))
    logs = model.predict(x).log_probabilities(torch.ones_like(x, dtype=torch.bool))
    assert logs.isneginf().sum(1).tolist() == [4] * 10  # the mask and the three unknown ones
    shifted = model.unembed(model(x))
    found = model.predict(x).logits(torch.ones_like(x, dtype=torch.bool)).view(2, 5, -1)
    assert torch.equal(found[:, 1:], shifted[:, :-1])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "gpt2"}, "'gpt2' is not of this family"),
        ({"rope_scaling": {"rope_type": "yarn"}}, "Scaled rotary positions"),
        ({"mlp_bias": True}, "biases in the MLP"),
        ({"num_key_value_heads": 3}, "heads=4 must be a multiple of kv_heads=3"),
    ],
)
def test_what_it_cannot_be_is_refused(changes: dict[str, Any], message: str) -> None:
    config = theirs("llama").config.to_dict()
    with pytest.raises(ValueError, match=message):
        LlamaConfig.of_causal({**config, **changes}, mask_id=0)
