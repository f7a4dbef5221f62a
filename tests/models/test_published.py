"""LLaDA and Dream in the hub's format: tiny checkpoints under the published names, against loops."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from test_llama import VOCABULARY, both_ways, with_loops
from torch import Tensor

import prism
from prism.models.cached import Cached
from prism.models.folder import ModelError
from prism.models.hub import load_backbone
from prism.models.llama import Llama
from prism.models.published import LORA_TARGETS, known_tokens

LLADA = {
    "model_type": "llada",
    "architectures": ["LLaDAModelLM"],
    "auto_map": {"AutoModelForCausalLM": "modeling_llada.LLaDAModelLM"},
    "activation_type": "silu",
    "alibi": False,
    "block_type": "llama",
    "d_model": 24,
    "embedding_size": VOCABULARY,
    "include_bias": False,
    "include_qkv_bias": False,
    "layer_norm_type": "rms",
    "mask_token_id": 3,
    "max_sequence_length": 32,
    "mlp_hidden_size": 40,
    "n_heads": 4,
    "n_kv_heads": 2,
    "n_layers": 2,
    "rms_norm_eps": 1e-5,
    "rope": True,
    "rope_theta": 200.0,
    "vocab_size": VOCABULARY,
    "weight_tying": False,
}
DREAM = {
    "model_type": "Dream",
    "architectures": ["DreamModel"],
    "hidden_size": 24,
    "intermediate_size": 40,
    "mask_token_id": 3,
    "max_position_embeddings": 32,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-6,
    "rope_scaling": None,
    "rope_theta": 200.0,
    "tie_word_embeddings": False,
    "use_sliding_window": False,
    "vocab_size": VOCABULARY,
}
LLADA_NAMES = (  # ours, theirs
    ("self_attn.o_proj", "attn_out"),
    ("self_attn.", ""),
    ("mlp.gate_proj", "ff_proj"),
    ("mlp.up_proj", "up_proj"),
    ("mlp.down_proj", "ff_out"),
    ("input_layernorm", "attn_norm"),
    ("post_attention_layernorm", "ff_norm"),
    ("layers.", "blocks."),
    ("embed_tokens", "wte"),
    ("lm_head", "ff_out"),
)


def as_llada(name: str) -> str:
    for ours, theirs in LLADA_NAMES:
        name = name.replace(ours, theirs)
    return "model.transformer." + ("ln_f.weight" if name == "norm.weight" else name)


def as_dream(name: str) -> str:
    return name if name.startswith("lm_head") else f"model.{name}"


def published(folder: Path, config: dict[str, Any], weights: dict[str, Tensor]) -> Path:
    """Two shards and their index."""
    folder.mkdir()
    names = sorted(weights)
    shards = {
        "model-00001-of-00002.safetensors": names[::2],
        "model-00002-of-00002.safetensors": names[1::2],
    }
    for shard, inside in shards.items():
        save_file({name: weights[name] for name in inside}, folder / shard)
    placed = {name: shard for shard, inside in shards.items() for name in inside}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": placed}))
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def llada(tmp_path: Path, model: Llama | None = None, **changes: Any) -> Path:
    model = model or both_ways(head_size=6)
    return published(tmp_path / "llada", LLADA | changes, {as_llada(n): w for n, w in model.state_dict().items()})


@torch.no_grad()
@pytest.mark.parametrize("lengths", [None, [9, 6, 2]])
def test_llada(tmp_path: Path, lengths: list[int] | None) -> None:
    model = both_ways(head_size=6)
    found = load_backbone(llada(tmp_path, model))
    assert isinstance(found, Llama)
    assert found.facts == prism.Facts(mask_id=3, vocab_size=VOCABULARY, hidden_size=24)
    x = torch.randint(VOCABULARY, (3, 9), generator=torch.Generator().manual_seed(1))
    attend = None if lengths is None else torch.arange(9) < torch.tensor(lengths)[:, None]
    hidden, weights = found(x, attend), model.state_dict()
    for row in range(3):
        end = 9 if lengths is None else lengths[row]
        expected = with_loops(weights, x[row, :end], model.config)
        torch.testing.assert_close(hidden[row, :end], expected, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(
            found.unembed(hidden[row, :end]), expected @ weights["lm_head.weight"].T, atol=1e-4, rtol=1e-4
        )


@torch.no_grad()
def test_illada(tmp_path: Path) -> None:
    """LLaDA's format with another mask; here with queries in groups and one table for both ends of the vocabulary."""
    model = both_ways(head_size=6, mask_id=5, kv_heads=1, tied=True)
    found = load_backbone(llada(tmp_path, model, mask_token_id=5, n_kv_heads=1, weight_tying=True))
    assert isinstance(found, Llama)
    assert found.config == model.config
    assert found.facts == prism.Facts(mask_id=5, vocab_size=VOCABULARY, hidden_size=24)
    x = torch.randint(VOCABULARY, (1, 9), generator=torch.Generator().manual_seed(1))
    weights = model.state_dict()
    assert "lm_head.weight" not in weights
    raw = with_loops(weights, x[0], model.config) @ weights["embed_tokens.weight"].T
    raw[:, 5] = -torch.inf
    logs = found.predict(x).log_probabilities(torch.ones_like(x, dtype=torch.bool))
    torch.testing.assert_close(logs, raw.log_softmax(-1), atol=1e-4, rtol=1e-4)
    drawn = prism.generate(found, prism.start(torch.full((2, 8), 5), 5), prism.Pair(prism.Counted()), steps=4)
    assert not bool((drawn.tokens == 5).any())


