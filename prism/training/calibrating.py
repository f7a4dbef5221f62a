"""Quality that is a probability wherever it is asked (after Platt 1999).

The PRISM loss asks a head about the tokens of S and about no others. Where S is the most confident masks, nearly all of them
come out right: the head learns whom to doubt first, but its quality is far too high for tokens committed at any place, and the
more so the emptier the sequence. Three numbers mend that (`Calibration`), fitted by the same loss with S at random. What is
taken back stays the same.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional as F

from prism.losses.loss import TrainingLoss
from prism.losses.masking import Batch
from prism.losses.prism import PrismLoss, Quality
from prism.models.attach import PrismModel
from prism.models.heads import Calibration, masked_share
from prism.noise import Noise
from prism.sampling.order import RandomOrder

TIMES = 4
"""Each sequence is masked so often, differently every time."""
LEAST = 0.01
"""Scale of a head that knows nothing: without any, all its qualities would be the same number, and their order gone."""


@dataclass(frozen=True)
class Asked:
    """Tokens drawn at random places, and what the head says of them."""

    logit: Float[Tensor, " n"]
    masked: Float[Tensor, " n"]
    """The share of their sequence that is masked."""
    right: Bool[Tensor, " n"]

    def loss(self, calibration: Calibration | None = None) -> float:
        """BCE(1[x^i = y^i], g^i(y)), in nats."""
        logit = self.logit if calibration is None else calibration(self.logit, self.masked)
        return float(F.binary_cross_entropy_with_logits(logit, self.right.to(logit)))


def calibrate(
    model: PrismModel, held_out: Batch, loss: TrainingLoss, *, at_once: int | None = None
) -> dict[str, float]:
    """Make the quality of `model`, which learnt by `loss`, a probability at all places, judged by sequences it has not learnt
    from, all of them together or `at_once` so many. Gives what was found and the loss on these tokens, before and after;
    nothing where no head learnt with PRISM, or one that was asked about all places anyway."""
    if model.quality_head is None or not isinstance(loss, PrismLoss) or not isinstance(loss.target, Quality):
        return {}
    if isinstance(loss.order, RandomOrder):
        return {}
    model.calibration = None
    count, mask_id = len(held_out.tokens), model.facts.mask_id
    found: list[Asked] = []
    for turn in range(TIMES):
        for first in range(0, count, at_once or count):
            batch = held_out.rows(first, first + (at_once or count)).to(model.device)
            noise = Noise.rows(54321 + turn, len(batch.tokens), first=first, device=model.device)
            found.append(ask(model, batch, replace(loss, order=RandomOrder()), mask_id, noise))
    asked = Asked(*(torch.cat([getattr(one, part) for one in found]) for part in ("logit", "masked", "right")))
    model.calibration = fitted(asked)
    return {**vars(model.calibration), "before": asked.loss(), "after": asked.loss(model.calibration)}


@torch.no_grad()
def ask(model: PrismModel, batch: Batch, loss: PrismLoss, mask_id: int, noise: Noise) -> Asked:
    y, chosen = loss.drawn(model, batch, mask_id, noise)
    logits = model.predict(y, batch.attend).quality_logits_at(chosen, min(loss.k, y.shape[1]) * len(y))
    share = masked_share(y, mask_id, batch.attend).expand(y.shape)
    return Asked(logits[chosen].double(), share[chosen].double(), (y == batch.tokens)[chosen])


def fitted(asked: Asked) -> Calibration:
    """The calibration under which the answers are likeliest. Platt's targets, a little short of 0 and 1, keep it finite where
    all tokens are right, or none."""
    wrong = int((~asked.right).sum())
    right = len(asked.right) - wrong
    target = torch.where(asked.right, (right + 1) / (right + 2), 1 / (wrong + 2)).to(asked.logit)
    numbers = asked.logit.new_zeros(3).requires_grad_()  # log scale, shift, slope
    optimiser = torch.optim.LBFGS([numbers], max_iter=200, line_search_fn="strong_wolfe")

    def step() -> Tensor:
        optimiser.zero_grad()
        log_scale, shift, slope = numbers
        logit = log_scale.exp() * asked.logit + shift + slope * asked.masked
        loss = F.binary_cross_entropy_with_logits(logit, target)
        loss.backward()
        return loss

    with torch.enable_grad():
        optimiser.step(step)
    log_scale, shift, slope = numbers.detach()
    return Calibration(max(LEAST, float(log_scale.exp())), float(shift), float(slope))
