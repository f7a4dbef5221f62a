"""A Sudoku board on the terminal: clues bold, generated digits on the colour of their quality, doubted cells crossed out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Integer
from rich.text import Text

from prism.cli.palette import quality_style


@dataclass(frozen=True)
class BoardView:
    """One board at one moment."""

    digits: Integer[np.ndarray, "81"]
    clues: Bool[np.ndarray, "81"]
    quality: Float[np.ndarray, "81"] | None = None
    taken_back: Bool[np.ndarray, "81"] | None = None

    def text(self) -> Text:
        """Nine lines, boxes ruled off."""
        text = Text()
        for row in range(9):
            if row in (3, 6):
                text.append("──────┼───────┼──────\n", style="dim")
            for column in range(9):
                if column in (3, 6):
                    text.append("│ ", style="dim")
                cell = 9 * row + column
                text.append(self._symbol(cell), style=self._style(cell))
                text.append(" " if column < 8 else "\n")
        return text

    def _symbol(self, cell: int) -> str:
        if self.taken_back is not None and self.taken_back[cell]:
            return "✗"
        return str(self.digits[cell]) if self.digits[cell] else "·"

    def _style(self, cell: int) -> str:
        if self.taken_back is not None and self.taken_back[cell]:
            return "bold red"
        if self.clues[cell]:
            return "bold"
        if not self.digits[cell] or self.quality is None:
            return "dim"
        return quality_style(float(self.quality[cell]))
