"""The estimate of a run's memory against the run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from test_llama import both_ways
from torch import Tensor
from training_script import SETTINGS, finetune, pretrain, tiny_dit, tiny_prism

from prism.losses.masking import Batch
from prism.losses.prism import PrismLoss
from prism.models.attach import Lora, PrismModel, attach
from prism.models.heads import ProjectionConfig
from prism.noise import Noise
from prism.training import Optimisation
from prism.training.loop import recomputed
from prism.training.memory import estimate
from prism.training.objective import Objective
from prism.training.sharding import blocks_of


def adapted(**changes: Any) -> PrismModel:
    backbone = both_ways(hidden_size=64, intermediate_size=160, head_size=16, layers=6, length=64, **changes)
    lora = Lora(rank=4, alpha=4.0, targets=("q_proj", "k_proj", "v_proj"), dropout=0.1)
    return attach(backbone, ProjectionConfig(64), lora=lora)


def size(tensors: dict[str, Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors.values())


@pytest.mark.parametrize("adapt", [False, True])
def test_weights_and_what_goes_with_them_are_exact(tmp_path: Path, adapt: bool) -> None:
    settings = replace(SETTINGS, steps=4)
    model = tiny_prism(lora=Lora(rank=2, alpha=4.0, targets=("attn_qkv",))) if adapt else tiny_dit()
    trained = finetune(tmp_path, model, settings) if adapt else pretrain(tmp_path, model, settings)
    files = {name: load_file(trained.checkpoint / f"{name}.safetensors") for name in ("weights", "moments", "ema")}
    moments = {name: value for name, value in files["moments"].items() if not name.startswith("step/")}
    gradients = size(files["weights"])
    found = estimate(model, settings, rows=8, length=8)
    assert found.weights == sum(weight.nbytes for weight in model.parameters())
    assert found.learning == gradients + size(moments) + size(files["ema"])
    assert estimate(model, replace(settings, ema=None), rows=8, length=8).learning == gradients + size(moments)
    shared = estimate(model, SETTINGS, rows=8, length=8, shards=2)
    assert (shared.weights, shared.learning) == (found.weights // 2, found.learning // 2)
    assert shared.activations == found.activations


@pytest.mark.parametrize("recompute", [False, True])
def test_activations_are_about_right(recompute: bool) -> None:
    """Against the bytes autograd keeps; where blocks are computed anew, the one at work comes on top of them."""
    model, settings = adapted().train(), Optimisation(steps=1, recompute=recompute)
    kept = bytes_kept(model, recompute=recompute)
    if recompute:
        assert kept < bytes_kept(model, recompute=False) / 4
        kept += bytes_kept(model, recompute=False) // (2 * len(blocks_of(model)))
    assert kept / 1.5 < estimate(model, settings, rows=8, length=32, passes=2).activations < 1.5 * kept


def bytes_kept(model: PrismModel, *, recompute: bool) -> int:
    known = {weight.untyped_storage().data_ptr() for weight in model.parameters()}
    found: dict[int, Tensor] = {}

    def pack(tensor: Tensor) -> Tensor:
        found[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    objective = Objective(model, PrismLoss(k=4, regulariser=1.0), Optimisation(steps=1).precision)
    batch = Batch(torch.randint(4, 30, (8, 32), generator=torch.Generator().manual_seed(0)))
    with (
        torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor),
        recomputed(blocks_of(model) if recompute else []),
    ):
        objective(batch, Noise.rows(0, 8))
    return sum(tensor.untyped_storage().nbytes() for place, tensor in found.items() if place not in known)
