from __future__ import annotations

import pytest
import torch
from scipy import stats

from prism.noise import Noise, Purpose


def test_known_values() -> None:
    """Pinned: a change here changes every recorded run. The reference is splitmix64 in plain integers."""

    def mix(x: int) -> int:
        x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        x = (x ^ (x >> 27)) * 0x94D049BB133111EB % 2**64
        return x ^ (x >> 31)

    def number(seed: int, *coordinates: int) -> float:
        state = mix(seed)
        for coordinate in coordinates:
            state = mix((state + (coordinate + 1) * 0x9E3779B97F4A7C15) % 2**64)
        return ((state >> 12) + 0.5) * 2.0**-52

    drawn = Noise.rows(7, 3, first=2).at(5).uniform(Purpose.TOKEN, 4)
    expected = [[number(7, row, 5, int(Purpose.TOKEN), place) for place in range(4)] for row in (2, 3, 4)]
    assert drawn.tolist() == expected


def test_a_number_depends_on_its_coordinates_alone() -> None:
    noise = Noise.rows(3, 6)
    steps = torch.tensor([4, 0, 9, 4, 1, 2])
    batch = noise.at(steps).uniform(Purpose.ORDER, 11)
    for row, step in enumerate(steps.tolist()):
        alone = Noise.rows(3, 1, first=row).at(step).uniform(Purpose.ORDER, 5)
        assert torch.equal(alone[0], batch[row, :5])


def test_coordinates_matter() -> None:
    noise = Noise.rows(0, 2)
    base = noise.uniform(Purpose.ORDER, 8)
    others = [
        Noise.rows(1, 2).uniform(Purpose.ORDER, 8),
        Noise.rows(0, 2, first=2).uniform(Purpose.ORDER, 8),
        noise.at(1).uniform(Purpose.ORDER, 8),
        noise.uniform(Purpose.TOKEN, 8),
        noise.replica(1).uniform(Purpose.ORDER, 8),
        noise.replica(2).uniform(Purpose.ORDER, 8),
    ]
    everything = torch.cat([base, *others]).flatten()
    assert len(everything.unique()) == len(everything)
    assert torch.equal(noise.replica(0).uniform(Purpose.ORDER, 8), base)


@pytest.mark.parametrize("axis", ["rows", "steps", "positions", "replicas"])
def test_uniform_and_uncorrelated(axis: str) -> None:
    n = 40_000
    if axis == "positions":
        u = Noise.rows(0, 1).uniform(Purpose.TOKEN, n)[0]
    elif axis == "rows":
        u = Noise.rows(0, n).uniform(Purpose.TOKEN, 1)[:, 0]
    elif axis == "steps":
        key = Noise.rows(0, 1).keys.expand(n)
        u = Noise(key, torch.arange(n)).uniform(Purpose.TOKEN, 1)[:, 0]
    else:
        u = torch.cat([Noise.rows(0, 400).replica(j).uniform(Purpose.TOKEN, 1)[:, 0] for j in range(100)])
    assert stats.kstest(u.numpy(), "uniform").pvalue > 1e-3
    for lag in (1, 2, 7):
        correlation = torch.corrcoef(torch.stack([u[:-lag], u[lag:]]))[0, 1]
        assert abs(float(correlation)) < 4 / n**0.5


def test_never_zero_never_one() -> None:
    u = Noise.rows(0, 100).uniform(Purpose.TOKEN, 1000)
    assert u.dtype == torch.float64
    assert 0 < u.min() < u.max() < 1


def test_gumbel() -> None:
    g = Noise.rows(0, 1).gumbel(Purpose.PERTURBATION, 40_000)[0]
    assert stats.kstest(g.numpy(), "gumbel_r").pvalue > 1e-3
