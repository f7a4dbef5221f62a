from __future__ import annotations

from inspect import unwrap

import pytest
import torch

import prism
from prism.models.folding import FoldedBlockHead, FoldedDiT, for_sampling, gelu_of
from prism.models.heads import HeadConfig


def dit(*, vocabulary: int = 13, learned_positions: bool = False, time_conditioning: bool = False) -> prism.DiT:
    torch.manual_seed(0)
    config = prism.DiTConfig(
        vocab_size=vocabulary,
        mask_id=0,
        length=10,
        hidden_size=24,
        blocks=2,
        heads=2,
        learned_positions=learned_positions,
        time_conditioning=time_conditioning,
    )
    model = prism.DiT(config)
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.2)  # zeros would hide a forgotten gate
    return model.eval()


@pytest.mark.parametrize("learned_positions", [False, True])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize(
    "head", [prism.FinalLayerConfig(24), prism.BlockConfig(24, heads=2), prism.OddsConfig(24, heads=2)]
)
def test_a_folded_model_says_the_same(learned_positions: bool, padded: bool, head: HeadConfig) -> None:
    model = prism.attach(dit(learned_positions=learned_positions), head, tune_backbone=True)
    assert model.quality_head is not None
    for weight in model.quality_head.parameters():
        torch.nn.init.normal_(weight, std=0.2)
    folded = for_sampling(model.eval(), torch.float32)
    assert isinstance(folded, prism.PrismModel)
    assert isinstance(folded.backbone, FoldedDiT)
    x = torch.randint(13, (3, 10), generator=torch.Generator().manual_seed(1))
    attend = torch.arange(10) < torch.tensor([[10], [7], [4]]) if padded else None
    everywhere = torch.ones_like(x, dtype=torch.bool) if attend is None else attend
    with torch.no_grad():
        found, expected = folded.predict(x, attend), model.predict(x, attend)
        torch.testing.assert_close(
            found.log_probabilities(everywhere), expected.log_probabilities(everywhere), atol=2e-5, rtol=1e-5
        )
        torch.testing.assert_close(
            found.quality_logits[everywhere], expected.quality_logits[everywhere], atol=2e-5, rtol=1e-5
        )


def test_a_folded_block_head_is_as_coarse_as_its_backbone() -> None:
    model = prism.attach(dit(), prism.BlockConfig(24, heads=2)).eval()
    folded = for_sampling(model, torch.bfloat16)
    assert isinstance(folded, prism.PrismModel)
    head = folded.quality_head
    assert isinstance(head, FoldedBlockHead)
    assert head.block.qkv.weight.dtype == torch.bfloat16
    assert head.score.weight.dtype == torch.float32


def test_a_long_vocabulary_is_padded_and_nobody_sees_it() -> None:
    model, x = dit(vocabulary=301), torch.arange(20).view(2, 10)
    folded, everywhere = for_sampling(model, torch.float32), torch.ones_like(x, dtype=torch.bool)
    assert isinstance(folded, FoldedDiT)
    assert folded.vocabulary.weight.shape[0] == 320
    with torch.no_grad():
        found, expected = (
            folded.predict(x).log_probabilities(everywhere),
            model.predict(x).log_probabilities(everywhere),
        )
    assert found.shape == (20, 301)
    assert (found[:, 0] == -torch.inf).all()
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-5)


def test_gelu_in_one_operation() -> None:
    linear, x = torch.nn.Linear(8, 12), torch.randn(2, 5, 8)
    with torch.no_grad():
        expected = torch.nn.functional.gelu(linear(x), approximate="tanh")
        torch.testing.assert_close(gelu_of(linear, x), expected)
        torch.testing.assert_close(torch.compile(unwrap(gelu_of), fullgraph=True)(linear, x), expected)
        torch.testing.assert_close(gelu_of(linear.double(), x.double()).float(), expected)  # the plain way


def test_the_model_itself_is_left_alone() -> None:
    model = dit()
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    for_sampling(model, torch.bfloat16)
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())
    assert all(weight.requires_grad for weight in model.parameters())


def test_only_a_constant_condition_is_folded() -> None:
    model = dit(time_conditioning=True)
    assert for_sampling(model, torch.float32) is model
    cast = for_sampling(model, torch.float64)
    assert isinstance(cast, prism.DiT)
    assert next(cast.parameters()).dtype == torch.float64


def test_lora_is_not_lost() -> None:
    lora = prism.Lora(rank=2, alpha=2.0, targets=("attn_qkv",))
    model = prism.attach(dit(), prism.FinalLayerConfig(24), lora=lora).eval()
    for name, weight in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight)
    assert for_sampling(model, torch.float32) is model
