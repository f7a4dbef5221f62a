"""Time: how much of a sequence is committed at time t, when remasking is allowed, and what one step owes.

Time runs from t = 1 (all masked) to t = 0 (done). A schedule is α(t), the committed fraction; *the law of the sampler* is
that after the step to time s a fraction α(s) of the editable positions is committed. ReMDM's loop (Wang et al. 2025,
Section 4.2) is not a sampler but a schedule with a plateau.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from prism.state import Counts

Times = Float[Tensor, "..."]


class Schedule(ABC):
    """α(t): falls from α(0) = 1 to α(1) = 0 as t grows."""

    @abstractmethod
    def alpha(self, t: Times) -> Times: ...


@dataclass(frozen=True)
class Linear(Schedule):
    """α(t) = 1 - t (MDLM's log-linear noise; LLaDA, Dream)."""

    def alpha(self, t: Times) -> Times:
        return 1 - t


@dataclass(frozen=True)
class Cosine(Schedule):
    """1 - α(t) = cos(π(1 - t)/2): few tokens at first, many at the end (MaskGIT, Chang et al. 2022)."""

    def alpha(self, t: Times) -> Times:
        return 1 - torch.sin(math.pi * t / 2)  # the same function, exactly 1 at t = 0


@dataclass(frozen=True)
class Plateau(Schedule):
    """Climb to α(t_on), stay there until t_off, climb on to 1 (ReMDM's loop, Wang et al. 2025)."""

    t_on: float = 0.55
    t_off: float = 0.05
    alpha_on: float = 0.9

    def __post_init__(self) -> None:
        if not 0 < self.t_off < self.t_on < 1 or not 0 < self.alpha_on < 1:
            raise ValueError(f"{self}: a plateau needs 0 < t_off < t_on < 1 and 0 < alpha_on < 1.")

    def alpha(self, t: Times) -> Times:
        rising = (1 - t) * self.alpha_on / (1 - self.t_on)
        finishing = 1 - t * (1 - self.alpha_on) / self.t_off
        held = torch.full_like(t, self.alpha_on)
        return torch.where(t > self.t_on, rising, torch.where(t > self.t_off, held, finishing))


def even_times(steps: int) -> Float[Tensor, " n"]:
    """1 = t_0 > t_1 > … > t_N = 0 in equal steps."""
    return 1 - torch.arange(steps + 1, dtype=torch.float64) / steps


@dataclass(frozen=True)
class Phase:
    """The steps in which remasking is on: ⌈on·N⌉ <= step < ⌈off·N⌉ (the paper's l_on = ⌈0.5 N⌉ is `Phase(on=0.5)`)."""

    on: float = 0.0
    off: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.on <= self.off <= 1:
            raise ValueError(f"{self}: on and off are fractions of the steps with 0 <= on <= off <= 1.")

    def active(self, budget: Budget) -> torch.Tensor:
        first, last = torch.ceil(self.on * budget.steps - 1e-9), torch.ceil(self.off * budget.steps - 1e-9)
        return (first <= budget.step) & (budget.step < last)


@dataclass(frozen=True)
class Budget:
    """What the step from time t to time s < t allows, row by row. Steps are counted within the row's current block."""

    t: Float[Tensor, " b"]
    s: Float[Tensor, " b"]
    alpha_t: Float[Tensor, " b"]
    alpha_s: Float[Tensor, " b"]
    step: Counts
    steps: Counts
    length: Counts
    """Editable positions, masked or committed."""

    @property
    def target(self) -> Int[Tensor, " b"]:
        """Committed tokens after the step: ⌈α(s)·L⌉, which is ⌈L(ℓ+1)/N⌉ on the linear schedule."""
        return torch.ceil(self.alpha_s * self.length - 1e-9).long()  # 51 · (17/51) must not round up to 18

    @property
    def room(self) -> Int[Tensor, " b"]:
        """How many positions may be masked after the step; ReMDM's σ <= (1 - α_s)/α_t is the same statement."""
        return self.length - self.target

    @property
    def sigma_max(self) -> Float[Tensor, " b"]:
        """min(1, (1 - α_s)/α_t): the largest remasking probability that keeps the marginals (ReMDM, Eq. 5)."""
        return ((1 - self.alpha_s) / self.alpha_t.clamp_min(1e-12)).clamp(0, 1)

    @property
    def commit_rate(self) -> Float[Tensor, " b"]:
        """(α_s - α_t)/(1 - α_t): the share of the masks that MDLM's ancestral step commits."""
        return ((self.alpha_s - self.alpha_t) / (1 - self.alpha_t).clamp_min(1e-12)).clamp(0, 1)
