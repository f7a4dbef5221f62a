"""How many masks are committed in a step, and which: the unmaskers."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from prism.noise import Purpose
from prism.sampling.order import Confidence, LowEntropy, Margin, Order, RandomOrder, Ranking, TopProbability
from prism.sampling.policy import Commit, Law, Moment, Unmasker, highest
from prism.state import Counts, Mask, Scores


@dataclass(frozen=True)
class Counted(Unmasker):
    """Exactly as many as the schedule owes: ⌈α(s)L⌉ less what stays committed (PRISM, Algorithm 2; LLaDA)."""

    order: Order = field(default_factory=RandomOrder)
    law: ClassVar[Law] = Law.EXACT

    @property
    def cite(self) -> str:  # type: ignore[override]
        return self.order.cite

    def select(self, now: Moment, remasked: Counts) -> Commit:
        state = now.state
        owed = now.budget.target - state.committed.sum(1) + remasked
        ranking = self.order.rank(now)
        return Commit(highest(ranking.scores, state.masked, owed), ranking.draft)


@dataclass(frozen=True)
class Ancestral(Unmasker):
    """Each mask with probability (α_s - α_t)/(1 - α_t) (MDLM, Sahoo et al. 2024, Eq. 7), plus one for every remask.

    The last step goes to s = 0, where the probability is 1; MDLM stops at s = 1e-5 and spends one more forward pass.
    """

    order: Order = field(default_factory=RandomOrder)
    law: ClassVar[Law] = Law.EXPECTED
    cite: ClassVar[str] = "sahoo2024simple"

    def select(self, now: Moment, remasked: Counts) -> Commit:
        count = bernoulli_count(now, now.state.masked, now.budget.commit_rate)
        ranking = self.order.rank(now)
        return Commit(highest(ranking.scores, now.state.masked, count + remasked), ranking.draft)


def bernoulli_count(now: Moment, where: Mask, rate: Float[Tensor, " b"]) -> Counts:
    """How many of the positions succeed; with `RandomOrder`, the chosen ones are the very positions that did."""
    return (where & (now.uniform(Purpose.ORDER) < rate[:, None])).sum(1)


@dataclass(frozen=True)
class _Dream(Unmasker):
    """Dream's decoding (Ye et al. 2025): ⌊|M|(1 - s/t)⌋ masks on a grid from 1 to 1e-3, all of them at the last step.

    `order_temperature` > 0 draws positions without replacement in proportion to softmax(score / temperature).
    """

    order_temperature: float = 0.0
    law: ClassVar[Law] = Law.FREE
    cite: ClassVar[str] = "ye2025dream"

    @property
    @abstractmethod
    def order(self) -> Order: ...

    def times(self, steps: int) -> Float[Tensor, " n"]:
        return _dream_times(steps)

    def select(self, now: Moment, remasked: Counts) -> Commit:
        masked = now.state.masked
        share = torch.floor(masked.sum(1) * (1 - now.budget.s / now.budget.t) + 1e-9).long()
        ranking = self.order.rank(now)
        scores = ranking.scores
        if self.order_temperature > 0:
            gumbel = now.noise.gumbel(Purpose.PERTURBATION, scores.shape[1])
            scores = scores.double() / self.order_temperature + gumbel
        return Commit(highest(scores, masked, share + remasked), ranking.draft)


def _dream_times(steps: int) -> Float[Tensor, " n"]:
    times = torch.linspace(1, 1e-3, steps + 1, dtype=torch.float64)
    times[-1] = 0  # the last step commits everything
    return times


@dataclass(frozen=True)
class DreamOrigin(Unmasker):
    """Each mask with probability 1 - s/t, all at the last step (Dream, Ye et al. 2025, `origin`)."""

    law: ClassVar[Law] = Law.EXPECTED
    cite: ClassVar[str] = "ye2025dream"

    def times(self, steps: int) -> Float[Tensor, " n"]:
        return _dream_times(steps)

    def select(self, now: Moment, remasked: Counts) -> Commit:
        count = bernoulli_count(now, now.state.masked, 1 - now.budget.s / now.budget.t)
        return Commit(highest(RandomOrder().rank(now).scores, now.state.masked, count + remasked))


@dataclass(frozen=True)
class DreamMaskgitPlus(_Dream):
    """Dream's `maskgit_plus`: by the probability of the drawn token."""

    @property
    def order(self) -> Order:
        return _DrawnProbability()


@dataclass(frozen=True)
class _DrawnProbability(Order):
    """f^i(drawn token), not its logarithm: with `order_temperature` Dream's positions go by softmax(f / temperature)."""

    cite: ClassVar[str] = "ye2025dream"

    def rank(self, now: Moment) -> Ranking:
        draft = now.draft(now.state.masked)
        return Ranking(draft.probability, draft)


@dataclass(frozen=True)
class DreamMargin(_Dream):
    """Dream's `topk_margin`: by the gap between the two most likely tokens."""

    @property
    def order(self) -> Order:
        return Margin()


