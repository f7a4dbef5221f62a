"""Likelihood at equal diversity. Taking unlikely tokens back makes texts likelier and plainer, and so does a smaller nucleus;
two samplers are compared fairly where their texts are equally diverse, and few settings happen to be.

Whoever writes some texts with one setting and the others with a second has, on average, what lies on the line between the two.
So what a method can reach is the lower convex hull of its settings, and it can be asked for at any entropy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import hypot
from typing import TYPE_CHECKING, NamedTuple

from prism.recipes.reproduce.report import Result, table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Point = tuple[float, float]
BELOW = (0.0, 0.1, 0.3)
"""Nats below the data's entropy at which methods are compared."""
FRONTIER = (
    "The lines are what a method reaches by writing some texts with one setting and the others with another (on average every "
    "point between two settings can be had), the table what that is at the same entropy for all, in nats a token. Where a "
    "method was never tried so low, or is no likelier there, its cell names the higher entropy that its figure is of, its "
    "lowest or that of its likeliest setting: such a figure is no comparison at one entropy. A method that was tried with more "
    "settings has more luck among them."
)


class Reached(NamedTuple):
    """Nats a token, and half of a 95 % interval: by the settings' own intervals as if likelihood and entropy of a text had
    nothing to do with each other. In truth they rise together, so it is too wide rather than too narrow."""

    nll: float
    half: float
    instead: str = ""
    """Where it is not of the entropy that was asked for but of a higher one: of which, and why."""


def hull(rows: Sequence[Result]) -> list[Result]:
    """The settings that no mixture of others improves on, the least diverse first, from the likeliest one on."""
    kept: list[Result] = []
    for row in sorted(rows, key=_point):
        while len(kept) > 1 and not _turns_left(*map(_point, (kept[-2], kept[-1], row))):
            kept.pop()
        kept.append(row)
    return kept[kept.index(min(kept, key=lambda row: float(row["nll"]))) :]


def reached(rows: Sequence[Result], entropy: float) -> Reached | None:
    """The likeliest texts of at least this entropy that these settings, or two of them mixed, can write; None if none is so
    diverse."""
    line = hull(rows)
    if entropy > line[-1]["entropy"]:
        return None
    above = next(place for place, row in enumerate(line) if row["entropy"] >= entropy)
    if above == 0:
        likeliest = line[0]["entropy"]
        why = "its lowest" if likeliest == min(row["entropy"] for row in rows) else "its likeliest"
        instead = f"at {likeliest:.3f}, {why}" if likeliest > entropy else ""
        return Reached(line[0]["nll"], _half(line[0], "nll"), instead)
    plain, diverse = line[above - 1], line[above]
    slope = (diverse["nll"] - plain["nll"]) / (diverse["entropy"] - plain["entropy"])
    share = (entropy - plain["entropy"]) / (diverse["entropy"] - plain["entropy"])
    errors = [
        weight * part
        for row, weight in ((plain, 1 - share), (diverse, share))
        for part in (_half(row, "nll"), slope * _half(row, "entropy"))
    ]
    return Reached(plain["nll"] + share * (diverse["nll"] - plain["nll"]), hypot(*errors))


def told(found: Reached | None) -> str:
    """In a table."""
    if found is None:
        return "–"
    return f"{found.nll:.3f} ± {found.half:.3f}" + (f" ({found.instead})" if found.instead else "")


def frontier_table(
    by_steps: Mapping[int, Mapping[str, Sequence[Result]]], entropy: float, below: Sequence[float]
) -> str:
    """What every method reaches at the data's entropy and below it, of swept settings by method by steps; likeliest first."""
    lines = []
    for steps, methods in by_steps.items():
        found = {name: [reached(rows, entropy - less) for less in below] for name, rows in methods.items()}
        for name, some in sorted(found.items(), key=lambda one: [float("inf") if r is None else r.nll for r in one[1]]):
            lines.append([steps, name, *map(told, some)])
    at = [f"at {entropy - less:.2f}" + (f", {less:g} below" if less else ", the data's") for less in below]
    return table(["N", "method", *at], lines)


def draw_frontier(ax: Axes, rows: Sequence[Result], colour: str, label: str, name: str, marker: str = "o") -> None:
    """A method's settings as points, and the line it can reach; `name` is what they are shown by, likelihood or excess."""
    at = [row["entropy"] for row in rows]
    ax.plot(at, [row[name] for row in rows], marker, markersize=3.5, color=colour, label=label)
    line = hull(rows)
    ax.plot([row["entropy"] for row in line], [row[name] for row in line], "-", linewidth=0.7, color=colour)


def _point(row: Result) -> Point:
    return float(row["entropy"]), float(row["nll"])


def _turns_left(a: Point, b: Point, c: Point) -> bool:
    return (b[0] - a[0]) * (c[1] - a[1]) > (b[1] - a[1]) * (c[0] - a[0])


def _half(row: Result, name: str) -> float:
    low, high = row[f"{name}_interval"]
    return (float(high) - float(low)) / 2
