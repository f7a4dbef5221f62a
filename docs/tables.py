"""Puts the tables of the README and the pages of docs between their marks, from `results/` and nothing else. Run:
python -m docs.tables"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from prism.recipes.reproduce.functions_report import gain, share
from prism.recipes.reproduce.report import Result, found_in, pick, table, with_interval
from prism.recipes.reproduce.stories_report import best_rows
from prism.recipes.reproduce.strengths import best_of
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
    headings = [
        "solved, %",
        "paper's puzzles, random order",
        "ours, random order",
        "paper's, margin order",
        "ours, margin order",
        "remasks",
    ]
    return table(headings, lines)


def gains(results: Path) -> str:
    """What PRISM gives in every experiment that was run at full size, beside no remasking and the best method that needs no
    training."""
    texts = results / "text"
    lines = [
        *_sudoku_gains(results / "sudoku"),
        *_stories_gains(texts / "known-truth"),
        *_wikipedia_gains(texts / "wikipedia"),
        *_functions_gains(results / "functions" / "full"),
    ]
    return table(["", "N", "vanilla", "best training-free rival", "PRISM"], lines)


def _sudoku_gains(results: Path) -> list[list[str]]:
    """PRISM and the methods that take a count with the paper's K."""
    rows = pick(found_in(results)["methods_51"]["rows"], weights="prism")
    lines = []
    for puzzles, whose in (("paper", "the paper's puzzles"), ("own", "our puzzles")):
        for order in ("random", "margin"):
            here = {row["method"]: row for row in pick(rows, puzzles=puzzles, order=order)}
            rivals = [row for name, row in here.items() if not name.startswith(("vanilla", "prism"))]
            best = max(rivals, key=lambda row: float(row["success_rate"]))
            shown = [percent(here["vanilla"]), f"{percent(best)} `{_plain(best)}`", percent(here["prism K=4"])]
            lines.append([f"Sudoku, {whose}, {order} order: solved, %", str(best["steps"]), *shown])
    return lines


def _stories_gains(results: Path) -> list[list[str]]:
    """The best again with new texts; vanilla, which was not among them, with those its setting was chosen by."""
    found, lines = found_in(results), []
    for steps in (16, 32):
        raced, swept = found[f"race_{steps}"], best_rows(found[f"sweep_{steps}"], trained=False)
        (vanilla,), (prism,) = pick(swept, method="vanilla"), pick(raced["rows"], method="prism")
        rivals = [row for row in raced["rows"] if row["weights"] == "prism" and row is not prism]
        shown = _shown("excess", ".3f", vanilla, best_of(rivals, raced["truth"]["entropy"]), prism)
        lines.append(["stories: excess over the truth, nats per token (lower is better)", str(steps), *shown])
    return lines


def _wikipedia_gains(results: Path) -> list[list[str]]:
    found, lines = found_in(results), []
    for steps in (16, 32):
        rows = {row["method"]: row for row in found[f"methods_{steps}"]["rows"]}
        rivals = [row for name, row in rows.items() if name not in ("vanilla", "prism")]
        best = best_of(rivals, found["data"]["entropy"])
        shown = _shown("perplexity", ".1f", rows["vanilla"], best, rows["prism"])
        lines.append(["Wikipedia: perplexity (lower is better)", str(steps), *shown])
    return lines


def _functions_gains(results: Path) -> list[list[str]]:
    """In the order in which bodies have more than a line."""
    found, lines = found_in(results), []
    for steps in (8, 16, 32):
        rows = {_plain(row): row for row in pick(found[f"methods_{steps}"]["rows"], order="random")}
        rivals = [row for name, row in rows.items() if name not in ("vanilla", "prism")]
        best = max(rivals, key=lambda row: float(row["parses"]))
        shown = [share(rows["vanilla"], "parses"), f"{share(best, 'parses')} `{_plain(best)}`"]
        lines.append(["Python functions, random order: parses, %", str(steps), *shown, share(rows["prism"], "parses")])
    return lines


def _shown(name: str, decimals: str, vanilla: Result, rival: Result, prism: Result) -> list[str]:
    figures = [with_interval(row, name, decimals) for row in (vanilla, rival, prism)]
    return [figures[0], f"{figures[1]} `{_plain(rival)}`", figures[2]]


def _plain(row: Result) -> str:
    """The method's name on the command line."""
    return str(row["method"]).split()[0]


