"""A fused Llama against the one it is made from."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch
from test_llama import SCALING, VOCABULARY, both_ways
from torch import Tensor

import prism
from prism.models.backbone import Cache
from prism.models.folding import for_sampling
from prism.models.fused import FusedLlama

TARGETS = ("q_proj", "k_proj", "v_proj", "up_proj")


def adapted(**changes: Any) -> prism.PrismModel:
    """With LoRA and a head that are not zero."""
    model = prism.attach(
        both_ways(**changes), prism.ProjectionConfig(24), lora=prism.Lora(3, 6.0, TARGETS, dropout=0.5)
    )
    for name, weight in model.named_parameters():
        if weight.requires_grad:
            torch.nn.init.normal_(weight, std=0.2, generator=torch.Generator().manual_seed(len(name)))
    return model.eval()


def tokens() -> Tensor:
    return torch.randint(4, VOCABULARY, (3, 9), generator=torch.Generator().manual_seed(1))


@torch.no_grad()
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"qkv_bias": True, "shifted": True},
        {"kv_heads": 4, "tied": True},
        {"qk_norm": True, "rope_scaling": SCALING},
    ],
    ids=str,
)
@pytest.mark.parametrize("lengths", [None, [9, 6, 2]])
def test_the_same_predictions(lengths: list[int] | None, changes: dict[str, Any]) -> None:
    model, x = adapted(**changes), tokens()
    attend = None if lengths is None else torch.arange(9) < torch.tensor(lengths)[:, None]
    everywhere = torch.ones_like(x, dtype=torch.bool) if attend is None else attend
    expected = model.predict(x, attend)
    quality, logits = expected.quality[everywhere], expected.logits(everywhere)
    fused = for_sampling(model, torch.float32)
    assert isinstance(fused, prism.PrismModel)
    assert isinstance(fused.backbone, FusedLlama)
    assert not any("lora" in name for name, _ in fused.named_parameters())
    found = fused.predict(x, attend)
    assert bool((found.logits(everywhere)[:, model.facts.mask_id] == -torch.inf).all())
    drawn = torch.arange(VOCABULARY) != model.facts.mask_id
    torch.testing.assert_close(found.logits(everywhere)[:, drawn], logits[:, drawn], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(found.quality[everywhere], quality, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(model.predict(x, attend).quality[everywhere], quality, atol=0, rtol=0)


@torch.no_grad()
@pytest.mark.parametrize("changes", [{}, {"qk_norm": True, "rope_scaling": SCALING}], ids=str)
def test_the_same_with_a_cache(changes: dict[str, Any]) -> None:
    backbone, x, y = both_ways(**changes), tokens(), tokens().flip(1)
    caches = Cache(), Cache()
    for model, cache in zip((backbone, for_sampling(backbone, torch.float32)), caches, strict=True):
        model(x, None, cache)
        cache.positions = torch.tensor([[1, 2], [5, 6], [7, 8]])
    one, other = backbone(y, None, caches[0]), for_sampling(backbone, torch.float32)(y, None, caches[1])
    torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)
    assert not torch.allclose(one, backbone(y))


@pytest.mark.parametrize("changes", [{}, {"tied": True}, {"qk_norm": True}], ids=str)
def test_weights_lie_in_memory_once_and_stay_what_they_were(changes: dict[str, Any]) -> None:
    backbone = both_ways(**changes)
    before = {name: weight.clone() for name, weight in backbone.state_dict().items()}
    learns = [weight.requires_grad for weight in backbone.parameters()]
    fused = for_sampling(prism.attach(backbone, prism.ProjectionConfig(24), tune_backbone=True), torch.float32)
    memory = {weight.untyped_storage().data_ptr() for weight in fused.backbone.parameters()}
    assert {weight.untyped_storage().data_ptr() for weight in backbone.parameters()} <= memory
    torch.testing.assert_close(dict(backbone.state_dict()), before, atol=0, rtol=0)
    assert [weight.requires_grad for weight in backbone.parameters()] == learns
    assert not any(weight.requires_grad for weight in fused.backbone.parameters())


@torch.no_grad()
@pytest.mark.parametrize("tied", [False, True])
def test_a_vocabulary_in_round_rows(tied: bool) -> None:
    """Rows that are no multiple of 64 take several times as long on a GPU."""
    backbone, x = both_ways(tied=tied), tokens()
    fused = for_sampling(backbone, torch.float64)
    assert VOCABULARY % 64
    assert fused.vocabulary.weight.shape == (-(-VOCABULARY // 64) * 64, 24)
    everywhere = torch.ones_like(x, dtype=torch.bool)
    expected, found = (model.predict(x).read(everywhere) for model in (backbone.double(), fused))
    torch.testing.assert_close(found.log_probabilities, expected.log_probabilities)
    torch.testing.assert_close(found.of(x), expected.of(x))
    if tied:
        assert fused.embed_tokens.weight.data_ptr() == fused.vocabulary.weight.data_ptr()


def test_another_type_is_another_memory() -> None:
    backbone = both_ways()
    fused = for_sampling(backbone, torch.float64)
    assert {weight.dtype for weight in fused.parameters()} == {torch.float64}
    assert {weight.dtype for weight in backbone.parameters()} == {torch.float32}


def test_all_layers_are_compiled_once() -> None:
    """In a process of its own, because shape checks are more Python than a compiler likes."""
    done = subprocess.run([sys.executable, __file__], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split() == ["2"]


def count_compiled() -> None:
    from torch._dynamo.utils import counters

    sizes = {"hidden_size": 16, "layers": 10, "heads": 2, "kv_heads": 2, "intermediate_size": 24, "head_size": 8}
    model = prism.Llama(prism.LlamaConfig(vocab_size=30, mask_id=3, length=16, **sizes))
    fused = for_sampling(model, torch.float32)
    expected = fused.predict(torch.arange(4, 12)[None]).hidden
    fused.compile(backend="aot_eager", dynamic=False)
    with torch.no_grad():
        torch.testing.assert_close(fused.predict(torch.arange(4, 12)[None]).hidden, expected)
    print(counters["stats"]["unique_graphs"])


if __name__ == "__main__":
    count_compiled()
