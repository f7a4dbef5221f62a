"""What a loss is to whoever trains with it. One file a loss beside this one.

A loss is a mean over the rows of a batch, so that processes and accumulated micro-batches add up to exactly the loss of the
whole batch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from prism.losses.masking import Batch
from prism.noise import Noise
from prism.sampling.loop import Denoiser


@dataclass(frozen=True)
class Loss:
    """Means over the rows of a batch."""

    total: Float[Tensor, ""]
    parts: dict[str, Float[Tensor, ""]]
    """The terms of `total` before λ, and figures worth watching; detached."""


class TrainingLoss(ABC):
    """A loss as it is trained with. It may come in several turns, which add up: whoever goes the way back after each of them
    holds what only one turn needs."""

    @property
    def passes_by_turn(self) -> tuple[int, ...]:
        """Forward passes each turn goes the way back through, for an estimate of the memory."""
        return (1,)

    @abstractmethod
    def turns(self, model: Denoiser, batch: Batch, mask_id: int, noise: Noise) -> Iterator[Loss]: ...

    def __call__(self, model: Denoiser, batch: Batch, mask_id: int, noise: Noise) -> Loss:
        turns = list(self.turns(model, batch, mask_id, noise))
        total = torch.stack([turn.total for turn in turns]).sum()
        return Loss(total, {name: part for turn in turns for name, part in turn.parts.items()})
