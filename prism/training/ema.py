"""The running average of the weights, which is what gets evaluated (Ho et al. 2020; MDLM and PRISM use 0.9999)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

from prism.training.sharding import local


class Ema:
    """The running average of all trained weights: after update n, average += (1 - d)·(weight - average), with
    d = min(decay, (1 + n)/(10 + n)) so that the first weights are soon forgotten."""

    def __init__(self, weights: Mapping[str, Tensor], decay: float) -> None:
        self.decay = decay
        self.average = {
            name: weight.detach().to(torch.promote_types(weight.dtype, torch.float32), copy=True)
            for name, weight in weights.items()
        }
        self._weights = [local(weight.detach()) for weight in weights.values()]
        self._averages = [local(average) for average in self.average.values()]

    def update(self, n: int) -> None:
        weights = [weight.to(average.dtype) for weight, average in zip(self._weights, self._averages, strict=True)]
        torch._foreach_lerp_(self._averages, weights, 1 - min(self.decay, (1 + n) / (10 + n)))

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The averages in the weights' place, for as long as the block lasts."""
        kept = [weight.clone() for weight in self._weights]
        torch._foreach_copy_(self._weights, self._averages)
        try:
            yield
        finally:
            torch._foreach_copy_(self._weights, kept)
