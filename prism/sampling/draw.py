"""How a token is drawn from a predicted distribution.

One uniform number per position and the inverse of the cumulative distribution, in float64: float32 Gumbel noise truncates
the tail and lowers the entropy of samples (Zheng et al. 2024, "Masked diffusion models are secretly time-agnostic"), and a
position draws the same token whether its row was computed alone or with all the others.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

_ELEMENTS_AT_ONCE = 1 << 25  # float64 work space of a chunk: 256 MiB


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

    def tokens(self, log_probabilities: Float[Tensor, "n v"], uniforms: Float[Tensor, " n"]) -> Int[Tensor, " n"]:
        """One token per row."""
        if self.temperature == 0 or self.nucleus == 0:
            return log_probabilities.argmax(-1)
        rows = max(1, _ELEMENTS_AT_ONCE // log_probabilities.shape[-1])
        chunks = zip(log_probabilities.split(rows), uniforms.split(rows), strict=True)
        return torch.cat([self._tokens(logs, uniform) for logs, uniform in chunks])

    def _tokens(self, log_probabilities: Float[Tensor, "n v"], uniforms: Float[Tensor, " n"]) -> Int[Tensor, " n"]:
        logits = log_probabilities.double()
        logits = (logits - logits.max(-1, keepdim=True).values) / self.temperature  # the top at 0: nothing overflows
        if self.top_k is not None and self.top_k < logits.shape[-1]:
            kth = logits.topk(self.top_k, dim=-1).values[:, -1:]
            logits = logits.masked_fill(logits < kth, -torch.inf)
        if self.nucleus == 1:
            return inverse_cdf(logits.softmax(-1), uniforms)
        probabilities, order = logits.softmax(-1).sort(dim=-1, descending=True)
        cumulative = probabilities.cumsum(-1)
        kept = (cumulative - probabilities < self.nucleus) if self.keep_crossing else (cumulative <= self.nucleus)
        kept[:, 0] = True
        chosen = inverse_cdf(probabilities * kept, uniforms)
        return order.gather(-1, chosen[:, None])[:, 0]


def inverse_cdf(weights: Float[Tensor, "n v"], uniforms: Float[Tensor, " n"]) -> Int[Tensor, " n"]:
    """The first index whose cumulative weight exceeds u · total: an exact draw, never of an index of weight 0."""
    cumulative = weights.cumsum(-1)
    wanted = (uniforms * cumulative[:, -1])[:, None]
    return torch.searchsorted(cumulative, wanted, right=True)[:, 0].clamp_max(weights.shape[-1] - 1)
