from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats
from stand_ins import tiny_truth
from test_llama import SCALING, both_ways
from torch import Tensor

from prism.models.causal import Causal, load_llama2c
from prism.models.folder import ModelError
from prism.models.llama import Llama
from prism.noise import Noise
from prism.sampling.draw import Draw


def test_what_it_writes_has_the_likelihood_it_says() -> None:
    truth = tiny_truth(20)
    tokens, logs = truth.write(Noise.rows(3, 6), 12, Draw())
    assert (tokens[:, 0] == 1).all()
    torch.testing.assert_close(truth.log_likelihood(tokens), logs, atol=1e-5, rtol=1e-5)
    again = torch.cat([truth.write(Noise.rows(3, 3, first=first), 12, Draw())[0] for first in (0, 3)])
    assert torch.equal(again, tokens)


def test_queries_and_keys_are_normed_while_it_writes() -> None:
    truth = Causal(both_ways(qk_norm=True, rope_scaling=SCALING), start=1)
    tokens, logs = truth.write(Noise.rows(3, 6), 12, Draw())
    torch.testing.assert_close(truth.log_likelihood(tokens), logs, atol=1e-4, rtol=1e-4)


def test_a_rough_corpus_is_nearly_its_own() -> None:
    """Half precision of what is looked back at: seen, and small; nothing else is left changed."""
    truth, before = tiny_truth(20), torch.get_float32_matmul_precision()
    ((tokens, logs),) = truth.writing(iter([Noise.rows(3, 64)]), 12, Draw(), rough=True)
    differences = (truth.log_likelihood(tokens) - logs).abs()
    assert 0 < differences.max() < 1e-2
    assert torch.get_float32_matmul_precision() == before


def test_it_writes_its_own_distribution() -> None:
    """Three tokens after the first: all 125 continuations in their exact proportions."""
    truth = tiny_truth(5, tied=True)
    every = torch.tensor([(1, *rest) for rest in product(range(5), repeat=3)])
    exact = truth.log_likelihood(every).sum(1).exp().double()
    torch.testing.assert_close(exact.sum(), torch.tensor(1.0, dtype=torch.float64), atol=1e-5, rtol=0)
    batches = truth.writing((Noise.rows(0, 2_000, first=2_000 * i) for i in range(5)), 4, Draw())
    tokens = torch.cat([batch for batch, _ in batches])
    place = (tokens[:, 1:] * torch.tensor([25, 5, 1])).sum(1)
    counts = torch.bincount(place, minlength=125).numpy()
    expected = (exact / exact.sum() * len(tokens)).numpy()
    common = expected > 5
    pooled = np.append(counts[common], counts[~common].sum()), np.append(expected[common], expected[~common].sum())
    assert stats.chisquare(*pooled).pvalue > 1e-3


def test_padding_has_no_likelihood() -> None:
    truth = tiny_truth(20)
    tokens = torch.randint(20, (2, 8))
    attend = torch.arange(8) < torch.tensor([[8], [5]])
    found = truth.log_likelihood(tokens, attend)
    assert not found[1, 4:].any()
    torch.testing.assert_close(found[1:, :4], truth.log_likelihood(tokens[1:, :5]), atol=1e-5, rtol=1e-5)


def write_llama2c(path: Path, model: Llama) -> None:
    """As llama2.c's export does: neighbours turn together, so every head's rows are interleaved."""
    config, weights = model.config, model.state_dict()

    def stacked(name: str) -> Tensor:
        return torch.stack([weights[f"layers.{layer}.{name}.weight"] for layer in range(config.layers)])

    def neighbours(weight: Tensor) -> Tensor:
        heads = weight.unflatten(1, (-1, 2, config.head_size // 2))
        return heads.transpose(2, 3).reshape(weight.shape)

    parts = [weights["embed_tokens.weight"], stacked("input_layernorm")]
    parts += [neighbours(stacked("self_attn.q_proj")), neighbours(stacked("self_attn.k_proj"))]
    parts += [stacked("self_attn.v_proj"), stacked("self_attn.o_proj"), stacked("post_attention_layernorm")]
    parts += [stacked("mlp.gate_proj"), stacked("mlp.down_proj"), stacked("mlp.up_proj"), weights["norm.weight"]]
    parts += [torch.zeros(2 * config.length * config.head_size // 2)]
    parts += [] if config.tied else [weights["lm_head.weight"]]
    vocabulary = config.vocab_size if config.tied else -config.vocab_size
    sizes = (config.hidden_size, config.intermediate_size, config.layers, config.heads, config.kv_heads)
    header = np.array([*sizes, vocabulary, config.length], dtype="<i4").tobytes()
    path.write_bytes(header + b"".join(part.numpy().astype("<f4").tobytes() for part in parts))


@pytest.mark.parametrize("tied", [True, False])
def test_a_llama2c_file_is_the_model_it_was_made_from(tmp_path: Path, tied: bool) -> None:
    truth = tiny_truth(20, tied=tied)
    write_llama2c(tmp_path / "model.bin", truth.llama)
    found = load_llama2c(tmp_path / "model.bin")
    tokens = torch.randint(20, (3, 10))
    torch.testing.assert_close(found.log_likelihood(tokens), truth.log_likelihood(tokens))


def test_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="cannot be read"):
        load_llama2c(tmp_path / "absent.bin")
    (tmp_path / "text.bin").write_bytes(b"once upon a time there was a file that was no model")
    with pytest.raises(ModelError, match=r"does not begin like a llama2\.c checkpoint"):
        load_llama2c(tmp_path / "text.bin")
    write_llama2c(tmp_path / "model.bin", tiny_truth().llama)
    whole = (tmp_path / "model.bin").read_bytes()
    (tmp_path / "model.bin").write_bytes(whole[:-400])
    with pytest.raises(ModelError, match="its header asks for others"):
        load_llama2c(tmp_path / "model.bin")
