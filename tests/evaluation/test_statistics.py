"""Intervals against closed forms and simulation."""

from __future__ import annotations

import numpy as np
import pytest

from prism.evaluation.statistics import bootstrap_mean, paired_difference, rate


def test_wilson_at_the_edges_and_in_the_middle() -> None:
    assert rate(0, 10).low == 0
    assert rate(0, 10).high == pytest.approx(0.27753, abs=1e-4)
    assert rate(10, 10).high == pytest.approx(1)
    middle = rate(50, 100)
    assert (middle.low, middle.high) == (pytest.approx(0.40383, abs=1e-4), pytest.approx(0.59617, abs=1e-4))
    with pytest.raises(ValueError, match="at least one trial"):
        rate(0, 0)


def test_wilson_covers_the_truth_about_95_times_in_100() -> None:
    rng = np.random.default_rng(0)
    covered = [rate(int(hits), 200).low <= 0.8 <= rate(int(hits), 200).high for hits in rng.binomial(200, 0.8, 2000)]
    assert 0.93 < np.mean(covered) < 0.97


def test_bootstrap_is_about_the_normal_interval_for_many_values() -> None:
    values = np.random.default_rng(1).normal(3.0, 2.0, 400)
    interval = bootstrap_mean(values)
    half = 1.96 * values.std() / 20
    assert interval.low == pytest.approx(values.mean() - half, abs=0.04)
    assert interval.high == pytest.approx(values.mean() + half, abs=0.04)


def test_pairing_cancels_what_both_find_hard() -> None:
    rng = np.random.default_rng(2)
    hard = rng.normal(0, 10, 300)
    a, b = hard + 0.5 + rng.normal(0, 0.1, 300), hard + rng.normal(0, 0.1, 300)
    gain = paired_difference(a, b)
    assert 0.45 < gain.low < gain.high < 0.55
    with pytest.raises(ValueError, match="same examples"):
        paired_difference(a, b[:-1])
