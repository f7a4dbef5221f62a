"""Puts the tables of the README between their marks, from `results/` and nothing else. Run: python -m docs.tables"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from prism.recipes.reproduce.report import found_in, table, with_interval
from prism.recipes.reproduce.stories_report import best_rows
from prism.recipes.reproduce.sudoku_report import percent
from prism.recipes.reproduce.texts_report import MAUVES, with_mauve

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


def known_truth(results: Path) -> str:
    """Every method's best setting at the two lowest step counts, the likeliest first."""
    found = found_in(results / "text" / "known-truth")
    columns = []
    for steps in (16, 32):
        rows = with_mauve(found, best_rows(found[f"sweep_{steps}"], trained=False))
        columns.append({row["method"]: row for row in sorted(rows, key=lambda row: row["nll"])})
    names = {"excess": "excess", "entropy": "entropy", **MAUVES}
    cells = {name: title for name, title in names.items() if name in columns[0]["prism"]}
    lines = [
        [f"`{method}`", *(with_interval(column[method], name) for column in columns for name in cells)]
        for method in columns[0]
    ]
    truth = {**found["sweep_16"]["truth"], **found["mauve"]["truth"]}
    lines.append(["*the truth*", *["0", *(with_interval(truth, name) for name in cells if name != "excess")] * 2])
    return table(["", *(f"N = {steps}: {title}" for steps in (16, 32) for title in cells.values())], lines)


TABLES = {"sudoku": sudoku, "speed": speed, "known_truth": known_truth}


def filled(page: str, results: Path) -> str:
    """The page with every marked table made anew."""
    return MARKED.sub(lambda mark: f"{mark[1]}{TABLES[mark[2]](results)}\n{mark[3]}", page)


if __name__ == "__main__":
    readme = ROOT / "README.md"
    readme.write_text(filled(readme.read_text(encoding="utf-8"), ROOT / "results"), encoding="utf-8")
