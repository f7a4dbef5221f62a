"""Intervals against closed forms and simulation."""

from __future__ import annotations

import numpy as np
import pytest

from prism.evaluation.statistics import bootstrap_mean, bootstrap_ratio, difference, jackknife, paired_difference, rate


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


def test_a_ratio_weighs_examples_by_what_is_below() -> None:
    rng = np.random.default_rng(3)
    below = rng.integers(1, 100, 500)
    found = bootstrap_ratio(2.0 * below + rng.normal(0, 5, 500), below)
    assert found.low < 2 < found.high
    assert found.high - found.low < 0.05
    assert bootstrap_ratio(2.0 * below, below).high == pytest.approx(2)
    assert found.through(np.exp).low == pytest.approx(np.exp(found.low))


def test_the_difference_of_strangers_has_the_noise_of_both() -> None:
    rng = np.random.default_rng(4)
    a, b = rng.normal(1, 3, 400), rng.normal(0, 4, 400)
    found = difference(a, b)
    assert (found.high - found.low) / 2 == pytest.approx(1.96 * 5 / 20, rel=0.15)
    assert found.value == pytest.approx(a.mean() - b.mean())


def test_the_jackknife_of_a_mean_is_the_normal_interval() -> None:
    values = np.random.default_rng(5).normal(0, 2, 100)
    found = jackknife(values.mean(), (values.sum() - values) / 99)
    assert found.high - found.value == pytest.approx(1.96 * values.std(ddof=1) / 10, rel=1e-3)
