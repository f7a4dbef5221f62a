"""The OpenWebText experiment to look at and to read: our figures beside the paper's, from the result files and nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from prism.recipes.reproduce.owt import ROWS, TABLE
from prism.recipes.reproduce.report import STYLE, Figure, Result, table, with_interval, write_page

STEPS = (64, 128, 256, 512, 1024)
PUBLISHED: dict[str, dict[str, tuple[float, ...]]] = {
    "mdlm": {
        "mauve": (0.011, 0.015, 0.023, 0.031, 0.042),
        "perplexity": (72.1, 61.5, 55.8, 53.0, 51.3),
        "entropy": (5.55, 5.52, 5.49, 5.48, 5.46),
    },
    "remdm-conf": {
        "mauve": (0.009, 0.015, 0.022, 0.037, 0.051),
        "perplexity": (90.3, 74.2, 66.0, 52.5, 48.0),
        "entropy": (5.60, 5.57, 5.54, 5.49, 5.44),
    },
    "remdm": {
        "mauve": (0.016, 0.057, 0.216, 0.350, 0.403),
        "perplexity": (60.4, 42.5, 30.5, 21.1, 28.6),
        "entropy": (5.51, 5.43, 5.34, 5.21, 5.38),
    },
    "prism": {
        "mauve": (0.132, 0.278, 0.419, 0.434, 0.510),
        "perplexity": (29.4, 23.9, 21.6, 20.6, 20.2),
        "entropy": (5.37, 5.32, 5.29, 5.27, 5.25),
    },
}
"""PRISM, Appendix D.1, the table of all results on OpenWebText, at `STEPS` forward passes."""
METRICS = {"mauve": ("MAUVE", ".3f"), "perplexity": ("Gen PPL", ".1f"), "entropy": ("entropy", ".2f")}
"""What the table calls them, and its decimals."""
HEADINGS = ["N", "method", "weights", *(part for name, _ in METRICS.values() for part in (name, "paper's")), "remasks"]


def write_report(results: Path) -> Path:
    """`results/*.json` drawn and tabled in `results/README.md`, with the figure beside it."""
    about = (
        "# OpenWebText: results\n\nMade by `prism reproduce owt` from the JSON files beside this page; every one of them holds "
        "the record of its run. Our figures have 95 % intervals, over samples; the paper's are those of its Appendix D.1 and "
        "stand beside the weights they come from, as far as it says: MDLM and ReMDM are quoted there from ReMDM's paper, on "
        "weights nobody tuned."
    )
    return write_page(results, about, (_training, _table, _figure))


def rows_of(found: Mapping[str, Result]) -> list[Result]:
    """All that is known of every row that was judged, the fewest steps first, in the paper's order."""
    scores = {(row["row"], row["steps"]): row for result in found.values() for row in result.get("rows", [])}
    judged = (result for result in found.values() if "row" in result)
    ordered = sorted(judged, key=lambda row: (row["steps"], list(ROWS).index(row["row"])))
    return [row | scores.get((row["row"], row["steps"]), {}) for row in ordered]


def published(row: Result, metric: str) -> float | None:
    """The paper's figure for the same method, weights and steps, if it has one."""
    if row["row"] not in PUBLISHED or row["steps"] not in STEPS:
        return None
    return PUBLISHED[row["row"]][metric][STEPS.index(row["steps"])]


def cell(row: Result | None, metric: str) -> str:
    """Ours, the paper's in brackets, and our interval below."""
    if row is None or metric not in row:
        return "–"
    decimals, (low, high) = METRICS[metric][1], row[f"{metric}_interval"]
    papers = published(row, metric)
    told = "" if papers is None else f" ({papers:{decimals}})"
    return f"{row[metric]:{decimals}}{told}\n{low:{decimals}}–{high:{decimals}}"


def line(row: Result) -> list[str]:
    """A row of the page's table, under `HEADINGS`."""
    cells = [str(row["steps"]), _method(row), row["weights"]]
    for metric, (_, decimals) in METRICS.items():
        cells += [_ours(row, metric, decimals), _papers(row, metric, decimals)]
    return [*cells, f"{row['remasks']:.0f}"]


def _method(row: Result) -> str:
    """ReMDM is another method at other numbers of steps."""
    if row["method"] != "ReMDM":
        return row["method"]
    return f"ReMDM ({row['sampling']['policy'].removeprefix('remdm-')}, η={row['sampling']['eta']:g})"


def _ours(row: Result, metric: str, decimals: str) -> str:
    return with_interval(row, metric, decimals) if metric in row else "–"


def _papers(row: Result, metric: str, decimals: str) -> str:
    figure = published(row, metric)
    return "–" if figure is None else f"{figure:{decimals}}"


def _training(found: dict[str, Result], results: Path) -> str:
    if "training" not in found:
        return ""
    told = found["training"]
    return (
        f"## The tuned checkpoint\n\n{told['tokens']:,} tokens in {told['steps']:,} steps of {told['batch']} "
        "sequences (of the paper's 164M tokens, batch of 256 and 10,000 steps only two can be had at once); there are "
        f"{told['sequences']:,} sequences, each seen {told['epochs']:.2g} times. Weights chosen by the loss on held-out text: "
        f"those of step {told['chosen']['step']:,}, {told['chosen']['loss']:.4f}. {told['record']['wall_seconds']:.0f} s on "
        f"{told['record']['device']}."
    )


def _table(found: dict[str, Result], results: Path) -> str:
    lines = [line(row) for row in rows_of(found)]
    return f"## Our figures and the paper's\n\n{table(HEADINGS, lines)}" if lines else ""


def _figure(found: dict[str, Result], results: Path) -> str:
    """Every metric of the table over forward passes, ours drawn through and the paper's dotted."""
    rows = rows_of(found)
    if not rows:
        return ""
    with Figure(results / "steps.svg", len(METRICS)) as axes:
        for ax, (metric, (title, _)) in zip(axes, METRICS.items(), strict=True):
            for name in TABLE:
                colour = STYLE[{"remdm": "remdm-cap"}.get(name, name)][0]
                points = [(row["steps"], row[metric]) for row in rows if row["row"] == name and metric in row]
                ax.plot([x for x, _ in points], [y for _, y in points], "o-", color=colour, label=name)
                ax.plot(STEPS, PUBLISHED[name][metric], ":", color=colour, label=f"{name}, the paper's")
            ax.set(title=title, xlabel="forward passes", xscale="log")
            ax.set_xticks(STEPS, [str(steps) for steps in STEPS])
            ax.minorticks_off()
        axes[0].legend(fontsize=6)
    return "## Over forward passes\n\n![MAUVE, generative perplexity and entropy, ours and the paper's](steps.svg)"
