"""What decides a step: one forward pass in, one `Edit` out.

Three shapes cover the field. `Pair` chooses what to commit and what to remask separately and commits as many more as it
remasks (PRISM, ReMDM with fixed counts). Independent policies give every position its own probability (ReMDM and its
kin). Joint policies rank masked and committed positions together and keep the best (P2, RDM, RCR). Policies are
stateless; what they remember of a token stands in `State`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from enum import Enum
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from prism.noise import Noise, Purpose
from prism.sampling.draw import Draw
from prism.schedule import Budget, Linear, Schedule, even_times
from prism.state import Counts, Draft, Edit, Mask, Prediction, Reading, Scores, State


@dataclass(frozen=True)
class Moment:
    """Everything a policy may look at."""

    state: State
    prediction: Prediction
    budget: Budget
    noise: Noise
    draw: Draw
    widest: int | None = None
    """How many positions may be editable at the most, in all rows together, where it must not wait for the device to count
    them."""
    earlier: Mask | None = None
    """Generated positions of the blocks before this one, for policies that reopen them."""

    def draft(self, where: Mask, most: int | None = None) -> Draft:
        """Tokens drawn at the positions of `where`, of which there are at most `most`; asking twice for a position draws the
        same token."""
        reading = self.read(where, most)
        uniforms = torch.zeros_like(where, dtype=torch.float64) if self.draw.is_certain else self.uniform(Purpose.TOKEN)
        tokens, logs = reading.each(self.draw, reading.take(uniforms, padding=-1.0))
        return Draft(reading.spread(tokens, fill=0), reading.spread(logs.exp().float(), fill=0.0))

    def read(self, where: Mask, most: int | None = None) -> Reading:
        """log f^i(· | x) at the positions of `where`, editable ones, as they stand."""
        return self.prediction.read(where, self.widest if most is None else most)

    def uniform(self, purpose: Purpose) -> Scores:
        return self.noise.uniform(purpose, self.state.tokens.shape[1])


class Law(Enum):
    """What a policy promises of the committed fraction after the step to time s."""

    EXACT = "⌈α(s)·L⌉ tokens are committed"
    EXPECTED = "α(s)·L tokens are committed on average"
    FREE = "the policy sets its own pace"


class Unmasker(ABC):
    """Chooses the masks to commit."""

    law: ClassVar[Law]
    cite: ClassVar[str]

    @abstractmethod
    def select(self, now: Moment, remasked: Counts) -> Commit:
        """`remasked` tokens are taken back in the same step; counted unmaskers commit that many more."""

    def times(self, steps: int) -> Float[Tensor, " n"]:
        return even_times(steps)


@dataclass(frozen=True)
class Commit:
    where: Mask
    draft: Draft | None = None


class Remasker(ABC):
    """Chooses the committed tokens to take back, never more than `budget.room`."""

    cite: ClassVar[str]

    @abstractmethod
    def select(self, now: Moment) -> Mask: ...


@dataclass(frozen=True)
class Never(Remasker):
    """Plain masked diffusion: what is committed stays."""

    cite: ClassVar[str] = "sahoo2024simple"

    def select(self, now: Moment) -> Mask:
        return torch.zeros_like(now.state.frozen)


class Policy(ABC):
    """One step of a sampler."""

    @abstractmethod
    def decide(self, now: Moment) -> Edit: ...

    @property
    @abstractmethod
    def law(self) -> Law: ...

    @property
    @abstractmethod
    def cites(self) -> tuple[str, ...]:
        """Keys into prism/papers.bib."""

    @property
    def schedule(self) -> Schedule:
        """The schedule the method was published with."""
        return Linear()

    def times(self, steps: int) -> Float[Tensor, " n"]:
        """The grid 1 = t_0 > … > t_N = 0; a method with its own step sizes may return more steps than asked for."""
        return even_times(steps)

    @property
    def rests_when_full(self) -> bool:
        """Whether a row without masks is finished; ReMDM's chain goes on and takes tokens back."""
        return True

    @property
    def reopens(self) -> int:
        """How many tokens of earlier blocks it takes back when a block begins, at the most."""
        return 0


@dataclass(frozen=True)
class Pair(Policy):
    """An unmasker and a remasker. |S| grows by |T|, so remasking does not slow the schedule down (PRISM, Algorithm 2)."""

    unmasker: Unmasker
    remasker: Remasker = field(default_factory=Never)

    def decide(self, now: Moment) -> Edit:
        remask = self.remasker.select(now)
        commit = self.unmasker.select(now, remask.sum(1))
        return Edit(write=commit.where, remask=remask, draft=commit.draft)

    @property
    def law(self) -> Law:
        return self.unmasker.law

    @property
    def cites(self) -> tuple[str, ...]:
        return (self.unmasker.cite, self.remasker.cite)

    def times(self, steps: int) -> Float[Tensor, " n"]:
        return self.unmasker.times(steps)


def highest(scores: Scores, where: Mask, count: Counts) -> Mask:
    """The `count[b]` positions of `where` with the highest scores in each row; ties go to the left."""
    finite = scores.clamp_min(torch.finfo(scores.dtype).min)  # log 0 inside `where` still ranks before what is outside
    ranks = ranks_by_counting if torch.compiler.is_compiling() else ranks_by_sorting
    return where & (ranks(finite.masked_fill(~where, -torch.inf)) < count[:, None])


def ranks_by_sorting(scores: Scores) -> Int[Tensor, "b l"]:
    """0 for the highest score of a row, 1 for the next; of equal ones the left one comes first."""
    order = scores.argsort(dim=1, descending=True, stable=True)
    return torch.empty_like(order).scatter_(
        1, order, torch.arange(order.shape[1], device=order.device).expand_as(order)
    )


def ranks_by_counting(scores: Scores) -> Int[Tensor, "b l"]:
    """The same: how many come before each. Compiled it is one pass and keeps nothing, where sorting a row takes many."""
    mine, theirs = scores[:, :, None], scores[:, None, :]
    place = torch.arange(scores.shape[1], device=scores.device)
    return ((theirs > mine) | ((theirs == mine) & (place[None, :] < place[:, None]))).sum(-1)


def lowest(scores: Scores, where: Mask, count: Counts) -> Mask:
    return highest(-scores, where, count)
