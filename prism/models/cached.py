"""Fewer positions a step: what lies outside the block being written is read from a cache (Fast-dLLM, Wu et al. 2025).

When a block begins everything is computed, which is also when the quality of all earlier tokens is fresh. While the block is
written only its own positions are (a *dual* cache: prompt, earlier blocks and the masks behind stay as they were), or its own
and all that follow (a *prefix* cache). Attention is bidirectional, so either is an approximation: what is kept does not know
what has been written since.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from prism.models.attach import PrismModel
from prism.models.backbone import Backbone, Cache, Facts
from prism.models.llama import Llama
from prism.state import Hidden, Mask, Prediction, Tokens


class Cached:
    """`model` with a cache. The block is whatever the loop says it is writing (`sample(block=…)`)."""

    forwards: int = 1

    refresh: int | None

    def __init__(self, model: Backbone | PrismModel, *, refresh: int | None = None, suffix: bool = False) -> None:
        """`refresh` computes everything anew after so many steps inside a block, too; `suffix` keeps the prefix alone."""
        backbone = model.backbone if isinstance(model, PrismModel) else model
        if not isinstance(backbone, Llama):
            raise ValueError(
                "This model keeps no cache; of all models only LLaDA, Dream and those of prism adapt (the Llama family) do. "
                "Leave the cache out."
            )
        if refresh is not None and refresh < 1:
            raise ValueError(f"refresh={refresh} must be at least 1 step.")
        self.model, self.refresh, self.suffix = model, refresh, suffix
        self.cache, self.age = Cache(), 0
        self.seen: tuple[Tokens, Mask] | None = None
        self.positions: Int[Tensor, "b w"] | None = None

    @property
    def facts(self) -> Facts:
        return self.model.facts

    def predict(self, tokens: Tokens, attend: Mask | None = None) -> Prediction:
        """Everything, without the cache."""
        return self.model.predict(tokens, attend)

    @torch.no_grad()
    def predict_window(self, tokens: Tokens, attend: Mask | None, window: Mask) -> Prediction:
        """The prediction at the positions of `window` fresh, elsewhere as it was kept."""
        self.age += 1
        fits = self.seen is not None and self.seen[0].shape == tokens.shape and self.age != self.refresh
        if not fits or self.seen is None or bool(self.is_outdated(*self.seen, tokens, window)):
            self.age = 0
            prediction = self.everything(tokens, attend, window)
        else:
            prediction = self.part(tokens, attend)
        self.seen = tokens, window
        return prediction

    def everything(self, tokens: Tokens, attend: Mask | None, window: Mask, width: int | None = None) -> Prediction:
        """All positions, kept for what follows. With `width`, and no row's window has more, nothing waits for the device."""
        self.cache.positions = None
        self.positions = self._to_compute(window, attend, width)
        return self.model.predict(tokens, attend, self.cache)

    def part(self, tokens: Tokens, attend: Mask | None) -> Prediction:
        """The positions of the window that `everything` was given, the rest as it was kept."""
        self.cache.positions = self.positions
        return self.model.predict(tokens, attend, self.cache)

    def prediction(self, hidden: Hidden, tokens: Tokens, attend: Mask | None = None) -> Prediction:
        return self.model.prediction(hidden, tokens, attend)

    def is_outdated(self, before: Tokens, was: Mask, tokens: Tokens, window: Mask) -> Bool[Tensor, ""]:
        """A block begins, or something outside it changed. What leaves the window has been computed until now and stays as it
        was."""
        begins = (~window | (tokens == self.facts.mask_id)).all()  # also of another run, over the same positions
        return begins | ((window & ~was) | (~was & (tokens != before))).any()

    @property
    def steady(self) -> bool:
        """With the prefix alone a part shrinks from block to block."""
        return not self.suffix

    def width(self, windows: Iterable[Mask], more: int) -> int:
        widest = max((int(self._needed(window).sum(1).max()) for window in windows), default=1)
        return widest + more * (1 + self.facts.field.value)

    def _to_compute(self, window: Mask, attend: Mask | None, width: int | None) -> Int[Tensor, "b w"]:
        """The positions to compute; where a row has fewer, its first one again: another would be known better than the block's
        beginning left it."""
        needed = self._needed(window)
        if attend is not None:
            needed &= attend
        count = max(1, int(needed.sum(1).max())) if width is None else min(width, window.shape[1])
        places = needed.long().argsort(dim=1, descending=True, stable=True)[:, :count]
        own = torch.arange(count, device=places.device) < needed.sum(1, keepdim=True)
        return torch.where(own, places, places[:, :1])

    def _needed(self, window: Mask) -> Mask:
        """The window; the position to its left, too, where predictions are read there; what follows, with the prefix alone."""
        needed = window.long().cumsum(1) > 0 if self.suffix else window.clone()
        shift = self.facts.field.value
        if shift:
            needed[:, :-shift] |= window[:, shift:]
        return needed
