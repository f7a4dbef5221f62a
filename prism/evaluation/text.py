"""How generated text is judged: its likelihood under a causal model, and beside it what keeps that figure honest.

Perplexity alone can be gamed by repeating oneself, so diversity stands next to it: unigram entropy (the figure of ReMDM and
PRISM), distinct n-grams, and the share of n-grams a text has used before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from prism.evaluation.statistics import Interval, bootstrap_mean
from prism.state import Tokens


@dataclass(frozen=True)
class TextRun:
    """One policy's samples and what was found of each."""

    tokens: Int[np.ndarray, "n l"]
    nll: Float[np.ndarray, " n"]
    """-log p per token under the judge, in nats."""
    forwards: Int[np.ndarray, " n"]
    remasks: Int[np.ndarray, " n"]
    flipflops: Int[np.ndarray, " n"]
    seconds: float

    @property
    def likelihood(self) -> Interval:
        return bootstrap_mean(self.nll)

    def summary(self) -> dict[str, Any]:
        """What a results file holds; intervals are over samples."""
        tokens, remasks = torch.from_numpy(self.tokens), float(self.remasks.sum())
        nll, entropy = self.likelihood, bootstrap_mean(unigram_entropy(tokens).numpy())
        repeats = bootstrap_mean(repetition(tokens, 4).numpy())
        return {
            "samples": len(self.tokens),
            "length": self.tokens.shape[1],
            "nll": nll.value,
            "nll_interval": [nll.low, nll.high],
            "perplexity": float(np.exp(nll.value)),
            "perplexity_interval": [float(np.exp(nll.low)), float(np.exp(nll.high))],
            "entropy": entropy.value,
            "entropy_interval": [entropy.low, entropy.high],
            "distinct_2": distinct(tokens, 2),
            "distinct_3": distinct(tokens, 3),
            "repetition_4": repeats.value,
            "repetition_4_interval": [repeats.low, repeats.high],
            "nfe": float(self.forwards.mean()),
            "remasks": float(self.remasks.mean()),
            "flipflop_rate": float(self.flipflops.sum()) / remasks if remasks else 0.0,
            "seconds": self.seconds,
        }


def unigram_entropy(tokens: Tokens) -> Float[Tensor, " b"]:
    """-Σ_v c_v log c_v of every sequence, c_v the share of its tokens that are v, in nats."""
    length = tokens.shape[1]
    ordered = tokens.sort(1).values
    new = torch.ones_like(ordered, dtype=torch.bool)
    new[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    counts = torch.zeros_like(ordered, dtype=torch.float64).scatter_add_(
        1, new.long().cumsum(1) - 1, torch.ones_like(ordered, dtype=torch.float64)
    )
    share = counts / length
    return -(share * share.clamp_min(1e-300).log()).sum(1)


def distinct(tokens: Tokens, n: int) -> float:
    """The share of different n-grams among all n-grams of all sequences (Li et al. 2016)."""
    grams = tokens.unfold(1, n, 1).flatten(0, 1)
    return len(grams.unique(dim=0)) / len(grams)


def repetition(tokens: Tokens, n: int) -> Float[Tensor, " b"]:
    """The share of a sequence's n-grams that it has used before."""
    grams = tokens.unfold(1, n, 1)
    return torch.tensor([1 - len(row.unique(dim=0)) / len(row) for row in grams], dtype=torch.float64)
