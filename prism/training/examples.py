"""Examples by number: what makes any number of processes, and a resumed run, see the same sequences."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Int, Integer
from torch import Tensor

from prism.losses.masking import Batch
from prism.noise import Noise
from prism.state import Mask, Tokens


@runtime_checkable
class Examples(Protocol):
    """Clean sequences by number. Row i of the run is the same sequence whenever and wherever it is asked for."""

    def batch(self, rows: range, device: torch.device) -> Batch: ...


@dataclass(frozen=True)
class Shuffled(Examples):
    """A table of sequences in a fresh order every epoch. On the GPU already, no example crosses the bus."""

    tokens: Integer[Tensor, "n l"]
    """Of any integer type."""
    maskable: Mask | None = None
    attend: Mask | None = None
    seed: int = 0
    augment: Callable[[Tokens, Noise], Tokens] | None = None

    def batch(self, rows: range, device: torch.device) -> Batch:
        chosen = shuffled(rows, len(self.tokens), self.seed, self.tokens.device)
        tokens, maskable, attend = (
            None if table is None else table[chosen].to(device) for table in (self.tokens, self.maskable, self.attend)
        )
        assert tokens is not None
        tokens = tokens.long()
        if self.augment is not None:  # at "step" 1, the loss drawing its numbers at step 0
            tokens = self.augment(tokens, Noise.rows(self.seed, len(rows), first=rows.start, device=device).at(1))
        return Batch(tokens, maskable, attend)


def shuffled(rows: range, count: int, seed: int, device: torch.device) -> Int[Tensor, " n"]:
    """Which of `count` examples each row of the run is: all of them once an epoch, in a fresh order every epoch."""
    epochs = range(rows.start // count, (rows.stop - 1) // count + 1)
    orders = ((_order(count, seed, epoch, device), epoch * count) for epoch in epochs)
    return torch.cat([order[max(rows.start - first, 0) : rows.stop - first] for order, first in orders])


@lru_cache(maxsize=4)
def _order(count: int, seed: int, epoch: int, device: torch.device) -> Int[Tensor, " n"]:
    """Drawn on the CPU, so that it is the same everywhere; moved once an epoch, since every transfer waits for the device."""
    return torch.randperm(count, generator=torch.Generator().manual_seed(mixed(seed, epoch))).to(device)


def mixed(*numbers: int) -> int:
    digest = hashlib.blake2b(repr(numbers).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
