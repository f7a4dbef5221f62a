"""Blocks left to right, with a look back: what a finished block got wrong can still be taken back."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from prism.sampling.policy import Law, Moment, Pair, Policy, lowest
from prism.sampling.remask import Lowest
from prism.schedule import Schedule
from prism.state import Edit


@dataclass(frozen=True)
class Revisiting(Policy):
    """`pair`, and when a block begins the `k` tokens of all earlier blocks that its remasker scores lowest are taken back; they
    are written again together with the block.

    A block is finished before the next one is known. When that begins everything is computed anyway, also with a cache, so the
    quality of what stands before it, seen with all that was written since, costs no forward pass.
    """

    pair: Pair
    k: int

    def __post_init__(self) -> None:
        if self.k < 1:
            raise ValueError(f"k={self.k}: the number of tokens to take back of earlier blocks must be at least 1.")
        if not isinstance(self.pair.remasker, Lowest):
            name = type(self.pair.remasker).__name__
            raise ValueError(f"{name} gives tokens no score to take back the lowest by; take a remasker that does.")

    def decide(self, now: Moment) -> Edit:
        edit = self.pair.decide(now)
        assert isinstance(self.pair.remasker, Lowest)
        assert now.earlier is not None
        everywhere = None if now.widest is None else now.earlier.numel()
        past = replace(now, state=replace(now.state, window=now.earlier), widest=everywhere)
        begins = (now.budget.step == 0) & (now.budget.steps > 1)  # a single step could not write them again
        count = torch.where(begins, self.k, 0)
        scores = self.pair.remasker.score(past)
        back = lowest(scores, self.pair.remasker.among(past, scores), count)
        return replace(edit, remask=edit.remask | back)

    @property
    def reopens(self) -> int:
        return self.k

    @property
    def law(self) -> Law:
        return self.pair.law

    @property
    def cites(self) -> tuple[str, ...]:
        return self.pair.cites

    @property
    def schedule(self) -> Schedule:
        return self.pair.schedule

    def times(self, steps: int) -> Float[Tensor, " n"]:
        return self.pair.times(steps)
