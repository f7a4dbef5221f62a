"""Remaskers that take back a counted number of tokens: *how many* (an `Amount`) and *which* (a score, the lowest first)
are separate questions, so that methods can be compared at the same number of remasks. Where the score tells a probability
(`Doubting`), only tokens may go back that are less likely than some bound.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar

import torch

from prism.noise import Purpose
from prism.sampling.policy import Moment, Remasker, lowest
from prism.schedule import Budget, Phase, Schedule, even_times
from prism.state import Counts, Mask, Scores


class Amount(ABC):
    """How many tokens each row takes back in this step."""

    @abstractmethod
    def count(self, now: Moment) -> Counts: ...


def _between(count: Counts, now: Moment) -> Counts:
    """K where K < committed < L - K, else 0: neither at the very start nor at the very end (PRISM, Algorithms 2 and 3).

    The paper writes K <= |M| < L - K; at |M| = K there would be more to refill than masks to refill, and masks would be
    left at the end, so the bound is strict on both sides, as in the authors' code.
    """
    committed = now.state.committed.sum(1)
    return torch.where((count < committed) & (committed < now.budget.length - count), count, 0)


@dataclass(frozen=True)
class Fixed(Amount):
    """K tokens (PRISM, Algorithm 3: Sudoku with K = 4)."""

    k: int

    def __post_init__(self) -> None:
        if self.k < 0:
            raise ValueError(f"K={self.k}: the number of tokens to take back must be 0 or more.")

    def count(self, now: Moment) -> Counts:
        return _between(torch.full_like(now.budget.length, self.k), now)

    def held(self, length: int, steps: int, schedule: Schedule) -> int:
        """How many tokens a block of `length` positions takes back in `steps` steps that keep to the schedule."""
        budget, committed = _kept_to(length, steps, schedule)
        between = (self.k < committed) & (committed < length - self.k)
        return int(torch.where(between, self.k, 0).minimum(budget.room).sum())


@dataclass(frozen=True)
class Every(Amount):
    """As many as there is room for. Without a `doubt` that is nearly all of them, at every step."""

    def count(self, now: Moment) -> Counts:
        return now.state.committed.sum(1)


@dataclass(frozen=True)
class Binomial(Amount):
    """K ~ Binomial(committed, η), one draw per row (PRISM, Algorithm 2)."""

    eta: float

    def __post_init__(self) -> None:
        if not 0 <= self.eta <= 1:
            raise ValueError(f"eta={self.eta} is a probability; it must lie in 0..1.")

    def count(self, now: Moment) -> Counts:
        tosses = now.uniform(Purpose.AMOUNT) < self.rate(now)
        return _between((now.state.committed & tosses).sum(1), now)

    def rate(self, now: Moment) -> torch.Tensor:
        return torch.full_like(now.budget.t, self.eta)[:, None]


@dataclass(frozen=True)
class CappedBinomial(Binomial):
    """The same with η <= (1 - α_s)/α_t, ReMDM's cap, from the actual counts (the authors' code for OpenWebText)."""

    def rate(self, now: Moment) -> torch.Tensor:
        committed = now.state.committed.sum(1).clamp_min(1)
        return (now.budget.room / committed).clamp_max(self.eta)[:, None]


@dataclass(frozen=True)
class Centred(Amount):
    """K tokens per block, spread over the block's steps from the middle outwards (PRISM, Appendix D: LLaDA).

    The first step has nothing to take back and the last no room, so the K are shared by the steps between; what does not
    divide evenly goes to the central ones.
    """

    k: int

    def __post_init__(self) -> None:
        if self.k < 0:
            raise ValueError(f"K={self.k}: the number of tokens to take back must be 0 or more.")

    def count(self, now: Moment) -> Counts:
        return self._share(now.budget).minimum(now.state.committed.sum(1))

    def _share(self, budget: Budget) -> Counts:
        """What falls to the step."""
        inner = (budget.steps - 2).clamp_min(1)
        each, left = self.k // inner, self.k % inner
        place = budget.step - 1  # 0 … inner - 1 on the steps that can remask
        first = (inner - left) // 2
        central = (first <= place) & (place < first + left)
        return torch.where((place >= 0) & (place < inner), each + central.long(), 0)

    def held(self, length: int, steps: int, schedule: Schedule) -> int:
        """How many of the K a block of `length` positions takes back in `steps` steps that keep to the schedule: none more at a
        step than are committed before it and than may be masked after it."""
        budget, committed = _kept_to(length, steps, schedule)
        return int(self._share(budget).minimum(committed).minimum(budget.room).sum())


def _kept_to(length: int, steps: int, schedule: Schedule) -> tuple[Budget, Counts]:
    """The steps of a block that keeps to the schedule, as rows of a batch, and how many tokens are committed before each."""
    times = even_times(steps)
    alpha, every = schedule.alpha(times), torch.ones(steps, dtype=torch.long)
    budget = Budget(times[:-1], times[1:], alpha[:-1], alpha[1:], torch.arange(steps), steps * every, length * every)
    return budget, torch.cat([torch.zeros(1, dtype=torch.long), budget.target[:-1]])


@dataclass(frozen=True)
class Lowest(Remasker):
    """Takes back the tokens with the lowest score, as many as `amount` says, while `phase` is on."""

    amount: Amount
    phase: Phase = field(default_factory=Phase)

    @abstractmethod
    def score(self, now: Moment) -> Scores:
        """Higher means keep."""

    def among(self, now: Moment, scores: Scores) -> Mask:
        """The tokens that may go back at all."""
        return now.state.committed

    def select(self, now: Moment) -> Mask:
        count = self.amount.count(now).minimum(now.budget.room)
        count = torch.where(self.phase.active(now.budget), count, 0)
        scores = self.score(now)
        return lowest(scores, self.among(now, scores), count)


@dataclass(frozen=True)
class Doubting(Lowest):
    """Its score tells how probable a token is, so it can spare those that are not doubtful (ours).

    A count is the same for a row that is right as for one that is not. Tokens that were right and are written again, several at
    once, may come out wrong.
    """

    doubt: float | None = None
    """Only tokens less probable than this go back; None means any."""

    def __post_init__(self) -> None:
        if self.doubt is not None and not 0 < self.doubt < 1:
            raise ValueError(f"doubt={self.doubt} is a probability; it must lie between 0 and 1, both left out.")

    @staticmethod
    @abstractmethod
    def score_of(probability: float) -> float:
        """The score of a token of that probability."""

    def among(self, now: Moment, scores: Scores) -> Mask:
        committed = now.state.committed
        return committed if self.doubt is None else committed & (scores < self.score_of(self.doubt))


@dataclass(frozen=True)
class LowQuality(Doubting):
    """PRISM: the lowest g^i(x), from the scalar head in the same forward pass (Kim et al. 2026, Section 3.3)."""

    cite: ClassVar[str] = "kim2026prism"

    def score(self, now: Moment) -> Scores:
        return now.prediction.quality_logits_at(now.state.committed, now.widest)

    @staticmethod
    def score_of(probability: float) -> float:
        return math.log(probability / (1 - probability))


@dataclass(frozen=True)
class LowLikelihood(Doubting):
    """The lowest f^i(x^i | x), the model's own probability of the token it sees there.

    On a model tuned with the likelihood loss this is likelihood-PRISM (Kim et al. 2026, Appendix D.6); on a plain one it
    is the score of P2-self (Peng et al. 2025), which was never trained to mean anything at committed positions.
    """

    cite: ClassVar[str] = "peng2025path"

    def score(self, now: Moment) -> Scores:
        reading = now.read(now.state.committed)
        return reading.spread(reading.of(now.state.tokens), fill=torch.inf)

    @staticmethod
    def score_of(probability: float) -> float:
        return math.log(probability)


@dataclass(frozen=True)
class EntropyAware(Lowest):
    """The lowest f^i(x^i)·exp H(f^i): spares tokens where many others would do as well (Kim et al. 2026, App. D.6)."""

    cite: ClassVar[str] = "kim2026prism"

    def score(self, now: Moment) -> Scores:
        reading = now.read(now.state.committed)
        log_probability, entropy = reading.of_and_entropies(now.state.tokens)
        return reading.spread(log_probability + entropy, fill=torch.inf)


@dataclass(frozen=True)
class LowConfidence(Doubting):
    """The lowest probability a token had *when it was committed* (ReMDM-conf's score with a count: ReMDM-LLaDA)."""

    cite: ClassVar[str] = "wang2025remasking"

    def score(self, now: Moment) -> Scores:
        return now.state.confidence

    @staticmethod
    def score_of(probability: float) -> float:
        return probability


@dataclass(frozen=True)
class Anywhere(Lowest):
    """Uniformly random tokens (ReMDM with a count)."""

    cite: ClassVar[str] = "wang2025remasking"

    def score(self, now: Moment) -> Scores:
        return now.uniform(Purpose.REMASK)


ALL_REMASKERS: tuple[type[Lowest], ...] = (LowQuality, LowLikelihood, EntropyAware, LowConfidence, Anywhere)
