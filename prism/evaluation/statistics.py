"""Intervals for honest comparison: a rate, a mean, and the difference of two methods on the same examples."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Z = 1.959964  # 95 % of a normal distribution lie as many standard deviations around its mean
_LITTLE = 1e-9  # in place of a sum of nothing, so that a ratio stays a number


@dataclass(frozen=True)
class Interval:
    """A figure and the bounds of its 95 % interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"

    def through(self, rising: Callable[[float], float]) -> Interval:
        """Of a figure that rises with this one, such as the perplexity with the nats a token."""
        return Interval(*(float(rising(bound)) for bound in (self.value, self.low, self.high)))


def rate(successes: int | float, trials: int) -> Interval:
    """Wilson's score interval: never outside 0..1, and not empty at 0 or at all successes."""
    if trials < 1:
        raise ValueError("A rate needs at least one trial.")
    p = successes / trials
    centre = p + Z * Z / (2 * trials)
    spread = Z * math.sqrt(p * (1 - p) / trials + Z * Z / (4 * trials * trials))
    scale = 1 + Z * Z / trials
    return Interval(p, max(0.0, (centre - spread) / scale), min(1.0, (centre + spread) / scale))


def _drawn(count: int, resamples: int, seed: int) -> Iterator[NDArray[np.int64]]:
    """Which of `count` examples each resample holds, a row a resample, as many rows at a time as fit into a few megabytes."""
    rng, at_once = np.random.default_rng(seed), max(1, (1 << 20) // count)
    for first in range(0, resamples, at_once):
        yield rng.integers(count, size=(min(at_once, resamples - first), count))


def bootstrap_mean(values: NDArray[np.float64], *, resamples: int = 2000, seed: int = 0) -> Interval:
    """Percentile bootstrap of the mean over examples."""
    means = np.concatenate([values[rows].mean(1) for rows in _drawn(len(values), resamples, seed)])
    low, high = np.quantile(means, [0.025, 0.975])
    return Interval(float(values.mean()), float(low), float(high))


def bootstrap_ratio(
    above: NDArray[np.float64], below: NDArray[np.int64] | NDArray[np.float64], *, resamples: int = 2000, seed: int = 0
) -> Interval:
    """Percentile bootstrap of Σ above / Σ below over examples."""
    drawn = _drawn(len(above), resamples, seed)
    ratios = np.concatenate([above[rows].sum(1) / np.maximum(below[rows].sum(1), _LITTLE) for rows in drawn])
    low, high = np.quantile(ratios, [0.025, 0.975])
    return Interval(float(above.sum() / max(below.sum(), _LITTLE)), float(low), float(high))


def difference(a: NDArray[np.float64], b: NDArray[np.float64], *, resamples: int = 2000, seed: int = 0) -> Interval:
    """Mean of a - mean of b, of examples that have nothing to do with each other: each side is resampled on its own."""
    sides = ((a, 2 * seed), (b, 2 * seed + 1))
    means = [np.concatenate([side[rows].mean(1) for rows in _drawn(len(side), resamples, own)]) for side, own in sides]
    low, high = np.quantile(means[0] - means[1], [0.025, 0.975])
    return Interval(float(a.mean() - b.mean()), float(low), float(high))


def jackknife(value: float, without: NDArray[np.float64]) -> Interval:
    """A normal interval around `value` of a figure that is no mean, from its values without one example each."""
    count = len(without)
    spread = Z * math.sqrt((count - 1) / count * float(((without - without.mean()) ** 2).sum()))
    return Interval(value, value - spread, value + spread)


def paired_difference(a: NDArray[np.float64], b: NDArray[np.float64]) -> Interval:
    """Mean of a - b over the same examples: what both methods find hard cancels.

    Of hits and misses it is Bonett and Price's interval (2012), a normal one with one more example on which only the first hits
    and one on which only the second does. A bootstrap would be empty where the two never differ, and too narrow where they
    seldom do; of other figures there is nothing better.
    """
    if a.shape != b.shape:
        raise ValueError(f"Paired figures need the same examples, got {a.shape} and {b.shape}.")
    if not (np.isin(a, (0, 1)).all() and np.isin(b, (0, 1)).all()):
        return bootstrap_mean(a - b)
    count = len(a) + 2
    first, second = (float((one > other).sum() + 1) / count for one, other in ((a, b), (b, a)))
    centre = first - second
    spread = Z * math.sqrt((first + second - centre**2) / count)
    return Interval(float((a - b).mean()), max(-1.0, centre - spread), min(1.0, centre + spread))
