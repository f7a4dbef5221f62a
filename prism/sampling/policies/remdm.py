"""ReMDM and its kin: every committed token goes back with its own probability σ, every mask is committed with a probability
that keeps the marginals (Wang et al. 2025, "Remasking discrete diffusion models with inference-time scaling", Eq. 5–6).

    committed:  mask with probability σ
    masked:     token with probability (α_s - (1 - σ)α_t)/(1 - α_t) = commit_rate + σ·α_t/(1 - α_t)

For any σ <= σ_max = min(1, (1 - α_s)/α_t) the committed fraction after the step is α_s on average; σ = 0 is MDLM.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from prism.noise import Purpose
from prism.sampling.order import Order, RandomOrder
from prism.sampling.policy import Law, Moment, Policy, highest
from prism.sampling.unmask import bernoulli_count
from prism.schedule import Budget, Plateau, Schedule
from prism.state import Edit


@dataclass(frozen=True)
class _Independent(Policy):
    """Positions decide for themselves; `order` says which masks are committed once their number has been drawn."""

    order: Order = field(default_factory=RandomOrder)

    @abstractmethod
    def remask_rate(self, now: Moment) -> Float[Tensor, " b #l"]:
        """The probability with which each committed token goes back."""

    @abstractmethod
    def commit_rate(self, budget: Budget) -> Float[Tensor, " b"]:
        """The probability with which each mask is committed."""

    def decide(self, now: Moment) -> Edit:
        state = now.state
        remask = state.committed & (now.uniform(Purpose.REMASK) < self.remask_rate(now))
        ranking = self.order.rank(now)
        count = bernoulli_count(now, state.masked, self.commit_rate(now.budget))
        return Edit(write=highest(ranking.scores, state.masked, count), remask=remask, draft=ranking.draft)

    @property
    def cites(self) -> tuple[str, ...]:
        return ("wang2025remasking", self.order.cite)

    @property
    def rests_when_full(self) -> bool:
        return False


@dataclass(frozen=True)
class _Uniform(_Independent):
    """One σ for all committed tokens of a row, at most σ_max."""

    @abstractmethod
    def sigma(self, budget: Budget) -> Float[Tensor, " b"]:
        """The remasking probability before it is capped at σ_max."""

    def remask_rate(self, now: Moment) -> Float[Tensor, " b #l"]:
        return self._capped(now.budget)[:, None]

    def commit_rate(self, budget: Budget) -> Float[Tensor, " b"]:
        return budget.commit_rate + self._capped(budget) * budget.alpha_t / (1 - budget.alpha_t).clamp_min(1e-12)

    def _capped(self, budget: Budget) -> Float[Tensor, " b"]:
        return self.sigma(budget).minimum(budget.sigma_max)

    @property
    def law(self) -> Law:
        return Law.EXPECTED


@dataclass(frozen=True)
class ReMDMCap(_Uniform):
    """σ = min(η, σ_max) (ReMDM-cap, Section 4.1)."""

    eta: float = 0.04

    def sigma(self, budget: Budget) -> Float[Tensor, " b"]:
        return torch.full_like(budget.t, self.eta)


@dataclass(frozen=True)
class ReMDMRescale(_Uniform):
    """σ = η·σ_max (ReMDM-rescale, Section 4.1)."""

    eta: float = 0.045

    def sigma(self, budget: Budget) -> Float[Tensor, " b"]:
        return self.eta * budget.sigma_max


@dataclass(frozen=True)
class ReMDMSwitch(_Uniform):
    """σ = min(η, σ_max) once t <= t_switch, 0 before (ReMDM-switch, Section 4.2)."""

    eta: float = 0.04
    t_switch: float = 0.5

    def sigma(self, budget: Budget) -> Float[Tensor, " b"]:
        return torch.where(budget.t <= self.t_switch, self.eta, 0.0).to(budget.t)


@dataclass(frozen=True)
class ReMDMLoop(_Uniform):
    """σ = η while the schedule holds α at α_on between t_on and t_off, 0 before and after (ReMDM-loop, Section 4.2)."""

    eta: float = 0.02
    plateau: Plateau = field(default_factory=Plateau)

    def sigma(self, budget: Budget) -> Float[Tensor, " b"]:
        held = (budget.t <= self.plateau.t_on) & (budget.t > self.plateau.t_off)
        return torch.where(held, self.eta, 0.0).to(budget.t)

    @property
    def schedule(self) -> Schedule:
        return self.plateau


@dataclass(frozen=True)
class ReMDMConf(_Independent):
    """σ^i = softmax_i(-ψ)·σ_max with ψ^i the probability token i had when it was committed (ReMDM-conf, Section 4.1).

    As published: the softmax runs over the whole sequence, so fewer than one token goes back per step on average, and masks
    keep MDLM's rate, so the committed fraction falls a little below α_s. For the idea at a useful strength see
    `remask.LowConfidence`.
    """

    def remask_rate(self, now: Moment) -> Float[Tensor, " b #l"]:
        weight = torch.where(now.state.committed, (-now.state.confidence.double()).exp(), 0.0)
        return weight / weight.sum(1, keepdim=True).clamp_min(1e-12) * now.budget.sigma_max[:, None]

    def commit_rate(self, budget: Budget) -> Float[Tensor, " b"]:
        return budget.commit_rate

    @property
    def law(self) -> Law:
        return Law.FREE


@dataclass(frozen=True)
class ForwardBackward(_Uniform):
    """σ = (α_s - α_t)/α_t: one step back for every step forward (Campbell et al. 2022, Section 4.4)."""

    def sigma(self, budget: Budget) -> Float[Tensor, " b"]:
        return (budget.alpha_s - budget.alpha_t) / budget.alpha_t.clamp_min(1e-12)

    @property
    def cites(self) -> tuple[str, ...]:
        return ("campbell2022continuous", self.order.cite)


@dataclass(frozen=True)
class DFMCorrector(_Uniform):
    """σ = β(t)(α_s - α_t)/α_t with β(t) = A·(t(1 - t))^γ (Gat et al. 2024, corrector sampling; A = 10 and γ = ¼ there).

    A = 1 and γ = 0 decide as forward–backward does. Steps are no longer than 1/((1 + β)/t + β/(1 - t)), which keeps every
    probability below 1 on the linear schedule, so more of them are taken than asked for (72 for 64); the step that would
    end at t <= 1/N goes to 0 instead.
    """

    strength: float = 10.0
    power: float = 0.25

    def beta(self, t: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        return self.strength * (t * (1 - t)) ** self.power

    def sigma(self, budget: Budget) -> Float[Tensor, " b"]:
        return self.beta(budget.t) * (budget.alpha_s - budget.alpha_t) / budget.alpha_t.clamp_min(1e-12)

    def times(self, steps: int) -> Float[Tensor, " n"]:
        times = [1.0, 1.0 - 1.0 / steps]  # the first step is plain: β/(1 - t) has no bound at t = 1
        while len(times) <= steps or times[-1] > 1.0 / steps:
            t = times[-1]
            beta = float(self.beta(torch.tensor(t, dtype=torch.float64)))
            times.append(t - min(1.0 / steps, 1.0 / ((1 + beta) / t + beta / (1 - t))))
        return torch.tensor([*times[:-1], 0.0], dtype=torch.float64)

    @property
    def cites(self) -> tuple[str, ...]:
        return ("gat2024discrete", self.order.cite)
