"""Policies that rank masked and committed positions together and keep the ⌈α(s)L⌉ best: what is committed and ranks too
low goes back to a mask, what is masked and ranks high enough is written."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import torch

from prism.sampling.policy import Law, Moment, Policy, highest
from prism.state import Draft, Edit, Scores


class _Joint(Policy):
    @abstractmethod
    def scores(self, now: Moment, draft: Draft) -> Scores:
        """Higher means keep; `draft` holds the tokens drawn at the masks."""

    def decide(self, now: Moment) -> Edit:
        state = now.state
        draft = now.draft(state.masked)
        scores = self.scores(now, draft).double() - 1e-12 * state.masked  # on a tie the committed token stays
        keep = highest(scores, state.editable, now.budget.target)
        return Edit(write=state.masked & keep, remask=state.committed & ~keep, draft=draft)

    @property
    def law(self) -> Law:
        return Law.EXACT


def _own_probability(now: Moment) -> Scores:
    """f^i(x^i | x) at committed positions, rounded as drafts are: equally certain tokens must tie."""
    reading = now.read(now.state.committed)
    return reading.spread(reading.of(now.state.tokens).exp().float(), fill=1.0)


def _log(probability: Scores) -> Scores:
    return probability.double().clamp_min(1e-300).log()  # finite, so that η = 0 times it is 0


@dataclass(frozen=True)
class P2Self(_Joint):
    """Masks by log f^i(draft), committed tokens by η·log f^i(x^i) (P2-self, Peng et al. 2025, as released).

    η = 0 never remasks and is MaskGIT's order, η = 1 is RDM, larger η remasks more. The released code scores a fresh draw at
    committed positions and adds its sampling noise to the scores; here the token that stands there is scored, without noise.
    """

    eta: float = 1.0

    def scores(self, now: Moment, draft: Draft) -> Scores:
        return torch.where(now.state.masked, _log(draft.probability), self.eta * _log(_own_probability(now)))

    @property
    def cites(self) -> tuple[str, ...]:
        return ("peng2025path",)


@dataclass(frozen=True)
class P2SelfPaper(_Joint):
    """Masks by η·f^i(draft), committed tokens by f^i(x^i) (P2-self, Peng et al. 2025, Eq. 7)."""

    eta: float = 1.0

    def scores(self, now: Moment, draft: Draft) -> Scores:
        return torch.where(now.state.masked, self.eta * draft.probability.double(), _own_probability(now).double())

    @property
    def cites(self) -> tuple[str, ...]:
        return ("peng2025path",)


@dataclass(frozen=True)
class RDM(_Joint):
    """Both by log f^i of their token (reparameterised discrete diffusion, Zheng et al. 2023, Section 4.3)."""

    def scores(self, now: Moment, draft: Draft) -> Scores:
        return torch.where(now.state.masked, _log(draft.probability), _log(_own_probability(now)))

    @property
    def cites(self) -> tuple[str, ...]:
        return ("zheng2023reparameterized",)


@dataclass(frozen=True)
class RCR(_Joint):
    """Committed tokens by the probability they had when committed (running confidence remasking, MDPO, He et al. 2025)."""

    def scores(self, now: Moment, draft: Draft) -> Scores:
        return torch.where(now.state.masked, draft.probability, now.state.confidence)

    @property
    def cites(self) -> tuple[str, ...]:
        return ("he2025mdpo",)
