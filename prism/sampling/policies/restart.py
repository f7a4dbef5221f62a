"""Puzzles with one answer: write what is sure, guess when nothing is, and begin again when a guess has led nowhere."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool
from torch import Tensor

from prism.noise import Purpose
from prism.sampling.order import Margin, TopProbability
from prism.sampling.policy import Law, Moment, Policy, highest
from prism.state import Edit


@dataclass(frozen=True)
class Restart(Policy):
    """Every mask with max_v f^i(v) >= τ; where there is none, a guess. What rests on a wrong guess is not repaired, it is all
    taken back.

    One early mistake is built upon, and what has the lowest quality then is seldom the mistake. Whether there was one is easy
    to tell, though: when few masks are left nothing should be open any more, and before the last one is written PRISM's
    quality is asked about all the tokens. (On Sudoku the first of these tests alone does as well: docs/experiments.md.) The
    position of a guess is drawn in proportion to the margins, so that the next attempt makes another one; the tokens
    themselves are best drawn at temperature 0.
    """

    tau: float = 0.999
    quality: float = 0.99
    """The last mask is written when no token has a lower quality."""
    few: float = 0.25
    """The share of the positions that is not guessed at."""
    reserve: float = 0.1
    """The share of the steps, the last ones, in which there is no time to begin again."""

    def __post_init__(self) -> None:
        for name in ("tau", "quality", "few", "reserve"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name}={getattr(self, name)} must lie in 0..1.")

    def decide(self, now: Moment) -> Edit:
        state, budget = now.state, now.budget
        masked, left = state.masked, state.masked.sum(1)
        sure = masked & (TopProbability().rank(now).scores >= self.tau)
        margin = Margin().rank(now).scores.clamp_min(0)  # minus infinity where there is no mask
        gumbel = now.noise.gumbel(Purpose.PERTURBATION, masked.shape[1])
        one = highest(margin.double().log() + gumbel, masked, torch.ones_like(left))

        stuck = ~sure.any(1) & (left <= self.few * budget.length)
        doubtful = (left == 1) & self._doubts(now)
        in_time = budget.step < (1 - self.reserve) * budget.steps - 1
        again = (stuck | doubtful) & in_time & state.committed.any(1)

        # the last mask is held back for a step: a row without masks is finished
        held = (sure.sum(1) == left) & (left > 1)
        write = torch.where(held[:, None], sure & ~one, torch.where(sure.any(1)[:, None], sure, one))
        write = torch.where((budget.s <= 0)[:, None], masked, write)
        return Edit(write=write & ~again[:, None], remask=state.committed & again[:, None])

    def _doubts(self, now: Moment) -> Bool[Tensor, " b"]:
        """Whether some token has too low a quality."""
        committed = now.state.committed
        quality = now.prediction.quality_logits_at(committed, now.widest).float().sigmoid()
        return (committed & (quality < self.quality)).any(1)

    @property
    def law(self) -> Law:
        return Law.FREE

    @property
    def cites(self) -> tuple[str, ...]:
        return ("kim2026prism", "wu2025fastdllm", "kim2025train")
