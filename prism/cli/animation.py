"""Scenes as something to show around: an animated GIF (Pillow) and a page that plays them, alone in one file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Integer
from PIL import Image, ImageDraw, ImageFont

from prism.cli.board import SYMBOLS, Frame, Scene
from prism.cli.palette import Colour, blend, hexadecimal, ink_on, quality_colour

PAGE = Path(__file__).with_name("animation.html")
STEP, OPENING, VERDICT = 120, 800, 2000  # milliseconds a scene stays: each step, the bare puzzle, the finished boards


def _milliseconds(scene: Scene) -> int:
    started = any(frame.step for frame in scene.boards.values())
    return VERDICT if scene.over else STEP if started else OPENING


# ── the page ────────────────────────────────────────────────────────────────────────────────────────────────────────


def page(scenes: Sequence[Scene]) -> str:
    """A page that needs nothing but itself; its data stand in the element `run` as JSON."""
    content = {
        "ways": list(scenes[0].boards),
        "puzzles": list({scene.puzzle: _puzzle(scene) for scene in scenes}.values()),
        "colours": [[hexadecimal(colour), ink_on(colour)] for colour in _PERCENT],
        "scenes": [
            {
                "puzzle": scene.puzzle,
                "finished": scene.finished,
                "solved": list(scene.solved.values()),
                "milliseconds": _milliseconds(scene),
                "boards": [_board(frame) for frame in scene.boards.values()],
            }
            for scene in scenes
        ],
    }
    data = json.dumps(content, separators=(",", ":")).replace("</", "<\\/")
    return PAGE.read_text(encoding="utf-8").replace("{{run}}", data)


_PERCENT = [quality_colour(percent / 100) for percent in range(101)]


def _puzzle(scene: Scene) -> str:
    frame = next(iter(scene.boards.values()))
    return _text(frame.digits * frame.clues)


def _text(digits: Integer[np.ndarray, "81"]) -> str:
    return "".join(SYMBOLS[digit] for digit in digits)


def _board(frame: Frame) -> dict[str, Any]:
    """Cells as 81 characters; quality in percent, by cell, where there is any."""
    judged = np.flatnonzero(~np.isnan(frame.quality))
    return {
        "digits": _text(frame.digits),
        "taken_back": _text(frame.taken_back),
        "clashing": np.flatnonzero(frame.clashing).tolist(),
        "quality": {int(cell): round(100 * float(frame.quality[cell])) for cell in judged},
        "step": frame.step,
        "remasks": frame.remasks,
        "verdict": frame.verdict,
    }


# ── the GIF ─────────────────────────────────────────────────────────────────────────────────────────────────────────

# Lengths are in pixels of a canvas twice as large as the picture: halved at the end, letters and corners come out smooth.
ZOOM, CELL, GAP, BOX_GAP, MARGIN, BETWEEN = 2, 68, 4, 12, 48, 72
BOARD = 9 * CELL + 6 * GAP + 2 * BOX_GAP
TITLE, TOP = 40, 116
STATUS = TOP + BOARD + 28
FOOT = STATUS + 84
WIDTH, HEIGHT = 2 * (MARGIN + BOARD) + BETWEEN, FOOT + 72

PAPER, INK, FAINT = (255, 255, 255), (28, 30, 36), (110, 116, 128)
BLANK, CLUE = (240, 242, 245), (217, 220, 227)
RED, PALE_RED, GREEN = (202, 0, 32), (253, 228, 228), (16, 124, 65)
SHADES = 20  # of quality; more would hardly be seen and make the file larger


def gif(scenes: Sequence[Scene]) -> bytes:
    """An animation that repeats for ever."""
    palette = _palette()
    pictures = [_picture(scene).quantize(palette=palette, dither=Image.Dither.NONE) for scene in scenes]
    file = BytesIO()
    pictures[0].save(
        file,
        format="GIF",
        save_all=True,
        append_images=pictures[1:],
        duration=[_milliseconds(scene) for scene in scenes],
        loop=0,
        disposal=1,  # the last picture stays,
        optimize=True,  # so only what changes is stored
    )
    return file.getvalue()


def _picture(scene: Scene) -> Image.Image:
    picture = Image.new("RGB", (WIDTH, HEIGHT), PAPER)
    draw = ImageDraw.Draw(picture)
    for way, (name, frame) in enumerate(scene.boards.items()):
        left = MARGIN + way * (BOARD + BETWEEN)
        draw.text((left + BOARD / 2, TITLE), name, INK, _font(42), anchor="mt")
        if frame.verdict is not None:
            edge = (left - 14, TOP - 14, left + BOARD + 13, TOP + BOARD + 13)
            draw.rounded_rectangle(edge, 18, outline=GREEN if frame.verdict else RED, width=6)
        for cell in range(81):
            row, column = divmod(cell, 9)
            picture.paste(_tile(*_look(frame, cell)), (left + _offset(column), TOP + _offset(row)))
        draw.text((left, STATUS), f"step {frame.step}", FAINT, _font(32))
        draw.text((left + BOARD, STATUS), f"{frame.remasks} taken back", FAINT, _font(32), anchor="ra")
        if frame.verdict is not None:
            word, colour = ("solved", GREEN) if frame.verdict else ("wrong", RED)
            draw.text((left + BOARD / 2, STATUS), word, colour, _font(36), anchor="ma", stroke_width=1)
    _draw_tally(draw, scene)
    return picture.reduce(ZOOM)


def _draw_tally(draw: ImageDraw.ImageDraw, scene: Scene) -> None:
    """The last line: which puzzle, what each way has solved so far, what the colours mean."""
    draw.line((MARGIN, FOOT - 18, WIDTH - MARGIN, FOOT - 18), CLUE, 2)
    draw.text((MARGIN, FOOT), f"puzzle {scene.puzzle} of {scene.puzzles}", FAINT, _font(32))
    without, with_ = scene.solved.values()
    counts = f"solved: without {without} of {scene.finished}  /  with {with_} of {scene.finished}"
    draw.text((WIDTH / 2 - 100, FOOT), counts, INK, _font(36), anchor="ma")
    draw.text((WIDTH - MARGIN, FOOT), "sure", FAINT, _font(32), anchor="ra")
    right = WIDTH - MARGIN - 80
    for shade in range(SHADES + 1):
        left = right - 8 * (SHADES - shade)
        draw.rectangle((left - 8, FOOT + 6, left - 1, FOOT + 31), quality_colour(shade / SHADES))
    draw.text((right - 8 * SHADES - 22, FOOT), "doubtful", FAINT, _font(32), anchor="ra")


def _offset(line: int) -> int:
    """Where a row or column begins; boxes stand a little apart."""
    return line * (CELL + GAP) + line // 3 * (BOX_GAP - GAP)


def _look(frame: Frame, cell: int) -> tuple[str, Colour, Colour, str]:
    """How a cell is drawn: its symbol, its ground, its ink, and what is special about it."""
    symbol, quality = SYMBOLS[frame.digits[cell]], frame.quality[cell]
    if frame.taken_back[cell]:
        return SYMBOLS[frame.taken_back[cell]], PALE_RED, RED, "struck"
    if frame.clues[cell]:
        return symbol, CLUE, INK, "bold"
    if not frame.digits[cell]:
        return "", BLANK, INK, ""
    if np.isnan(quality):
        return symbol, PAPER, INK, "framed"
    ground = quality_colour(round(SHADES * quality) / SHADES)
    return symbol, ground, INK if ink_on(ground) == "black" else PAPER, "ringed" if frame.clashing[cell] else ""


@cache
def _tile(symbol: str, ground: Colour, ink: Colour, special: str) -> Image.Image:
    tile = Image.new("RGB", (CELL, CELL), PAPER)
    draw = ImageDraw.Draw(tile)
    edge = {"struck": RED, "framed": CLUE}.get(special, ground)
    draw.rounded_rectangle((0, 0, CELL - 1, CELL - 1), 10, fill=ground, outline=edge, width=3)
    draw.text((CELL / 2, CELL / 2), symbol, ink, _font(46), anchor="mm", stroke_width=2 if special == "bold" else 0)
    if special == "struck":
        draw.line((12, CELL - 13, CELL - 13, 12), RED, 5)
    if special == "ringed":
        draw.rounded_rectangle((0, 0, CELL - 1, CELL - 1), 10, outline=RED, width=7)
        draw.rounded_rectangle((7, 7, CELL - 8, CELL - 8), 6, outline=PAPER, width=3)
    return tile


@cache
def _font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size)  # comes with Pillow


def _palette() -> Image.Image:
    """Every colour that is used, and the shades between ink and ground that smooth letters and corners need."""
    grounds = [quality_colour(shade / SHADES) for shade in range(SHADES + 1)]
    pairs = [(PAPER, ink) for ink in (INK, FAINT, RED, GREEN, CLUE)] + [(CLUE, INK), (PALE_RED, RED)]
    pairs += [(ground, INK if ink_on(ground) == "black" else PAPER) for ground in grounds]
    pairs += [(ground, PAPER) for ground in grounds if ink_on(ground) == "black"]
    blends = [blend(*pair, share) for pair in pairs for share in (0.0, 0.25, 0.5, 0.75, 1.0)]
    colours = list(dict.fromkeys([BLANK, *blends]))
    assert len(colours) < 256, "one is kept free for Pillow to mark what did not change"
    image = Image.new("P", (1, 1))
    image.putpalette([channel for colour in colours for channel in colour])
    return image