def dream(tmp_path: Path, model: Llama) -> Path:
    """Its tokenizer knows 27 of 30 ids."""
    weights = {as_dream(name): weight for name, weight in model.state_dict().items()}
    folder = published(tmp_path / "dream", DREAM, weights)
    (folder / "vocab.json").write_text(json.dumps({f"t{i}": i for i in range(25)}))
    (folder / "added_tokens.json").write_text(json.dumps({"<mask>": 26}))
    return folder


@torch.no_grad()
@pytest.mark.parametrize("lengths", [None, [9, 6, 2]])
def test_dream(tmp_path: Path, lengths: list[int] | None) -> None:
    """Predictions are read one to the left, and ids the tokenizer does not know are never drawn."""
    model = both_ways(head_size=6, qkv_bias=True, norm_eps=1e-6)
    found, weights = load_backbone(dream(tmp_path, model)), model.state_dict()
    assert isinstance(found, Llama)
    assert found.facts.suppressed == (27, 28, 29)
    x = torch.randint(25, (3, 9), generator=torch.Generator().manual_seed(1))
    attend = None if lengths is None else torch.arange(9) < torch.tensor(lengths)[:, None]
    hidden, logs = found(x, attend), log_probabilities(found.predict(x, attend))
    for row in range(3):
        end = 9 if lengths is None else lengths[row]
        expected = with_loops(weights, x[row, :end], model.config)
        torch.testing.assert_close(hidden[row, :end], expected, atol=1e-4, rtol=1e-4)
        left = drawable(expected @ weights["lm_head.weight"].T, [3, 27, 28, 29])[:-1]
        torch.testing.assert_close(logs[row, 1:end], left, atol=1e-4, rtol=1e-4)


def log_probabilities(prediction: prism.Prediction) -> Tensor:
    """At every position."""
    everywhere = torch.ones(prediction.hidden.shape[:2], dtype=torch.bool)
    return prediction.log_probabilities(everywhere).unflatten(0, everywhere.shape)


def drawable(raw: Tensor, never: list[int]) -> Tensor:
    raw[:, never] = -torch.inf
    return raw.log_softmax(-1)


@torch.no_grad()
@pytest.mark.parametrize("family", ["llada", "dream"])
@pytest.mark.parametrize("suffix", [False, True])
def test_caches_against_loops(tmp_path: Path, family: str, suffix: bool) -> None:
    """A step inside a block: what is computed anew sees the rest of its row as it was when the block began."""
    shift, never = (1, [3, 27, 28, 29]) if family == "dream" else (0, [3])
    model = both_ways(head_size=6, **({"qkv_bias": True, "norm_eps": 1e-6} if shift else {}))
    found, weights = load_backbone((dream if shift else llada)(tmp_path, model)), model.state_dict()
    cached, place, ends = Cached(found, suffix=suffix), torch.arange(9), [9, 8, 7]
    attend, window = place < torch.tensor(ends)[:, None], ((place >= 3) & (place < 6)).expand(3, 9)
    x = torch.randint(4, 25, (3, 9), generator=torch.Generator().manual_seed(1))
    before, after = (x.masked_fill(place >= begin, 3) for begin in (3, 5))
    cached.predict_window(before, attend, window)
    logs = log_probabilities(cached.predict_window(after, attend, window))
    assert cached.positions is not None

    def looped(row: Tensor, **options: Any) -> Tensor:
        """The predictions from the window on."""
        raw = with_loops(weights, row, model.config, **options) @ weights["lm_head.weight"].T
        return drawable(raw, never)[3 - shift : len(row) - shift]

    far: list[bool] = []
    for row, end in enumerate(ends):
        kept: list[Tensor] = []
        looped(before[row, :end], states=kept)
        fresh = torch.isin(place, cached.positions[row])  # in shorter rows, some of the prompt's are among them
        assert bool(fresh[3 - shift : end if suffix else 6].all())
        expected = looped(after[row, :end], kept=kept, fresh=fresh[:end])
        torch.testing.assert_close(logs[row, 3:end], expected, atol=1e-4, rtol=1e-4)
        far.append(not torch.allclose(looped(after[row, :end]), expected, atol=1e-2))
    assert any(far)  # else nothing would hang on the cache


