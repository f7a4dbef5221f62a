"""The Llama family against transformers (causal) and against loops (both directions)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from prism.models.llama import Llama, Llama3Scaling, LlamaConfig

VOCABULARY = 30
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
"""Of eight pairs one turns as ever, two or three are mixed, and the rest turns slower."""
SCALING = Llama3Scaling(factor=4.0, low=0.1, high=1.0, original=16)


def theirs(kind: str, **changes: Any) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM

    settings = {
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 64,
        "attn_implementation": "eager",
        **({"head_dim": 10} if kind == "qwen3" else {}),  # else 128
        **changes,
    }
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **settings))
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
        ("llama", {"rope_parameters": LLAMA3, "head_dim": 16}),
        ("qwen2", {}),
        ("qwen3", {}),
        ("qwen3", {"num_key_value_heads": 1, "tie_word_embeddings": True, "rms_norm_eps": 1e-3}),
        ("mistral", {"sliding_window": None}),
        ("mistral", {"sliding_window": 64, "head_dim": 6}),
    ],
)
def test_a_causal_model_is_transformers_own(kind: str, changes: dict[str, Any]) -> None:
    model = theirs(kind, **changes)
    found = ours(model)
    x = torch.randint(VOCABULARY, (3, 11), generator=torch.Generator().manual_seed(1))
    expected = model(input_ids=x, output_hidden_states=True)
    torch.testing.assert_close(found(x), expected.hidden_states[-1], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(found.unembed(found(x)), expected.logits, atol=1e-4, rtol=1e-4)


def test_scaled_positions_are_transformers_own() -> None:
    """At Llama-3.2's numbers, in the words of both generations of config.json."""
    scaling = {"factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0, "rope_type": "llama3"}
    scaling["original_max_position_embeddings"] = 8192
    model = theirs("llama", head_dim=64, max_position_embeddings=131072, rope_parameters=scaling | {"rope_theta": 5e5})
    new = model.config.to_dict()
    old = {name: value for name, value in new.items() if name != "rope_parameters"}
    old |= {"rope_theta": 5e5, "rope_scaling": scaling}
    rates = model.model.rotary_emb.inv_freq
    plain = 5e5 ** (-torch.arange(0, 64, 2) / 64)
    slower = plain / rates
    assert slower[0] == 1
    assert slower[-1] == pytest.approx(32)
    assert ((slower > 1.01) & (slower < 31)).any()
    for config in (new, old):
        found = LlamaConfig.of_causal(config, mask_id=0)
        assert found.rope_theta == 5e5
        assert found.rope_scaling is not None
        torch.testing.assert_close(found.rope_scaling(plain), rates, atol=0, rtol=1e-5)
    assert LlamaConfig.of_causal(old | {"rope_scaling": None}, mask_id=0).rope_scaling is None


def test_windows_as_long_as_the_sequences_are_none() -> None:
    """What a position sees of 16 tokens is then everything, as in transformers' model."""
    config = theirs("mistral", sliding_window=16).config.to_dict()
    assert LlamaConfig.of_causal(config, mask_id=0, length=16).length == 16
    for length in (17, None):
        with pytest.raises(
            ValueError, match=rf"sliding_window=16 .* of {length or 64} tokens, .* at most 16 \(--length"
        ):
            LlamaConfig.of_causal(config, mask_id=0, length=length)
    unsaid = {name: value for name, value in config.items() if name != "sliding_window"}
    with pytest.raises(ValueError, match="sliding_window=4096"):
        LlamaConfig.of_causal(unsaid, mask_id=0, length=4097)
    qwen = theirs("qwen2").config.to_dict() | {"sliding_window": 16}
    assert LlamaConfig.of_causal(qwen, mask_id=0).length == 64
    with pytest.raises(ValueError, match="sliding_window=16"):
        LlamaConfig.of_causal(qwen | {"use_sliding_window": True}, mask_id=0)


def with_loops(
    weights: dict[str, Tensor],
    row: Tensor,
    config: LlamaConfig,
    kept: Sequence[Tensor] = (),
    fresh: Tensor | None = None,
    states: list[Tensor] | None = None,
) -> Tensor:
    """One sequence, every position seeing every other, written out: the last hidden states. What every layer was given, and
    they, go into `states`; positions that are not `fresh` are as they were `kept` there by an earlier call."""

    def as_kept(x: Tensor, layer: int) -> Tensor:
        x = x if fresh is None else torch.where(fresh[:, None], x, kept[layer])
        if states is not None:
            states.append(x)
        return x

    def linear(name: str, x: Tensor) -> Tensor:
        product = torch.einsum("...i,oi->...o", x, weights[f"{name}.weight"])
        return product + weights[f"{name}.bias"] if f"{name}.bias" in weights else product

    def norm(name: str, x: Tensor) -> Tensor:
        return x / (x.pow(2).mean(-1, keepdim=True) + config.norm_eps).sqrt() * weights[f"{name}.weight"]

    def normed(name: str, x: Tensor) -> Tensor:
        return norm(name, x) if config.qk_norm else x

    def scaled(rate: float) -> float:
        scaling = config.rope_scaling
        turns = math.inf if scaling is None else rate * scaling.original / (2 * math.pi)
        if scaling is None or turns > scaling.high:
            return rate
        if turns < scaling.low:
            return rate / scaling.factor
        kept = (turns - scaling.low) / (scaling.high - scaling.low)
        return kept * rate + (1 - kept) * rate / scaling.factor

    def turned(vector: Tensor, position: int) -> Tensor:
        half, out = len(vector) // 2, torch.empty_like(vector)
        for pair in range(half):
            angle = position * scaled(config.rope_theta ** (-2 * pair / len(vector)))
            a, b = vector[pair], vector[pair + half]
            out[pair] = a * math.cos(angle) - b * math.sin(angle)
            out[pair + half] = a * math.sin(angle) + b * math.cos(angle)
        return out

    x, size = weights["embed_tokens.weight"][row], config.head_size
    for layer in range(config.layers):
        name, x = f"layers.{layer}", as_kept(x, layer)
        inner = norm(f"{name}.input_layernorm", x)
        q, k, v = (linear(f"{name}.self_attn.{part}_proj", inner) for part in "qkv")
        mixed = torch.zeros(len(row), config.heads * size)
        for head in range(config.heads):
            mine = slice(head * size, (head + 1) * size)
            group = head * config.kv_heads // config.heads
            shared = slice(group * size, (group + 1) * size)
            own = (normed(f"{name}.self_attn.q_norm", q[:, mine]), normed(f"{name}.self_attn.k_norm", k[:, shared]))
            queries, keys = (torch.stack([turned(x, i) for i, x in enumerate(each)]) for each in own)
            share = (queries @ keys.T / math.sqrt(size)).softmax(-1)
            mixed[:, mine] = share @ v[:, shared]
        x = x + linear(f"{name}.self_attn.o_proj", mixed)
        inner = norm(f"{name}.post_attention_layernorm", x)
        gate = linear(f"{name}.mlp.gate_proj", inner)
        x = x + linear(f"{name}.mlp.down_proj", gate / (1 + torch.exp(-gate)) * linear(f"{name}.mlp.up_proj", inner))
    return as_kept(norm("norm", x), config.layers)


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
@pytest.mark.parametrize("changes", [{}, {"qkv_bias": True}, {"qk_norm": True}, {"rope_scaling": SCALING}], ids=str)
@pytest.mark.parametrize("lengths", [None, [9, 6, 2]])
def test_both_directions_against_loops(lengths: list[int] | None, changes: dict[str, Any]) -> None:
    model = both_ways(**changes)
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
        ({"model_type": "ministral"}, "'ministral' is not .* give a llama, mistral, qwen2 or qwen3 checkpoint"),
        ({"rope_scaling": {"rope_type": "yarn"}}, "Scaled rotary positions of type 'yarn'"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "Scaled rotary positions of type 'linear'"),
        ({"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}}, "of 0.5 of a head"),
        ({"rope_parameters": LLAMA3 | {"high_freq_factor": 1.0}}, "0 < low < high"),
        ({"mlp_bias": True}, "biases in the MLP"),
        ({"attention_bias": True}, "a bias after attention"),
        ({"hidden_act": "gelu"}, "hidden_act='gelu' is not this family's"),
        ({"num_key_value_heads": 3}, "heads=4 must be a multiple of kv_heads=3"),
    ],
)
def test_what_it_cannot_be_is_refused(changes: dict[str, Any], message: str) -> None:
    config = theirs("llama").config.to_dict()
    with pytest.raises(ValueError, match=message):
        LlamaConfig.of_causal({**config, **changes}, mask_id=0)
