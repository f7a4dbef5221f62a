"""The colours of quality: red for doubtful, blue for sure, as in the paper's figure (and safe for most colour-blind eyes)."""

from __future__ import annotations

from itertools import pairwise

Colour = tuple[int, int, int]
"""Red, green and blue, 0–255."""

_STOPS = ((0.0, (202, 0, 32)), (0.5, (244, 165, 130)), (0.8, (146, 197, 222)), (1.0, (5, 113, 176)))


def quality_colour(quality: float) -> Colour:
    quality = min(max(quality, 0.0), 1.0)
    for (low, below), (high, above) in pairwise(_STOPS):
        if quality <= high:
            return blend(below, above, (quality - low) / (high - low))
    raise AssertionError("the last stop is 1")


def blend(start: Colour, end: Colour, share: float) -> Colour:
    """The colour that lies `share` of the way from `start` to `end`."""
    red, green, blue = (round(a + share * (b - a)) for a, b in zip(start, end, strict=True))
    return red, green, blue


def ink_on(colour: Colour) -> str:
    """Whichever of black and white can be read on that colour."""
    red, green, blue = colour
    return "black" if 0.299 * red + 0.587 * green + 0.114 * blue > 140 else "white"


def hexadecimal(colour: Colour) -> str:
    return "#{:02x}{:02x}{:02x}".format(*colour)


def quality_style(quality: float) -> str:
    """A rich style: the colour as background, readable ink on it."""
    colour = quality_colour(quality)
    return f"{ink_on(colour)} on {hexadecimal(colour)}"
