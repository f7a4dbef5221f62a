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


@pytest.mark.parametrize(
    ("count", "first", "second"), [(1024, 0.1, 0.08), (164, 0.1, 0.05), (164, 0.01, 0.005), (40, 0, 0)]
)
def test_a_difference_of_hits_covers_the_truth_however_seldom_they_differ(
    count: int, first: float, second: float
) -> None:
    rng, covered = np.random.default_rng(6), []
    for only_a, only_b, _ in rng.multinomial(count, [first, second, 1 - first - second], 1000):
        a, b = np.zeros(count), np.zeros(count)
        a[:only_a], b[only_a : only_a + only_b] = 1, 1
        gain = paired_difference(a, b)
        assert gain.low < gain.value == (only_a - only_b) / count < gain.high
        covered.append(gain.low <= first - second <= gain.high)
    assert np.mean(covered) > 0.93


def test_a_difference_of_hits_is_about_the_bootstrap_s_where_they_differ_often() -> None:
    rng = np.random.default_rng(7)
    a, b = (rng.random(1000) < 0.5).astype(float), (rng.random(1000) < 0.4).astype(float)
    found, resampled = paired_difference(a, b), bootstrap_mean(a - b)
    assert (found.low, found.high) == (pytest.approx(resampled.low, abs=3e-3), pytest.approx(resampled.high, abs=3e-3))


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