@dataclass(frozen=True)
class DreamEntropy(_Dream):
    """Dream's `entropy`: the least uncertain first."""

    @property
    def order(self) -> Order:
        return LowEntropy()


class _OwnPace(Unmasker):
    """Commits as much as a test allows, the best one always, everything at the last step.

    Remasks do not add to the count here: the test alone decides what is safe.
    """

    law: ClassVar[Law] = Law.FREE

    @abstractmethod
    def safe(self, now: Moment, masked: Mask) -> tuple[Mask, Scores]:
        """The positions that pass the test, and the scores by which the best one is found."""

    def select(self, now: Moment, remasked: Counts) -> Commit:
        masked = now.state.masked
        safe, scores = self.safe(now, masked)
        best = highest(scores, masked, torch.ones_like(remasked))
        last = (now.budget.s <= 0)[:, None]
        return Commit(masked & (safe | best | last))


@dataclass(frozen=True)
class Threshold(_OwnPace):
    """Every mask with max_v f^i(v) >= τ (Fast-dLLM, Wu et al. 2025, Section 3.3)."""

    tau: float = 0.9
    cite: ClassVar[str] = "wu2025fastdllm"

    def __post_init__(self) -> None:
        _check_probability(self.tau)

    def safe(self, now: Moment, masked: Mask) -> tuple[Mask, Scores]:
        scores = TopProbability().rank(now).scores
        return scores >= self.tau, scores


@dataclass(frozen=True)
class CountedAndSure(Unmasker):
    """What the schedule owes, in `order`, at least one, and beside it every mask with max_v f^i(v) >= τ: Fast-dLLM's threshold
    (Wu et al. 2025, Section 3.3) for methods that take tokens back.

    `Threshold` alone may be sure of less than is taken back, step after step, until the last step has everything to write. Here
    remasks add to the count, as in `Counted`: the schedule is the slowest pace, and being sure only makes it faster.
    """

    order: Order = field(default_factory=RandomOrder)
    tau: float = 0.9
    law: ClassVar[Law] = Law.FREE
    cite: ClassVar[str] = "wu2025fastdllm"

    def __post_init__(self) -> None:
        _check_probability(self.tau)

    def select(self, now: Moment, remasked: Counts) -> Commit:
        state = now.state
        owed = (now.budget.target - state.committed.sum(1)).clamp_min(1) + remasked
        ranking = self.order.rank(now)
        sure = state.masked & (TopProbability().rank(now).scores >= self.tau)
        return Commit(sure | highest(ranking.scores, state.masked, owed), ranking.draft)


def _check_probability(tau: float) -> None:
    if not 0 < tau <= 1:
        raise ValueError(f"tau={tau} is a probability; it must lie in (0, 1].")


@dataclass(frozen=True)
class Factor(_OwnPace):
    """The largest n whose n-th best probability has (n + 1)(1 - p_(n)) <= F (Fast-dLLM, Wu et al. 2025, Theorem 1)."""

    factor: float = 1.0
    cite: ClassVar[str] = "wu2025fastdllm"

    def safe(self, now: Moment, masked: Mask) -> tuple[Mask, Scores]:
        scores = TopProbability().rank(now).scores
        ordered = scores.sort(dim=1, descending=True).values
        n = torch.arange(1, ordered.shape[1] + 1, device=ordered.device)
        passes = ordered >= 1 - self.factor / (n + 1)
        return highest(scores, masked, _longest_prefix(passes)), scores


@dataclass(frozen=True)
class EntropyBounded(_OwnPace):
    """In the order of entropy, the longest prefix with ΣH - max H <= γ (EB-Sampler, Ben-Hamu et al. 2025, Eq. 9)."""

    gamma: float = 0.1
    cite: ClassVar[str] = "benhamu2025eb"

    def safe(self, now: Moment, masked: Mask) -> tuple[Mask, Scores]:
        reading = now.read(masked)
        uncertain = reading.spread(reading.entropies, fill=torch.inf)
        ordered = uncertain.sort(dim=1).values  # ascending, so the maximum of a prefix is its last entry
        passes = (ordered.cumsum(1) - ordered <= self.gamma) & ordered.isfinite()
        return highest(-uncertain, masked, _longest_prefix(passes)), -uncertain


def _longest_prefix(passes: Mask) -> Counts:
    """How long the longest prefix is whose last entry passes."""
    n = torch.arange(1, passes.shape[1] + 1, device=passes.device)
    return (passes * n).max(1).values


ALL_UNMASKERS: tuple[Unmasker, ...] = (
    Counted(RandomOrder()),
    Counted(Confidence()),
    Counted(TopProbability()),
    Counted(Margin()),
    Counted(LowEntropy()),
    Ancestral(),
    Ancestral(Margin()),
    DreamOrigin(),
    DreamMaskgitPlus(),
    DreamMargin(order_temperature=0.5),
    DreamEntropy(),
    Threshold(),
    CountedAndSure(Confidence(), tau=0.6),
    Factor(),
    EntropyBounded(),
)
