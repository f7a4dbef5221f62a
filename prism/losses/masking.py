"""The masking process: clean sequences x in, partially masked sequences z out (PRISM, Section 2.1).

Two processes with the same distribution of z (Appendix B.2): draw the number of masks uniformly and then their places, or
draw a time t and mask every token with probability t. Tokens that are not `maskable` (prompts, padding) stay.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from prism.noise import Noise, Purpose
from prism.sampling.policy import lowest
from prism.state import Mask, Tokens


@dataclass(frozen=True)
class Batch:
    """Clean sequences to learn from."""

    tokens: Tokens
    maskable: Mask | None = None
    """False on prompts, which are never masked; None when every token may be."""
    attend: Mask | None = None
    """False on padding; None when no row is padded."""

    def to(self, device: torch.device) -> Batch:
        parts = (self.tokens, self.maskable, self.attend)
        tokens, maskable, attend = (None if part is None else part.to(device) for part in parts)
        assert tokens is not None
        return Batch(tokens, maskable, attend)

    def rows(self, first: int, stop: int) -> Batch:
        parts = (self.tokens, self.maskable, self.attend)
        tokens, maskable, attend = (None if part is None else part[first:stop] for part in parts)
        assert tokens is not None
        return Batch(tokens, maskable, attend)

    def repeat(self, times: int) -> Batch:
        """All rows, and all of them again."""
        parts = (self.tokens, self.maskable, self.attend)
        tokens, maskable, attend = (None if part is None else part.repeat(times, 1) for part in parts)
        assert tokens is not None
        return Batch(tokens, maskable, attend)

    @property
    def free(self) -> Mask:
        free = torch.ones_like(self.tokens, dtype=torch.bool) if self.maskable is None else self.maskable
        return free if self.attend is None else free & self.attend


@dataclass(frozen=True)
class Masked:
    tokens: Tokens
    """z."""
    where: Mask
    t: Float[Tensor, " b"]
    """The probability with which each token was masked; n/L when the number n was drawn."""


class Masking(ABC):
    @abstractmethod
    def where(self, free: Mask, noise: Noise) -> tuple[Mask, Float[Tensor, " b"]]: ...

    def __call__(self, batch: Batch, mask_id: int, noise: Noise) -> Masked:
        where, t = self.where(batch.free, noise)
        return Masked(batch.tokens.masked_fill(where, mask_id), where, t)


@dataclass(frozen=True)
class ByCount(Masking):
    """n ~ Unif{0, …, L}, then a uniformly random set of n tokens (process 1)."""

    def where(self, free: Mask, noise: Noise) -> tuple[Mask, Float[Tensor, " b"]]:
        length = free.sum(1)
        n = (noise.uniform(Purpose.LEVEL, 1)[:, 0] * (length + 1)).long()
        where = lowest(noise.uniform(Purpose.MASKING, free.shape[1]), free, n)
        return where, n / length.clamp_min(1)


@dataclass(frozen=True)
class ByProbability(Masking):
    """t ~ Unif[floor, most], then every token with probability t (process 2).

    `floor` keeps 1/t weights finite; MDLM and PRISM use 1e-3. `most` below 1 is for work that never starts from masks alone:
    a Sudoku of 30 clues has 63 % of them.
    """

    floor: float = 0.0
    most: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.floor < self.most <= 1:
            raise ValueError(f"{self}: floor and most are probabilities with floor < most.")

    def where(self, free: Mask, noise: Noise) -> tuple[Mask, Float[Tensor, " b"]]:
        t = self.floor + (self.most - self.floor) * noise.uniform(Purpose.LEVEL, 1)[:, 0]
        return free & (noise.uniform(Purpose.MASKING, free.shape[1]) < t[:, None]), t
