"""What the pages about studies are made of: figures and tables, from the result files and nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Result = dict[str, Any]
Section = Callable[[dict[str, Result], Path], str]
"""Of a page: from the results by name and the folder its figures go to; nothing where its result is missing."""
STYLE = {
    "vanilla": ("0.45", "--"),
    "random": ("tab:green", "-"),
    "remdm-cap": ("tab:olive", "-"),
    "remdm-loop": ("tab:olive", ":"),
    "remdm-conf": ("tab:cyan", "-"),
    "remdm-conf-topk": ("tab:blue", "-"),
    "p2-self": ("tab:purple", "-"),
    "prism": ("tab:red", "-"),
    "prism-likelihood": ("tab:orange", "-"),
    "prism-entropy": ("tab:orange", ":"),
    "mdlm": ("0.2", ":"),
    "remdm-rescale": ("tab:olive", "--"),
    "forward-backward": ("tab:brown", "-"),
    "dfm": ("tab:pink", "-"),
    "p2-joint": ("tab:purple", ":"),
}
"""Colour and line of every method, the same in all figures."""


def write_page(results: Path, about: str, sections: Sequence[Section]) -> Path:
    """`results/README.md`: what it is about, and what the sections find in `results/*.json`."""
    found = read_results(results)
    page, parts = results / "README.md", [about, *(section(found, results) for section in sections)]
    page.write_text("\n\n".join(filter(None, parts)) + "\n", encoding="utf-8")
    return page


def read_results(results: Path) -> dict[str, Result]:
    """All results of a folder by name."""
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(results.glob("*.json"))}


def table(headings: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join(f"| {' | '.join(str(cell) for cell in line)} |" for line in lines)


def pick(rows: Sequence[Result], **wanted: object) -> list[Result]:
    return [row for row in rows if all(row[name] == value for name, value in wanted.items())]


class Figure:
    """Panels side by side, saved as SVG without a date so that the same results give the same file."""

    def __init__(self, path: Path, panels: int, size: tuple[float, float] | None = None) -> None:
        import matplotlib

        matplotlib.use("agg")
        from matplotlib import pyplot

        self.path = path
        with matplotlib.rc_context({"svg.hashsalt": "prism"}):
            self.figure, axes = pyplot.subplots(
                1, panels, figsize=size or (4.2 * panels, 3.4), squeeze=False, layout="constrained"
            )
        self.axes: list[Axes] = list(axes[0])

    def __enter__(self) -> list[Axes]:
        return self.axes

    def __exit__(self, kind: object, *_: object) -> None:
        import matplotlib
        from matplotlib import pyplot

        if kind is None:
            with matplotlib.rc_context({"svg.hashsalt": "prism"}):
                self.figure.savefig(self.path, metadata={"Date": None})
        pyplot.close(self.figure)
