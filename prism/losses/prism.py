"""The PRISM loss (Kim et al. 2026, Eq. 2 and Algorithm 1) and its likelihood variant (Eq. 3, Appendix D.6).

    x ~ data,  z = x with some tokens masked,  S ⊆ masks of z with |S| = k,  y = z with y^i ~ sg f^i(· | z) for i ∈ S
    L = 1/k Σ_{i ∈ S} BCE(1[x^i = y^i], g^i(y))  +  λ · MDM loss on z

For k = 1 the unique minimiser is g^i(y) = p(x^i = y^i | y ⊕ m_i), whatever model drew y and whatever rule chose i
(Proposition 1); for k > 1 it is the average of p(x^i = y^i | y ⊕ m_S) over the sets S that may lie behind y (Proposition 2).
The same proof covers y written in several rounds, each seeing what the ones before wrote, as sampling writes (`rounds`): given
z, the tokens written and those of x are independent, so the average is over the sets S of all rounds together.
y is drawn by the same `Unmasker` order and `Draw` that sampling uses. The second pass never touches the vocabulary head,
except in the likelihood variant, which learns through it, and with an odds head, which is read through it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import torch
from torch.nn import functional as F

from prism.losses.denoising import PerMask, Weighting, denoising_loss
from prism.losses.loss import Loss, TrainingLoss
from prism.losses.masking import Batch, ByProbability, Masked, Masking
from prism.noise import Noise, Purpose
from prism.sampling.draw import Draw
from prism.sampling.loop import Denoiser
from prism.sampling.order import Order, RandomOrder
from prism.sampling.policy import Moment, highest
from prism.schedule import Budget
from prism.state import Mask, Prediction, Scores, Tokens, start


class Target(ABC):
    """What the second pass is asked about the tokens of S."""

    @abstractmethod
    def losses(self, prediction: Prediction, x: Tokens, y: Tokens, chosen: Mask, most: int) -> Scores:
        """One loss per position of `chosen`, of which a row has at most `most`; 0 elsewhere."""


@dataclass(frozen=True)
class Quality(Target):
    """BCE(1[x^i = y^i], g^i(y)) through the scalar head (Eq. 2)."""

    def losses(self, prediction: Prediction, x: Tokens, y: Tokens, chosen: Mask, most: int) -> Scores:
        logits = prediction.quality_logits_at(chosen, most * len(chosen))
        logits = logits if logits.dtype == torch.float64 else logits.float()
        losses = F.binary_cross_entropy_with_logits(logits, (x == y).to(logits), reduction="none")
        return losses.where(chosen, 0.0)


@dataclass(frozen=True)
class Likelihood(Target):
    """-log f^i(x^i | y) through the existing vocabulary head: learns p(x^i = · | y ⊕ m_i) (Eq. 3)."""

    def losses(self, prediction: Prediction, x: Tokens, y: Tokens, chosen: Mask, most: int) -> Scores:
        reading = prediction.read(chosen, most * len(chosen))
        return reading.spread(-reading.of(x), fill=0.0)


@dataclass(frozen=True)
class PrismLoss(TrainingLoss):
    """The settings of the loss; call it on a model and a batch."""

    k: int = 4
    """Tokens drawn at once to make y from z."""
    rounds: int = 1
    """How often at the most k tokens are drawn; each row has its own number of rounds. Every further round is another forward
    pass, without gradients."""
    ys: int = 1
    """Several y from one forward pass of z (n_y)."""
    regulariser: float = 5.0
    """λ, the weight of the MDM loss that keeps f in shape."""
    order: Order = field(default_factory=RandomOrder)
    """The rule for S: `RandomOrder()`, or `TopProbability()` for the most confident masks."""
    draw: Draw = field(default_factory=Draw)
    masking: Masking = field(default_factory=lambda: ByProbability(floor=1e-3))
    weighting: Weighting = field(default_factory=PerMask)
    target: Target = field(default_factory=Quality)

    def __post_init__(self) -> None:
        if self.k < 1 or self.ys < 1 or self.rounds < 1:
            raise ValueError(f"k={self.k}, ys={self.ys} and rounds={self.rounds} must all be at least 1.")
        if self.regulariser < 0:
            raise ValueError(f"regulariser={self.regulariser} must be 0 or more.")

    @property
    def passes_by_turn(self) -> tuple[int, ...]:
        return (1, self.ys) if self.regulariser > 0 else (self.ys,)

    def turns(self, model: Denoiser, batch: Batch, mask_id: int, noise: Noise) -> Iterator[Loss]:
        """The MDM loss and the draws of y, then its quality: the second pass need not wait for memory of the first."""
        masked = self.masking(batch, mask_id, noise)
        with torch.set_grad_enabled(torch.is_grad_enabled() and self.regulariser > 0):
            first = model.predict(masked.tokens, batch.attend)

        with torch.no_grad():  # f_sg(θ): the same forward pass, without its gradient
            pairs = [self.unmask(first, batch, masked, mask_id, noise.replica(j)) for j in range(self.ys)]
            y, chosen = (torch.cat(parts) for parts in zip(*pairs, strict=True))
            batches = batch.repeat(self.ys)
            for turn in range(1, self.rounds):
                y, chosen = self._write_on(model, y, chosen, batches, masked, mask_id, noise.at(turn))

        if self.regulariser > 0:
            denoising = denoising_loss(first, batch, masked, self.weighting).mean()
            yield Loss(self.regulariser * denoising, {"denoising": denoising.detach()})

        second = model.predict(y, batches.attend)
        most = min(self.k * self.rounds, y.shape[1])
        losses = self.target.losses(second, batches.tokens, y, chosen, most)
        quality = (losses.sum(1) / chosen.sum(1).clamp_min(1)).mean()
        right = (chosen & (batches.tokens == y)).sum() / chosen.sum().clamp_min(1)
        yield Loss(quality, {"quality": quality.detach(), "right": right})

    def drawn(self, model: Denoiser, batch: Batch, mask_id: int, noise: Noise) -> tuple[Tokens, Mask]:
        """(y, S) of clean sequences, one y of each, for whoever asks and does not learn."""
        masked = self.masking(batch, mask_id, noise)
        return self.unmask(model.predict(masked.tokens, batch.attend), batch, masked, mask_id, noise)

    def unmask(
        self, prediction: Prediction, batch: Batch, masked: Masked, mask_id: int, noise: Noise
    ) -> tuple[Tokens, Mask]:
        """(y, S): min(k, n) masks of z committed as sampling would commit them."""
        state = replace(start(masked.tokens, mask_id), frozen=~masked.where, attend=batch.attend)
        nothing, everything = torch.zeros_like(masked.t), torch.ones_like(masked.t)
        n = masked.where.sum(1)
        budget = Budget(masked.t, nothing, 1 - masked.t, everything, torch.zeros_like(n), torch.ones_like(n), n)
        now = Moment(state, prediction, budget, noise, self.draw)
        ranking = self.order.rank(now)
        chosen = highest(ranking.scores, masked.where, n.clamp_max(self.k))
        draft = ranking.draft or now.draft(chosen)
        return torch.where(chosen, draft.tokens, masked.tokens), chosen

    def _write_on(
        self, model: Denoiser, y: Tokens, chosen: Mask, batches: Batch, masked: Masked, mask_id: int, noise: Noise
    ) -> tuple[Tokens, Mask]:
        """(y, S) after one more round, in the rows that have one; `noise` stands at its number."""
        replicas = [noise.replica(j) for j in range(self.ys)]
        noise = replace(noise, keys=torch.cat([replica.keys for replica in replicas]))
        rounds = 1 + (noise.at(0).uniform(Purpose.AMOUNT, 1) * self.rounds).long()
        left = masked.where.repeat(self.ys, 1) & ~chosen & (rounds > noise.step)
        prediction = model.predict(y, batches.attend)
        y, more = self.unmask(prediction, batches, Masked(y, left, masked.t.repeat(self.ys)), mask_id, noise)
        return y, chosen | more
