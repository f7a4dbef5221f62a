"""A backbone in four bits. bitsandbytes is no part of the development environment: without it only the refusal is tested.

It works on CPUs too: PYTHONPATH=where/it/lies pytest tests/models/test_four_bit.py
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
import torch
from test_llama import VOCABULARY, both_ways
from torch import nn

from prism.models.attach import Lora, attach, fingerprint, load
from prism.models.folder import ModelError
from prism.models.four_bit import in_four_bits, outline_in_four_bits
from prism.models.heads import ProjectionConfig
from prism.models.hub import outline_backbone, save_backbone
from prism.models.llama import Llama

CPU = torch.device("cpu")
LORA = Lora(rank=2, alpha=2.0, targets=("q_proj", "k_proj", "v_proj"))
needs_bitsandbytes = pytest.mark.skipif(importlib.util.find_spec("bitsandbytes") is None, reason="no bitsandbytes")


def wide() -> Llama:
    return both_ways(hidden_size=64, intermediate_size=128, head_size=16, qkv_bias=True)


def test_without_bitsandbytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    with pytest.raises(ModelError, match="pip install 'prism-mdm"):
        in_four_bits(both_ways(), CPU)


def test_an_outline_takes_the_room_of_what_is_packed(tmp_path: Path) -> None:
    """Half a byte for a weight of the blocks' layers; LoRA goes on it."""
    save_backbone(wide(), tmp_path / "base")
    outline = outline_backbone(tmp_path / "base", dtype=torch.bfloat16)
    before, layers = size(outline), [m for m in outline.layers.modules() if isinstance(m, nn.Linear)]
    packed = sum(layer.weight.numel() for layer in layers)
    assert size(outline_in_four_bits(outline)) == before - packed * 2 + packed // 2
    with torch.device("meta"):
        learns = attach(outline, ProjectionConfig(64), lora=LORA).trainable()["lora"]
    assert {weight.dtype for weight in learns} == {torch.float32}


def size(model: nn.Module) -> int:
    return sum(weight.nbytes for weight in model.parameters())


@needs_bitsandbytes
@pytest.mark.filterwarnings("ignore")
def test_blocks_are_packed_and_adapted(tmp_path: Path) -> None:
    x = torch.randint(VOCABULARY, (2, 9), generator=torch.Generator().manual_seed(1))
    exact, packed = (
        wide(),
        wide().train(),
    )  # no dropout in it; in evaluation it is repacked on a CPU, and learns no more
    mark, before = fingerprint(packed), exact(x)
    with torch.backends.mkldnn.flags(enabled=False):
        packed = in_four_bits(packed, CPU)
        found = packed(x)
        assert {weight.dtype for weight in packed.layers.parameters() if weight.ndim == 2} == {torch.uint8}
        assert packed.lm_head.weight.dtype == torch.float32
        assert torch.nn.functional.cosine_similarity(found.float(), before, dim=-1).mean() > 0.9
        assert fingerprint(packed) == mark

        model = attach(packed, ProjectionConfig(64), lora=LORA).train()
        assert all(weight.dtype == torch.float32 for group in model.trainable().values() for weight in group)
        model.predict(x).quality_logits.sum().backward()
        torch.nn.init.normal_(model.quality_head.score.weight)
        model.predict(x).quality_logits.sum().backward()
        learned = [weight for weight in model.parameters() if weight.requires_grad]
        assert all(weight.grad is not None for weight in learned)
        model.save(tmp_path / "corrector", base="somewhere")
        with torch.no_grad():
            judged = model.eval().predict(x).quality_logits
        again = load(tmp_path / "corrector", exact)  # on the backbone that was packed, as it was
        assert torch.nn.functional.cosine_similarity(again.predict(x).quality_logits, judged, dim=-1).min() > 0.8
    with pytest.raises(ModelError, match="not saved"):
        save_backbone(packed, tmp_path / "backbone")
    with pytest.raises(ValueError, match="cannot be trained"):
        attach(packed, ProjectionConfig(64), tune_backbone=True)