def test_any_type_is_read_and_kept_or_cast(tmp_path: Path) -> None:
    folder = llada(tmp_path, both_ways(head_size=6).to(torch.bfloat16))
    assert load_backbone(folder).embed_tokens.weight.dtype == torch.bfloat16
    assert load_backbone(folder, dtype=torch.float32).layers[1].mlp.down_proj.weight.dtype == torch.float32


def test_another_mask(tmp_path: Path) -> None:
    folder = llada(tmp_path, mask_token_id=None)
    with pytest.raises(ModelError, match=r"names no mask_token_id; .* \(--mask_id ID, mask_id=ID\)"):
        load_backbone(folder)
    assert load_backbone(folder, mask_id=5).facts.mask_id == 5


def test_lora_leaves_the_vocabulary_alone(tmp_path: Path) -> None:
    """LLaDA calls its vocabulary projection like a layer of its blocks; here the two have different names."""
    lora = prism.Lora(rank=2, alpha=2.0, targets=LORA_TARGETS)
    model = prism.attach(load_backbone(llada(tmp_path)), prism.ProjectionConfig(24), lora=lora)
    adapted = {name.rpartition(".lora_")[0] for name, _ in model.named_parameters() if ".lora_" in name}
    assert len(adapted) == 2 * 3
    assert all("self_attn" in name for name in adapted)
    with pytest.raises(ValueError, match="match no linear layer of the backbone before its vocabulary projection"):
        prism.attach(load_backbone(tmp_path / "llada"), None, lora=prism.Lora(rank=2, alpha=2.0, targets=("lm_head",)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"block_type": "sequential"}, "block_type='sequential' is not LLaDA's; it must be 'llama'"),
        ({"input_emb_norm": True}, "input_emb_norm=True is not LLaDA's; it must be False"),
        ({"clip_qkv": 8.0}, r"clip_qkv=8\.0 is not LLaDA's; it must be None"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope_scaling={.*} is not LLaDA's; it must be None"),
        ({"n_layers": 3}, "lacks layers.2"),
        ({"d_model": None}, "does not describe a llada model"),
        ({"model_type": "gpt2"}, "no masked diffusion model known here"),
        ({"model_type": "sdar"}, "is block-causal: .* Missing here: attention that ends with the block, and quality"),
        ({"model_type": "llada2_moe"}, "is block-causal: .* Missing here: mixtures of experts, attention"),
        (
            {"model_type": "llada_moe"},
            r"type 'llada_moe', which is LLaDA-MoE\. Missing here: mixtures of experts; give",
        ),
        ({"num_experts": 64}, r"type 'llada', which is LLaDA-MoE\. Missing here: mixtures of experts; give"),
        ({"architectures": ["LLaDAMoEModelLM"]}, r"type 'llada', which is LLaDA-MoE\. Missing here: mixtures"),
    ],
)
def test_what_it_is_not_is_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        load_backbone(llada(tmp_path, **changes))


PUBLISHED = {"input_emb_norm": False, "clip_qkv": None, "rope_scaling": None, "num_experts": None}


def test_what_goes_without_saying_may_be_said(tmp_path: Path) -> None:
    assert isinstance(load_backbone(llada(tmp_path, **PUBLISHED)), Llama)


@pytest.mark.parametrize("index", [{}, {"weight_map": []}, {"weight_map": {"lm_head.weight": 1}}], ids=str)
def test_an_index_that_places_no_weights_is_named(tmp_path: Path, index: dict[str, Any]) -> None:
    folder = llada(tmp_path)
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelError, match=r"index\.json does not say which file holds which weight"):
        load_backbone(folder)


UNIGRAM = {"model": {"type": "Unigram", "vocab": [["a", -1.0], ["b", -2.0]]}, "added_tokens": [{"id": 7}]}


def test_what_a_tokenizer_knows(tmp_path: Path) -> None:
    assert known_tokens(tmp_path) is None
    (tmp_path / "tokenizer.json").write_text(json.dumps(UNIGRAM | {"added_tokens": []}))
    assert known_tokens(tmp_path) == 2
    (tmp_path / "tokenizer.json").write_text(json.dumps(UNIGRAM))
    assert known_tokens(tmp_path) == 8


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("tokenizer.json", "{", r"tokenizer\.json is damaged"),
        ("tokenizer.json", "{}", r"tokenizer\.json does not say which tokens there are \(KeyError: 'model'\)"),
        ("tokenizer.json", '{"model": {"vocab": 3}}', r"tokenizer\.json does not say which tokens there are"),
        ("vocab.json", "[]", r"vocab\.json must hold a JSON object"),
        ("vocab.json", '{"a": null}', r"vocab\.json does not say which tokens there are"),
        ("tokenizer_config.json", '{"added_tokens_decoder": ["a"]}', r"tokenizer_config\.json does not say which"),
    ],
)
def test_a_damaged_tokenizer_is_named(tmp_path: Path, name: str, content: str, said: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(ModelError, match=said):
        known_tokens(tmp_path)


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    folder = llada(tmp_path)
    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(ModelError, match="has no model-00002-of-00002"):
        load_backbone(folder)
