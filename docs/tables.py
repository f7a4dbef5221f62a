"""Puts the tables of the README between their marks, from `results/` and nothing else. Run: python -m docs.tables"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from prism.recipes.reproduce.report import table
from prism.recipes.reproduce.sudoku_report import percent

ROOT = Path(__file__).resolve().parent.parent
MARKED = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end of table -->)", re.DOTALL)


def sudoku(results: Path) -> str:
    """Every method at 51 steps on both sets of puzzles, on the same weights."""
    rows = json.loads((results / "sudoku" / "methods_51.json").read_text(encoding="utf-8"))["rows"]
    chosen = [row for row in rows if row["weights"] == "prism"]
    kinds = [("paper", "random"), ("own", "random"), ("paper", "margin"), ("own", "margin")]
    by_method: dict[str, dict[tuple[str, str], Any]] = {}
    for row in chosen:
        by_method.setdefault(row["method"], {})[row["puzzles"], row["order"]] = row
    lines = [
        [f"`{method}`", *(percent(found[kind]) for kind in kinds), f"{found['paper', 'random']['remasks']:.0f}"]
        for method, found in by_method.items()
    ]
    headings = ["solved, %", "paper's puzzles", "our puzzles", "paper's, margin order", "ours, margin order", "remasks"]
    return table(headings, lines)


def speed(results: Path) -> str:
    """Sampling and training against the bare forward pass and against the published way."""
    from benchmarks.report import sampling_table, training_table

    files = sorted((results / "speed").glob("*.json"))
    found = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in files}
    return f"{sampling_table(found)}\n\n{training_table(found)}"


TABLES = {"sudoku": sudoku, "speed": speed}


def filled(page: str, results: Path) -> str:
    """The page with every marked table made anew."""
    return MARKED.sub(lambda mark: f"{mark[1]}{TABLES[mark[2]](results)}\n{mark[3]}", page)


if __name__ == "__main__":
    readme = ROOT / "README.md"
    readme.write_text(filled(readme.read_text(encoding="utf-8"), ROOT / "results"), encoding="utf-8")
