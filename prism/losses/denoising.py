"""The loss of masked diffusion: cross-entropy of the unmasking posterior at the masks (PRISM, Eq. 1).

Cross-entropies come back one per row. Their mean over rows is the objective, a row without masks counting 0.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field

from jaxtyping import Float
from torch import Tensor

from prism.losses.loss import Loss, TrainingLoss
from prism.losses.masking import Batch, ByProbability, Masked, Masking
from prism.noise import Noise
from prism.sampling.loop import Denoiser
from prism.state import Mask, Prediction


class Weighting(ABC):
    """How the cross-entropies of a row are added up."""

    @abstractmethod
    def weigh(self, total: Float[Tensor, " b"], masked: Masked, free: Mask) -> Float[Tensor, " b"]: ...


@dataclass(frozen=True)
class PerMask(Weighting):
    """1/n: the mean over the row's masks (PRISM, Eq. 1)."""

    def weigh(self, total: Float[Tensor, " b"], masked: Masked, free: Mask) -> Float[Tensor, " b"]:
        return total / masked.where.sum(1).clamp_min(1)


@dataclass(frozen=True)
class PerTime(Weighting):
    """1/(t·L): the likelihood bound of MDLM (Sahoo et al. 2024, Eq. 11) per token; (1 + 1/L)/n in expectation."""

    def weigh(self, total: Float[Tensor, " b"], masked: Masked, free: Mask) -> Float[Tensor, " b"]:
        return total / (masked.t.clamp_min(1e-3) * free.sum(1).clamp_min(1)).to(total)


def denoising_loss(prediction: Prediction, batch: Batch, masked: Masked, weighting: Weighting) -> Float[Tensor, " b"]:
    """-log f^i(x^i | z) over the masks of each row, weighed; logits are computed at the masks alone."""
    reading = prediction.read(masked.where)
    return weighting.weigh(reading.spread(-reading.of(batch.tokens), fill=0.0).sum(1), masked, batch.free)


@dataclass(frozen=True)
class DenoisingLoss(TrainingLoss):
    """Pretraining: the MDM loss alone."""

    masking: Masking = field(default_factory=lambda: ByProbability(floor=1e-3))
    weighting: Weighting = field(default_factory=PerMask)

    def turns(self, model: Denoiser, batch: Batch, mask_id: int, noise: Noise) -> Iterator[Loss]:
        masked = self.masking(batch, mask_id, noise)
        prediction = model.predict(masked.tokens, batch.attend)
        denoising = denoising_loss(prediction, batch, masked, self.weighting).mean()
        yield Loss(denoising, {"denoising": denoising.detach()})
