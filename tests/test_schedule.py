from __future__ import annotations

import math

import pytest
import torch

from prism.schedule import Budget, Cosine, Linear, Phase, Plateau, Schedule, even_times

ALL_SCHEDULES = (Linear(), Cosine(), Plateau(), Plateau(t_on=0.8, t_off=0.2, alpha_on=0.5))


def budget(schedule: Schedule, length: int, steps: int, step: int) -> Budget:
    times = even_times(steps)
    t, s = times[step : step + 1], times[step + 1 : step + 2]
    counts = (torch.tensor([n]) for n in (step, steps, length))
    return Budget(t, s, schedule.alpha(t), schedule.alpha(s), *counts)


@pytest.mark.parametrize("schedule", ALL_SCHEDULES, ids=str)
def test_from_nothing_to_everything(schedule: Schedule) -> None:
    t = torch.linspace(1, 0, 1001, dtype=torch.float64)
    alpha = schedule.alpha(t)
    assert abs(alpha[0]) < 1e-12
    assert alpha[-1] == 1
    assert (alpha.diff() >= -1e-12).all()


def test_formulas() -> None:
    t = torch.tensor([0.9, 0.55, 0.3, 0.051, 0.05, 0.01], dtype=torch.float64)
    r = 1 - t
    torch.testing.assert_close(Linear().alpha(t), r)
    torch.testing.assert_close(1 - Cosine().alpha(t), (math.pi * r / 2).cos())
    loop = [0.1 * 0.9 / 0.45, 0.9, 0.9, 0.9, 0.9, 1 - 0.01 * 0.1 / 0.05]
    torch.testing.assert_close(Plateau(t_on=0.55, t_off=0.05, alpha_on=0.9).alpha(t), torch.tensor(loop).double())


@pytest.mark.parametrize("length", [1, 7, 51, 100, 1023])
@pytest.mark.parametrize("steps", [1, 3, 13, 51, 64, 128])
def test_target_on_the_linear_schedule(length: int, steps: int) -> None:
    """⌈L(l + 1)/N⌉ in whole numbers: 51 · 17/51 is 17, not 18."""
    for step in range(steps):
        now = budget(Linear(), length, steps, step)
        assert int(now.target) == -(-length * (step + 1) // steps)
        assert int(now.room) == length - int(now.target)


@pytest.mark.parametrize("schedule", ALL_SCHEDULES, ids=str)
def test_sigma_max_and_commit_rate(schedule: Schedule) -> None:
    """With any σ up to σ_max both probabilities of a ReMDM step stay in 0..1 and the marginal is α_s (Theorem 4.1)."""
    for step in range(20):
        now = budget(schedule, 10, 20, step)
        assert 0 <= now.sigma_max <= 1
        for share in (0.0, 0.3, 1.0):
            sigma = share * now.sigma_max
            rate = now.commit_rate + sigma * now.alpha_t / (1 - now.alpha_t)
            assert -1e-12 <= rate <= 1 + 1e-9
            torch.testing.assert_close(now.alpha_t * (1 - sigma) + (1 - now.alpha_t) * rate, now.alpha_s)
    assert budget(schedule, 10, 20, 19).commit_rate == 1
    assert budget(schedule, 10, 20, 0).sigma_max == 1


@pytest.mark.parametrize(("steps", "on", "off"), [(64, 0.5, 1.0), (51, 0.5, 0.9), (10, 0.3, 0.7), (7, 0.0, 0.0)])
def test_phase(steps: int, on: float, off: float) -> None:
    active = [bool(Phase(on, off).active(budget(Linear(), 10, steps, step))) for step in range(steps)]
    first, last = math.ceil(round(on * steps, 6)), math.ceil(round(off * steps, 6))
    assert active == [first <= step < last for step in range(steps)]


@pytest.mark.parametrize(
    "bad",
    [
        lambda: Phase(on=0.6, off=0.5),
        lambda: Phase(on=-0.1),
        lambda: Phase(off=1.1),
        lambda: Plateau(t_on=0.1, t_off=0.2),
        lambda: Plateau(alpha_on=1.0),
    ],
)
def test_bad_values(bad: object) -> None:
    with pytest.raises(ValueError, match="0 <"):
        bad()  # type: ignore[operator]
