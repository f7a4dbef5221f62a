"""How a token is drawn from a predicted distribution.

One uniform number per position and the inverse of the cumulative distribution, summed in float64: float32 Gumbel noise
truncates the tail and lowers the entropy of samples (Zheng et al. 2024, "Masked diffusion models are secretly
time-agnostic"), and a position draws the same token whether its row was computed alone or with all the others.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec

import torch
from jaxtyping import Float, Int
from torch import Tensor

from prism.state import SMALL_VOCABULARY, log_probability

_HAS_TRITON = find_spec("triton") is not None


@dataclass(frozen=True)
class Draw:
    """Temperature, then top-k, then nucleus; `temperature=0` and `nucleus=0` both mean argmax."""

    temperature: float = 1.0
    top_k: int | None = None
    nucleus: float = 1.0
    keep_crossing: bool = False
    """Keep also the token whose cumulative probability crosses `nucleus` (transformers, Dream). The MDLM family, ReMDM and
    PRISM drop it, except that the most likely token always stays."""

    def __post_init__(self) -> None:
        if not self.temperature >= 0:
            raise ValueError(f"temperature={self.temperature} must be 0 (argmax) or more.")
        if self.top_k is not None and self.top_k < 1:
            raise ValueError(f"top_k={self.top_k} must be at least 1; leave it out to keep every token.")
        if not 0 <= self.nucleus <= 1:
            raise ValueError(f"nucleus={self.nucleus} is a probability; it must lie in 0..1 (1 keeps every token).")

    @property
    def is_certain(self) -> bool:
        """Whether it takes the most likely token, and no random number."""
        return self.temperature == 0 or self.nucleus == 0

    def __call__(
        self, logits: Float[Tensor, "n v"], uniforms: Float[Tensor, " n"]
    ) -> tuple[Int[Tensor, " n"], Float[Tensor, " n"]]:
        """One token per row, and its log-probability before temperature and filters; a negative uniform number marks a row that
        is padding, for which anything may come back."""
        if self._fuses(logits):
            from prism.sampling.kernel import draw

            tokens, logs = draw(logits, uniforms, self.temperature, self.nucleus, self.keep_crossing)
            return tokens, logs
        tokens = self.tokens(logits, uniforms)
        return tokens, log_probability(logits, tokens)

    def _fuses(self, logits: Float[Tensor, "n v"]) -> bool:
        """Whether the kernel will do: on a GPU, for vocabularies long enough to be worth a kernel."""
        possible = not self.is_certain and self.top_k is None and logits.dtype != torch.float64
        return possible and logits.is_cuda and logits.shape[-1] > SMALL_VOCABULARY and _HAS_TRITON

    def tokens(self, logits: Float[Tensor, "n v"], uniforms: Float[Tensor, " n"]) -> Int[Tensor, " n"]:
        """One token per row; a constant added to a row's logits changes nothing."""
        if self.is_certain:
            return logits.argmax(-1)
        logits = logits if logits.dtype == torch.float64 else logits.float()
        logits = (logits - logits.max(-1, keepdim=True).values) * (1 / self.temperature)  # nothing overflows
        if self.top_k is not None and self.top_k < logits.shape[-1]:
            kth = logits.topk(self.top_k, dim=-1).values[:, -1:]
            logits = logits.masked_fill(logits < kth, -torch.inf)
        weights = logits.exp().double()
        if self.nucleus < 1:
            weights = weights.masked_fill(logits < self._least(logits, weights), 0.0)
        return inverse_cdf(weights, uniforms)

    def _least(self, logits: Float[Tensor, "n v"], weights: Float[Tensor, "n v"]) -> Float[Tensor, "n 1"]:
        """The least logit the nucleus keeps. Tokens of equal probability stand or fall together, so that the nucleus depends
        on the distribution alone."""
        ordered, order = logits.sort(dim=-1, descending=True)
        at_least = weights.gather(-1, order).cumsum(-1)
        share = self.nucleus * at_least[:, -1:]
        ends = torch.ones_like(
            ordered, dtype=torch.bool
        )  # where a group of equals ends, `at_least` is their share and up
        ends[:, :-1] = ordered[:, :-1] > ordered[:, 1:]
        if self.keep_crossing:
            crossing = (ends & (at_least >= share)).long().argmax(-1, keepdim=True)
            return ordered.gather(-1, crossing)
        kept = torch.where(ends & (at_least <= share), ordered, torch.inf).min(-1, keepdim=True).values
        return kept.minimum(ordered[:, :1])


def inverse_cdf(weights: Float[Tensor, "n v"], uniforms: Float[Tensor, " n"]) -> Int[Tensor, " n"]:
    """The first index whose cumulative weight exceeds u · total: an exact draw, never of an index of weight 0."""
    if weights.shape[-1] <= SMALL_VOCABULARY:  # side by side a GPU sums many short rows ten times as fast
        cumulative = weights.t().contiguous().cumsum(0)
        return (cumulative <= uniforms * cumulative[-1]).sum(0).clamp_max(len(cumulative) - 1)
    cumulative = weights.cumsum(-1)
    wanted = (uniforms * cumulative[:, -1])[:, None]
    return torch.searchsorted(cumulative, wanted, right=True)[:, 0].clamp_max(weights.shape[-1] - 1)
