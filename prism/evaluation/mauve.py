"""MAUVE (Pillutla et al. 2021): how close the distribution of generated text is to that of written text.

Features of both are clustered together; the two histograms over the clusters span a frontier of divergences, and the area
under it, from 0 to 1, is the score. Clustering is that of the published package, mauve-text. It is under the GPLv3, which
asks something of whoever distributes it with their own code: an optional extra, imported when asked for and not before.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from prism.evaluation.statistics import Interval

Features = Float[np.ndarray, "_ d"]
PUBLISHED_SEED = 25


@dataclass(frozen=True)
class Clustering:
    """The score from one clustering of all texts."""

    score: float
    variance: float
    """Of the score over resampled histograms, as from other texts. Their mean is no use: it lies below the score, because
    histograms drawn again are further apart than those they were drawn from."""
    buckets: int


@dataclass(frozen=True)
class Mauve:
    score: Interval
    """The mean over clusterings. The variance behind the interval is that of this mean plus that of drawing other texts; on
    Gaussian features it was about the true one at scores below 0.7 and too large above."""
    by_seed: tuple[float, ...]
    """The first with the published seed."""
    buckets: int


def require_mauve(otherwise: str = "leave --reference out") -> None:
    """Complain before any work is done, and tell how to do without."""
    if importlib.util.find_spec("mauve") is None:
        raise ValueError(f"MAUVE needs mauve-text (GPLv3); run: pip install 'prism-mdm[mauve]', or {otherwise}.")


def mauve(written: Features, generated: Features, *, seeds: int = 5) -> Mauve:
    """With the published settings, once for every seed."""
    return combined([clustering(written, generated, seed) for seed in range(seeds)])


def clustering(
    written: Features, generated: Features, seed: int, *, scale: float = 5.0, resamples: int = 200
) -> Clustering:
    """With the published settings: a tenth as many clusters as texts, 90 % of the variance, scale 5; seed 0 is theirs."""
    for name, features in (("written", written), ("generated", generated)):
        if len(features) < 2:
            raise ValueError(f"MAUVE compares distributions; {len(features)} {name} text shows none, give at least 2.")
        if not np.isfinite(features).all():
            raise ValueError(f"The features of the {name} texts are not all finite; does the model fit its tokenizer?")
    require_mauve()
    from mauve import compute_mauve

    found = compute_mauve(
        p_features=written, q_features=generated, mauve_scaling_factor=scale, seed=PUBLISHED_SEED + seed
    )
    rng = np.random.default_rng(seed)
    p, q = (
        rng.multinomial(len(features), histogram, size=resamples) / len(features)
        for features, histogram in ((written, found.p_hist), (generated, found.q_hist))
    )
    areas = frontier_area(p, q, scale)
    return Clustering(float(found.mauve), float(areas.var()), int(found.num_buckets))


def combined(clusterings: Sequence[Clustering]) -> Mauve:
    scores = [one.score for one in clusterings]
    value = float(np.mean(scores))
    between = float(np.var(scores, ddof=1)) / len(scores) if len(scores) > 1 else 0.0
    spread = 1.959964 * math.sqrt(float(np.mean([one.variance for one in clusterings])) + between)
    score = Interval(value, max(0.0, value - spread), min(1.0, value + spread))
    return Mauve(score, tuple(scores), clusterings[0].buckets)


def frontier_area(
    p: Float[np.ndarray, "n k"], q: Float[np.ndarray, "n k"], scale: float = 5.0, points: int = 25
) -> Float[np.ndarray, " n"]:
    """The area under {(e^{-c KL(q|r)}, e^{-c KL(p|r)})}, r = w p + (1 - w) q for w between 0 and 1."""
    shares = np.linspace(1e-6, 1 - 1e-6, points)
    curve = [
        [np.exp(-scale * _divergence(side, w * p + (1 - w) * q)) for w in shares] for side in (q, p)
    ]  # x falls from 1 to 0 while y rises from 0 to 1
    none, whole = np.zeros(len(p)), np.ones(len(p))
    x, y = np.stack([whole, *curve[0], none]), np.stack([none, *curve[1], whole])
    return ((x[:-1] - x[1:]) * (y[:-1] + y[1:]) / 2).sum(0)


def _divergence(p: Float[np.ndarray, "n k"], r: Float[np.ndarray, "n k"]) -> Float[np.ndarray, " n"]:
    there = p > 0
    ratio = np.divide(p, r, out=np.ones_like(r), where=there)
    return np.where(there, p * np.log(ratio), 0.0).sum(-1)
