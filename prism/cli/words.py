"""Texts on the terminal, every token on the colour of its quality: when they are written, and while they are being written."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator

from rich.console import Group
from rich.live import Live
from rich.text import Text

from prism.cli.command import console
from prism.cli.palette import quality_style
from prism.data.writing import Writing
from prism.state import Step
from prism.writer import Progress

BLANK = " ·"
PACE = 0.05  # seconds a step stays on the screen at least


def painted(pieces: list[str], quality: list[float | None], given: list[bool] | None = None) -> Text:
    """The text with every token on the colour of its quality; given tokens are bold."""
    text = Text()
    for place, (piece, q) in enumerate(zip(pieces, quality, strict=True)):
        style = _colour(piece, q)
        text.append(piece, style=f"{style} bold".strip() if given and given[place] else style)
    return text


def _colour(piece: str, quality: float | None) -> str:
    return "" if quality is None or piece.isspace() else quality_style(quality)


def show_legend(*, watched: bool) -> None:
    """What the colours mean, where there are any: on a terminal."""
    if console.is_terminal:
        struck_out = " Struck out: it remasks it." if watched else ""
        console.print(f"[dim]Blue: the model is sure of a token. Red: it doubts it.{struck_out}[/dim]", soft_wrap=True)


def shown(steps: Iterable[Progress], writing: Writing, ends: tuple[int, ...]) -> Iterator[Progress]:
    """The same steps, each on the screen for a moment, every text in its place; it is cleared of them at last."""
    texts: dict[int, Text] = {}
    over: set[int] = set()
    with Live(console=console, auto_refresh=False, transient=True) as live:
        due = 0.0
        for progress in steps:
            if progress.step is not None:
                for row, number in enumerate(progress.numbers):
                    if number not in over:
                        texts[number] = frame(progress.step, row, writing, ends)
                over |= progress.over.keys()
                time.sleep(max(0.0, due - time.perf_counter()))
                live.update(Group(*(texts[number] for number in sorted(texts))), refresh=True)
                due = time.perf_counter() + PACE
            yield progress


def frame(step: Step, row: int, writing: Writing, ends: tuple[int, ...] = ()) -> Text:
    """A text as the step found it: masks are dots, given tokens bold, generated ones on the colour of their quality, and those
    the step takes back struck out. Dim is what stands behind one of `ends`, where the text will be cut."""
    state, text, cut = step.before, Text(), False
    tokens, frozen, taken = (part[row].tolist() for part in (state.tokens, state.frozen, step.edit.remask))
    judged = state.committed[row].tolist() if step.prediction.has_quality else [False] * len(tokens)
    quality = step.prediction.quality[row].tolist() if any(judged) else [None] * len(tokens)
    for place, (token, piece) in enumerate(zip(tokens, writing.pieces(tokens), strict=True)):
        if token == state.mask_id:
            text.append(BLANK, "dim")
        elif taken[place]:
            text.append(piece, "bold red strike")
        elif cut:
            text.append(piece, "dim")
        else:
            text.append(piece, "bold" if frozen[place] else _colour(piece, quality[place] if judged[place] else None))
        cut = cut or (token in ends and not frozen[place])
    return text
