"""What a method reaches at an entropy none of its settings has."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from prism.recipes.reproduce.frontier import frontier_table, hull, reached, told


def rows(*points: tuple[float, float], half: float = 0.0) -> list[dict[str, Any]]:
    return [
        {"entropy": e, "nll": n, "entropy_interval": [e - half, e + half], "nll_interval": [n - half, n + half]}
        for e, n in points
    ]


def test_no_mixture_of_two_settings_lies_below_the_hull() -> None:
    """Every pair of settings in every proportion, tried one by one."""
    points = np.random.default_rng(0).normal(size=(40, 2))
    settings = rows(*map(tuple, points.tolist()))
    shares = np.linspace(0, 1, 101)[:, None, None, None]
    mixed = (shares * points[:, None] + (1 - shares) * points[None, :]).reshape(-1, 2)
    for entropy in np.linspace(points[:, 0].min() + 0.05, points[:, 0].max() - 0.05, 20):
        found = reached(settings, float(entropy))
        assert found is not None
        best = mixed[mixed[:, 0] >= entropy, 1].min()
        assert best - 0.05 < found.nll < best + 1e-9


def test_a_plainer_setting_that_is_not_likelier_is_of_no_use() -> None:
    settings = rows((4.0, 2.0), (4.5, 1.5), (5.0, 2.5))
    assert hull(settings) == settings[1:]
    assert reached(settings, 4.2) == (1.5, 0.0, "at 4.500, its likeliest")
    assert reached(settings, 4.75) == (2.0, 0.0, "")
    assert reached(settings, 5.1) is None


def test_who_was_never_tried_so_low_is_told_at_its_own_entropy() -> None:
    settings = rows((4.5, 1.5), (5.0, 2.5), half=0.01)
    assert told(reached(settings, 4.4)) == "1.500 ± 0.010 (at 4.500, its lowest)"
    assert told(reached(settings, 4.5)) == "1.500 ± 0.010"


def test_the_interval_knows_of_both_errors() -> None:
    found = reached(rows((4.0, 1.0), (5.0, 4.0), half=0.1), 4.5)
    assert found is not None
    assert found.half == pytest.approx(np.sqrt(2 * 0.05**2 + 2 * (3 * 0.05) ** 2))


def test_the_table_has_the_likeliest_first_and_a_dash_where_nothing_is_so_diverse() -> None:
    methods = {"plain": rows((3.0, 1.0)), "good": rows((5.0, 2.0)), "better": rows((5.0, 1.5), half=0.01)}
    lines = frontier_table({8: methods}, 4.5, (0.0, 2.0)).splitlines()
    assert lines[0] == "| N | method | at 4.50, the data's | at 2.50, 2 below |"
    assert [line.split(" | ")[1] for line in lines[2:]] == ["better", "good", "plain"]
    assert lines[3] == "| 8 | good | 2.000 ± 0.000 (at 5.000, its lowest) | 2.000 ± 0.000 (at 5.000, its lowest) |"
    assert lines[4] == "| 8 | plain | – | 1.000 ± 0.000 (at 3.000, its lowest) |"
