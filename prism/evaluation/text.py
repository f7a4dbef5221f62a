"""How generated text is judged: its likelihood under a causal model, and beside it what keeps that figure honest.

Perplexity alone can be gamed by repeating oneself, so diversity stands next to it: unigram entropy (the figure of ReMDM and
PRISM), distinct n-grams, and the share of n-grams a text has used before.

Everything here takes token ids or likelihoods and gives numbers; who made them is not asked. Intervals are over samples.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int, Integer

from prism.evaluation.statistics import Interval, bootstrap_mean, bootstrap_ratio, jackknife

Rows = Collection[Integer[np.ndarray, " _"]]
"""Sequences of token ids, equally long or not."""


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
        """What a results file holds."""
        remasks, nll = float(self.remasks.sum()), self.likelihood
        return {
            "samples": len(self.tokens),
            "length": self.tokens.shape[1],
            **figure("nll", nll),
            **figure("perplexity", nll.through(np.exp)),
            **diversity(self.tokens),
            "nfe": float(self.forwards.mean()),
            "remasks": float(self.remasks.mean()),
            "flipflop_rate": float(self.flipflops.sum()) / remasks if remasks else 0.0,
            "seconds": self.seconds,
        }


@dataclass(frozen=True)
class Likelihood:
    """What a judge makes of texts of different lengths."""

    nll: Float[np.ndarray, " n"]
    """-log p of each text, in nats, summed over its tokens."""
    tokens: Int[np.ndarray, " n"]
    """How many tokens of each that sum is over."""

    @property
    def per_token(self) -> Interval:
        """All nats over all tokens, as ReMDM and PRISM have it: long texts weigh more."""
        return bootstrap_ratio(self.nll, self.tokens)

    @property
    def per_text(self) -> Interval:
        """The mean over texts of each text's nats a token: all texts weigh the same, and those without tokens are left out."""
        some = self.tokens > 0
        return bootstrap_mean(self.nll[some] / self.tokens[some])

    def summary(self) -> dict[str, Any]:
        if not self.tokens.any():
            raise ValueError("No text has a token the judge could score; are they all empty?")
        return {
            **figure("nll", self.per_token),
            **figure("perplexity", self.per_token.through(np.exp)),
            **figure("perplexity_per_text", self.per_text.through(np.exp)),
            "judged_tokens": int(self.tokens.sum()),
            "texts_without_tokens": int((self.tokens == 0).sum()),
        }


def figure(name: str, found: Interval) -> dict[str, Any]:
    """A figure as results files hold it."""
    return {name: found.value, f"{name}_interval": [found.low, found.high]}


def diversity(rows: Rows) -> dict[str, Any]:
    """What tells a text that says something from one that repeats itself."""
    return {
        **figure("entropy", bootstrap_mean(unigram_entropy(rows))),
        **figure("distinct_2", distinct(rows, 2)),
        **figure("distinct_3", distinct(rows, 3)),
        **figure("repetition_4", bootstrap_mean(repetition(rows, 4))),
    }


def unigram_entropy(rows: Rows) -> Float[np.ndarray, " n"]:
    """-Σ_v c_v log c_v of every sequence, c_v the share of its tokens that are v, in nats; 0 where there are none."""
    grams, row = ngrams(rows, 1)
    base = int(grams.max(initial=0)) + 1
    pairs, counts = np.unique(row * base + grams, return_counts=True)
    share = counts / np.bincount(row, minlength=len(rows))[pairs // base]
    return np.bincount(pairs // base, weights=-share * np.log(share), minlength=len(rows))


def distinct(rows: Rows, n: int) -> Interval:
    """The share of different n-grams among all n-grams of all sequences (Li et al. 2016); it falls as sequences are added.

    The interval is the jackknife's. The bootstrap would draw sequences twice, which alone makes n-grams less distinct.
    """
    grams, row = ngrams(rows, n)
    if not len(grams):
        return Interval(0.0, 0.0, 0.0)
    kinds, gram = np.unique(grams, return_inverse=True)
    first, last = np.full(len(kinds), len(rows)), np.full(len(kinds), -1)
    np.minimum.at(first, gram, row)
    np.maximum.at(last, gram, row)
    only_here = np.bincount(first[first == last], minlength=len(rows))
    left = len(grams) - np.bincount(row, minlength=len(rows))
    without = np.divide(len(kinds) - only_here, left, out=np.zeros(len(rows)), where=left > 0)
    found = jackknife(len(kinds) / len(grams), without)
    return Interval(found.value, max(0.0, found.low), min(1.0, found.high))  # it is a share


def repetition(rows: Rows, n: int) -> Float[np.ndarray, " n"]:
    """The share of a sequence's n-grams that it has used before; 0 where it has none."""
    grams, row = ngrams(rows, n)
    base = int(grams.max(initial=0)) + 1
    different = np.bincount(np.unique(row * base + grams) // base, minlength=len(rows))
    there = np.bincount(row, minlength=len(rows))
    return np.where(there > 0, 1 - different / np.maximum(there, 1), 0.0)


def ngrams(rows: Rows, n: int) -> tuple[Int[np.ndarray, " g"], Int[np.ndarray, " g"]]:
    """The n-grams of all sequences as numbers, equal where they are, and the number of the sequence each is in."""
    tokens = np.unique(np.concatenate([np.asarray(row, np.int64) for row in rows]), return_inverse=True)[1]
    owner = np.repeat(np.arange(len(rows)), [len(row) for row in rows])
    grams, base = tokens, int(tokens.max(initial=0)) + 1
    for more in range(1, n):  # numbered anew each time, lest they overflow
        grams = np.unique(grams[:-1] * base + tokens[more:], return_inverse=True)[1]
    owns = owner[: max(len(tokens) - n + 1, 0)]
    inside = owns == owner[n - 1 :]
    return grams[inside], owns[inside]