def speed(results: Path) -> str:
    """The two tables of `results/speed` in two sentences."""
    found = found_in(results / "speed")
    sampling, training = (
        [result for name, result in found.items() if name.startswith(kind)] for kind in ("sampling", "training")
    )
    over = _range([100 * (result["prism_over_vanilla"] - 1) for result in sampling], "+.1f")
    block = _range([100 * (result["block_head_over_vanilla"] - 1) for result in sampling], "+.1f")
    bare = _range([result["over_bare"]["prism"] for result in sampling], ".2f")
    times, learning = (_range([one["published_over_ours"] for one in some], ".1f") for some in (sampling, training))
    return (
        "A step costs a forward pass of the backbone and a few per cent. On one H200 in bfloat16 (`python -m benchmarks`, with "
        f"`--small` on a CPU) a step of PRISM\ntakes {over} % longer than vanilla's ({block} % with the block head) "
        f"and {bare} times as long as the bare forward pass; the straightforward\npublished way takes {times} times as long to "
        f"sample and {learning} times to train: [results/speed](results/speed/README.md)."
    )


def _range(figures: Sequence[float], decimals: str) -> str:
    return f"{min(figures):{decimals}} to {max(figures):{decimals}}"


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


def wikipedia(results: Path) -> str:
    """Perplexity and entropy of PRISM, its nearest rival and no remasking."""
    found, methods = found_in(results / "text" / "wikipedia"), ("prism", "p2-self", "vanilla")
    lines = []
    for steps in (16, 32, 64):
        rows = {row["method"]: row for row in found[f"methods_{steps}"]["rows"]}
        told = (f"{with_interval(rows[name], 'perplexity', '.1f')}, {rows[name]['entropy']:.3f}" for name in methods)
        lines.append([steps, *told])
    return table(["N", *(f"`{name}`" for name in methods)], lines)


def functions(scale: str, results: Path) -> str:
    """Bodies that parse in random order, and by how many points PRISM has more of them, at the two lowest step counts."""
    found = found_in(results / "functions" / scale)
    columns = []
    for steps in (8, 16):
        rows = pick(found[f"methods_{steps}"]["rows"], order="random")
        leads = pick(found["rivals"]["rows"], order="random", steps=steps, weights="the same")
        lead_over = {row["method"]: gain(row, "gain_parses") for row in leads}
        columns.append({_plain(row): (share(row, "parses"), lead_over.get(row["method"], "")) for row in rows})
    lines = [[f"`{method}`", *columns[0][method], *columns[1][method]] for method in columns[0]]
    return table(
        ["", *(f"N = {steps}{more}" for steps in (8, 16) for more in ("", ": PRISM minus method, points"))], lines
    )


def caches(results: Path) -> str:
    """What every kind of cache costs in sound bodies, at the scale at which it was measured."""
    rows = found_in(results / "functions" / "small")["caches"]["rows"]
    policies, kinds = (list(dict.fromkeys(row[name] for row in rows)) for name in ("policy", "cache"))
    lines = []
    for kind in kinds:
        here = [row for policy in policies for row in pick(rows, policy=policy, cache=kind)]
        lines.append([kind, *(part for row in here for part in (share(row, "sound"), gain(row, "gain")))])
    lines[0][2::2] = [""] * len(policies)  # beside itself
    return table(["cache", *(head for policy in policies for head in (f"`{policy}`", "minus no cache, points"))], lines)


TABLES: dict[str, Callable[[Path], str]] = {
    "gains": gains,
    "sudoku": sudoku,
    "speed": speed,
    "known_truth": known_truth,
    "wikipedia": wikipedia,
    "functions": partial(functions, "full"),
    "functions_small": partial(functions, "small"),
    "caches": caches,
}


def pages(root: Path = ROOT) -> list[Path]:
    """Every page that has a table of ours."""
    every = [root / "README.md", *sorted((root / "docs").glob("*.md"))]
    return [page for page in every if MARKED.search(page.read_text(encoding="utf-8"))]


def filled(page: str, results: Path) -> str:
    """The page with every marked table made anew."""
    return MARKED.sub(lambda mark: f"{mark[1]}{TABLES[mark[2]](results)}\n{mark[3]}", page)


if __name__ == "__main__":
    for page in pages():
        page.write_text(filled(page.read_text(encoding="utf-8"), ROOT / "results"), encoding="utf-8")
