"""In which order masks are committed: a score per masked position, the highest first."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from prism.noise import Purpose
from prism.sampling.policy import Moment
from prism.state import Draft, Scores, log_softmax


@dataclass(frozen=True)
class Ranking:
    scores: Scores
    draft: Draft | None = None
    """Set when the score is that of a drawn token, which must then be the token written."""


class Order(ABC):
    cite: ClassVar[str]

    @abstractmethod
    def rank(self, now: Moment) -> Ranking: ...


@dataclass(frozen=True)
class RandomOrder(Order):
    """Uniformly random (MDLM, Sahoo et al. 2024). It needs no logits, so only the committed rows are ever computed."""

    cite: ClassVar[str] = "sahoo2024simple"

    def rank(self, now: Moment) -> Ranking:
        return Ranking(-now.uniform(Purpose.ORDER))


@dataclass(frozen=True)
class AwayFrom(Order):
    """At random, the more rarely the likelier `token` stands there: without replacement, with weights 1 - f^i(token).

    Ours, for the rule of S. Of a text that is padded with its end most masks are the end and sure to be, and a head that is
    asked about any mask, or the surest, learns of little else. The rule reads z alone, so Proposition 1 holds for it.
    """

    token: int
    cite: ClassVar[str] = "kim2026prism"

    def rank(self, now: Moment) -> Ranking:
        reading = now.read(now.state.masked)
        probabilities = reading.of(torch.full_like(now.state.tokens, self.token)).exp()
        log_weights = (1 - probabilities).clamp_min(1e-6).log()
        gumbel = now.noise.gumbel(Purpose.ORDER, now.state.tokens.shape[1])
        return Ranking(reading.spread(log_weights.double(), fill=-torch.inf) + gumbel)


@dataclass(frozen=True)
class Leftmost(Order):
    """Left to right, as an autoregressive model writes."""

    cite: ClassVar[str] = "sahoo2024simple"

    def rank(self, now: Moment) -> Ranking:
        b, length = now.state.tokens.shape
        return Ranking(-torch.arange(length, device=now.state.tokens.device).double().expand(b, length))


@dataclass(frozen=True)
class Confidence(Order):
    """log f^i(drawn token) + τ·t·Gumbel (MaskGIT, Chang et al. 2022, Section 3.2; τ is annealed with the time)."""

    temperature: float = 0.0
    cite: ClassVar[str] = "chang2022maskgit"

    def rank(self, now: Moment) -> Ranking:
        draft = now.draft(now.state.masked)
        scores = draft.probability.double().log()
        if self.temperature > 0:
            gumbel = now.noise.gumbel(Purpose.PERTURBATION, scores.shape[1])
            scores = scores + self.temperature * now.budget.t[:, None] * gumbel
        return Ranking(scores, draft)


class _Certainty(Order):
    """An order by how certain the predicted distribution is, whatever token is drawn from it."""

    @abstractmethod
    def certainty(self, log_probabilities: Float[Tensor, "n v"]) -> Float[Tensor, " n"]: ...

    def rank(self, now: Moment) -> Ranking:
        reading = now.read(now.state.masked)
        certainty = reading.each(lambda logits: self.certainty(log_softmax(logits)))
        return Ranking(reading.spread(certainty, fill=-torch.inf))


@dataclass(frozen=True)
class TopProbability(_Certainty):
    """max_v f^i(v) (Zheng et al. 2023; LLaDA's low-confidence order, Nie et al. 2025)."""

    cite: ClassVar[str] = "zheng2023reparameterized"

    def certainty(self, log_probabilities: Float[Tensor, "n v"]) -> Float[Tensor, " n"]:
        return log_probabilities.max(-1).values.exp()


@dataclass(frozen=True)
class Margin(_Certainty):
    """f^i_(1) - f^i_(2), the gap between the two most likely tokens (Kim et al. 2025, Section 4.1)."""

    cite: ClassVar[str] = "kim2025train"

    def certainty(self, log_probabilities: Float[Tensor, "n v"]) -> Float[Tensor, " n"]:
        first, second = log_probabilities.topk(2, dim=-1).values.exp().unbind(-1)
        return first - second


@dataclass(frozen=True)
class LowEntropy(Order):
    """-H(f^i): the least uncertain position first (Dream, Ye et al. 2025, `entropy`)."""

    cite: ClassVar[str] = "ye2025dream"

    def rank(self, now: Moment) -> Ranking:
        reading = now.read(now.state.masked)
        return Ranking(reading.spread(-reading.entropies, fill=-torch.inf))


ALL_ORDERS: tuple[Order, ...] = (
    RandomOrder(),
    AwayFrom(token=0),
    Leftmost(),
    Confidence(),
    Confidence(temperature=4.5),
    TopProbability(),
    Margin(),
    LowEntropy(),
)
