"""The colours of quality: red for doubtful, blue for sure, as in the paper's figure (and safe for most colour-blind eyes)."""

from __future__ import annotations

from itertools import pairwise

_STOPS = ((0.0, (202, 0, 32)), (0.5, (244, 165, 130)), (0.8, (146, 197, 222)), (1.0, (5, 113, 176)))


def quality_colour(quality: float) -> tuple[int, int, int]:
    """Red, green and blue, 0–255."""
    quality = min(max(quality, 0.0), 1.0)
    for (low, dark), (high, light) in pairwise(_STOPS):
        if quality <= high:
            share = (quality - low) / (high - low)
            red, green, blue = (round(a + share * (b - a)) for a, b in zip(dark, light, strict=True))
            return red, green, blue
    raise AssertionError("the last stop is 1")


def quality_style(quality: float) -> str:
    """A rich style: the colour as background, and whichever of black and white can be read on it."""
    red, green, blue = quality_colour(quality)
    ink = "black" if 0.299 * red + 0.587 * green + 0.114 * blue > 140 else "white"
    return f"{ink} on #{red:02x}{green:02x}{blue:02x}"
