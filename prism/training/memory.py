"""How much memory a run will take on each device, told before it starts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from prism.models.attach import PrismModel
from prism.models.backbone import Backbone
from prism.training.folder import trainable
from prism.training.settings import Optimisation, Precision
from prism.training.sharding import blocks_of
from prism.vocabulary import LOGITS_AT_ONCE


@dataclass(frozen=True)
class Memory:
    """Bytes on one device. Weights and what goes with them are exact; activations are right to a factor of about 1.5."""

    weights: int
    learning: int
    """Gradients, the optimiser's moments and the running average."""
    activations: int
    """What the forward passes keep for the backward pass, and the logits of the moment."""

    @property
    def total(self) -> int:
        return self.weights + self.learning + self.activations


def estimate(
    model: Backbone | PrismModel, settings: Optimisation, *, rows: int, length: int, passes: int = 1, shards: int = 1
) -> Memory:
    """For `rows` sequences of `length` at once and a loss that goes through the model `passes` times before it looks back;
    `shards` devices share weights and what goes with them (FSDP)."""
    learned = list(trainable(model).values())
    moments = (
        1 if settings.muon_lr is not None else 2
    )  # Muon has one; it takes matrices alone, but those are nearly all
    learning = (1 + moments) * _bytes(learned)
    if settings.ema is not None:
        learning += sum(weight.numel() * max(weight.element_size(), 4) for weight in learned)

    # With fused attention hardly anything is kept but what goes into and comes out of linear layers.
    d, size, blocks = model.facts.hidden_size, _width(model, settings), blocks_of(model)
    inside = [sum(_ends(layer) for layer in block.modules() if isinstance(layer, nn.Linear)) for block in blocks]
    around = 4 * d  # embedding, last norm, head
    each_pass = len(blocks) * d if settings.recompute else sum(inside)
    once = max(inside, default=0) if settings.recompute else 0  # the block being computed anew
    kept = size * rows * length * (passes * (each_pass + around) + once)
    if settings.precision is Precision.BF16:  # the copies autocast makes of float32 weights
        kept += sum(2 * weight.numel() for weight in model.parameters() if weight.dtype == torch.float32)
    logits = (
        3 * 4 * min(LOGITS_AT_ONCE, rows * length * model.facts.vocab_size)
    )  # with softmax and gradient, in float32
    return Memory(_bytes(model.parameters()) // shards, learning // shards, kept + logits)


def _width(model: Backbone | PrismModel, settings: Optimisation) -> int:
    """Bytes of an activation."""
    return 2 if settings.precision is Precision.BF16 else max(2, next(model.parameters()).element_size())


def _ends(layer: nn.Linear) -> int:
    return layer.in_features + layer.out_features


def _bytes(weights: Iterable[Tensor]) -> int:
    return sum(weight.numel() * weight.element_size() for weight in weights)
