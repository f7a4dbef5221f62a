"""MAUVE on features whose distributions are known."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest

from prism.evaluation import mauve as module
from prism.evaluation.mauve import Clustering, combined, frontier_area, mauve, require_mauve

installed = pytest.mark.skipif(importlib.util.find_spec("mauve") is None, reason="mauve-text (GPLv3) is not installed")


def test_the_frontier_of_equals_and_of_strangers() -> None:
    p = np.array([[0.5, 0.5, 0.0, 0.0], [0.5, 0.5, 0.0, 0.0], [0.7, 0.1, 0.1, 0.1]])
    q = np.array([[0.5, 0.5, 0.0, 0.0], [0.0, 0.0, 0.5, 0.5], [0.1, 0.2, 0.6, 0.1]])
    same, apart, between = frontier_area(p, q)
    assert same == pytest.approx(1)
    assert apart < 0.01
    assert apart < between < same
    assert frontier_area(q, p) == pytest.approx([same, apart, between], abs=1e-9)


def test_clusterings_combined() -> None:
    found = combined([Clustering(0.5, 0.0003, 7), Clustering(0.52, 0.0005, 7)])
    assert found.score.value == pytest.approx(0.51)
    assert found.score.high - 0.51 == pytest.approx(1.96 * (0.0004 + 0.0002 / 2) ** 0.5, rel=1e-3)
    assert found.by_seed == (0.5, 0.52)


def test_without_the_package_there_is_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"pip install 'prism-mdm\[mauve\]'"):
        require_mauve()


@installed
@pytest.mark.filterwarnings("ignore")
def test_equal_and_different_gaussians() -> None:
    rng = np.random.default_rng(0)
    a, b, far = (rng.normal(centre, 1, (400, 16)).astype(np.float32) for centre in (0, 0, 1.5))
    same, apart = mauve(a, b, seeds=2), mauve(a, far, seeds=2)
    assert same.score.value > 0.9
    assert apart.score.value < 0.2
    assert same.buckets == 40
    assert same.score.low < same.score.value < same.score.high


@installed
@pytest.mark.filterwarnings("ignore")
def test_our_frontier_is_that_of_the_package() -> None:
    from mauve import compute_mauve

    rng = np.random.default_rng(1)
    a, b = (rng.normal(centre, 1, (300, 8)).astype(np.float32) for centre in (0, 0.4))
    found = compute_mauve(p_features=a, q_features=b)
    assert frontier_area(found.p_hist[None], found.q_hist[None])[0] == pytest.approx(found.mauve, abs=1e-6)
    assert mauve(a, b, seeds=1).by_seed[0] == found.mauve  # the first seed is the published one


@installed
@pytest.mark.parametrize("features", [np.zeros((1, 4)), np.full((5, 4), np.nan)])
def test_what_shows_no_distribution_is_refused(features: np.ndarray) -> None:
    with pytest.raises(ValueError, match="written text"):
        mauve(features, np.zeros((5, 4)))
