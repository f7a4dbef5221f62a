"""The study of LLaDA beside the paper's Table 1 ("Zero-shot performance on coding tasks") and its Section 4.4 (error correction
and transfer): tables and a figure, from the result files and nothing else."""

from __future__ import annotations

from pathlib import Path

from prism.recipes.reproduce.functions_report import gain, share
from prism.recipes.reproduce.llada import METHODS
from prism.recipes.reproduce.report import STYLE, Figure, Result, Section, pick, table, write_page

TITLES = {"humaneval": "HumanEval", "mbpp": "MBPP"}
PUBLISHED: dict[str, dict[str, dict[int, float]]] = {
    "humaneval": {
        "PRISM": {256: 28.0, 512: 39.0, 1024: 42.7},
        "ReMDM": {256: 26.2, 512: 34.8, 1024: 42.5},
        "ReMDM-conf": {256: 25.6, 512: 34.1, 1024: 36.6},
        "MDM": {256: 25.6, 512: 34.1, 1024: 36.6},
    },
    "mbpp": {
        "PRISM": {256: 21.8, 512: 29.1, 1024: 32.3},
        "ReMDM": {256: 19.7, 512: 28.5, 1024: 32.9},
        "ReMDM-conf": {256: 20.1, 512: 29.0, 1024: 32.5},
        "MDM": {256: 18.2, 512: 27.8, 1024: 31.9},
    },
}
"""Table 1 of the paper: solved tasks in percent at N steps, the best over the sweep of K_block."""
TRANSFER = {"MDM": 23.2, "PRISM": 34.1}
"""Section 4.4: HumanEval's tasks in percent that LLaDA, not tuned, solves alone, and judged by the tuned model."""
REPAIRED, ERRORS = 19, 26
"""Section 4.4: of so many syntax errors in the 164 programs of HumanEval, PRISM corrects so many."""


def write_report(results: Path) -> Path:
    """`results/*.json` drawn and tabled in `results/README.md`, with the figure beside it."""
    about = (
        "# LLaDA: results\n\nMade by `prism reproduce llada` from the JSON files beside this page. One program for each task, "
        "judged by the benchmark's own tests. Intervals are 95 %."
    )
    return write_page(results, about, SECTIONS)


def main_table(found: dict[str, Result]) -> str:
    """Solved tasks in percent: ours with interval, the K_block it was best with, and the paper's."""
    lines = []
    for benchmark, rows in _by_benchmark(found).items():
        for steps in sorted({row["steps"] for row in rows}):
            for method in METHODS:
                best = best_of(pick(rows, steps=steps, method=method))
                published = PUBLISHED[benchmark][method].get(steps)
                lines.append(
                    [
                        TITLES[benchmark],
                        best["tasks"],
                        steps,
                        method,
                        share(best, "pass@1"),
                        "–" if best["k_block"] is None else best["k_block"],
                        "–" if published is None else f"{published:.1f}",
                    ]
                )
    headings = ["benchmark", "tasks", "N", "method", "ours, solved %", "with K_block", "the paper's Table 1, solved %"]
    return table(headings, lines) if lines else ""


def best_of(rows: list[Result]) -> Result:
    """The row that solves most; of several the one that takes back least."""
    return max(rows, key=lambda row: (row["pass@1"], -(row["k_block"] or 0)))


def _by_benchmark(found: dict[str, Result]) -> dict[str, list[Result]]:
    rows = {
        benchmark: [row for name, result in found.items() if name.startswith(f"{benchmark}_") for row in result["rows"]]
        for benchmark in TITLES
    }
    return {benchmark: some for benchmark, some in rows.items() if some}


def _main(found: dict[str, Result], results: Path) -> str:
    lines = main_table(found)
    if not lines:
        return ""
    return (
        f"## Beside the paper\n\n{lines}\n\nOf every method the best over the sweep of K_block, chosen on the very tasks it is "
        "reported on, as in the paper: the methods that were tried most often have the most luck, and MDM was tried once. The "
        "interval is that of the run chosen."
    )


def _figure(found: dict[str, Result], results: Path) -> str:
    benchmarks = _by_benchmark(found)
    if not benchmarks:
        return ""
    with Figure(results / "steps.svg", len(benchmarks)) as axes:
        for ax, (benchmark, rows) in zip(axes, benchmarks.items(), strict=True):
            steps = sorted({row["steps"] for row in rows})
            for method, policy in METHODS.items():
                colour, published = STYLE[policy][0], PUBLISHED[benchmark][method]
                ours = [100 * best_of(pick(rows, steps=n, method=method))["pass@1"] for n in steps]
                ax.plot(steps, ours, "-", color=colour, label=method, marker=".")
                ax.plot(list(published), list(published.values()), ":", color=colour)
            ax.set(title=f"{TITLES[benchmark]} (dotted: the paper's)", xlabel="forward passes", ylabel="solved tasks %")
        axes[0].legend(fontsize=7)
    return "## Solved tasks by the number of forward passes\n\n![solved tasks over steps](steps.svg)"


def _sweep(found: dict[str, Result], results: Path) -> str:
    lines = [
        [
            TITLES[benchmark],
            row["steps"],
            row["method"],
            "–" if row["k_block"] is None else row["k_block"],
            share(row, "pass@1"),
            gain(row, "gain"),
            row["syntax_errors"],
            row["syntax"]["repaired"],
            row["syntax"]["broken"],
            f"{row['nfe']:.0f}",
            f"{row['remasks']:.0f}",
        ]
        for benchmark, rows in _by_benchmark(found).items()
        for row in sorted(rows, key=lambda row: row["steps"])
    ]
    headings = ["benchmark", "N", "method", "K_block", "solved %", "over MDM", "syntax errors", "MDM's repaired"]
    headings += ["introduced", "forward passes", "remasks"]
    return f"## All runs\n\n{table(headings, lines)}" if lines else ""


def _transfer(found: dict[str, Result], results: Path) -> str:
    if "transfer" not in found:
        return ""
    lines = [
        [
            row["steps"],
            row["who"],
            "–" if row["k_block"] is None else row["k_block"],
            f"{row['nfe']:.0f}",
            share(row, "pass@1"),
            gain(row, "gain"),
            f"{TRANSFER[row['method']]:.1f}",
        ]
        for row in sorted(found["transfer"]["rows"], key=lambda row: row["steps"])
    ]
    headings = ["N", "who writes", "K_block", "forward passes", "solved %", "over alone", "the paper's, solved %"]
    return (
        f"## A corrector for a model it never saw\n\n{table(headings, lines)}\n\nThe model as it came writes HumanEval, alone "
        "and with the tuned one's quality: two forward passes a step, so a row is to be compared with twice its N. The paper "
        "gives one figure for each and says neither N nor K_block."
    )


def _corrections(found: dict[str, Result], results: Path) -> str:
    if "corrections" not in found:
        return ""
    rows = found["corrections"]["rows"]
    lines = [
        [
            row["steps"],
            f"[{row['k_block']}]({row['page']})",
            f"{row['changes']['repaired']} of {row['syntax_errors_before']}",
            f"{REPAIRED} of {ERRORS}",
            row["changes"]["broken"],
            row["changes"]["defined"],
            row["changes"]["undefined"],
            row["over_corrections"],
        ]
        for row in rows
    ]
    headings = ["N", "K_block, with diffs", "MDM's syntax errors repaired", "the paper's", "introduced"]
    headings += ["undefined names gone", "introduced", "over-corrections"]
    return (
        f"## What correction mends and what it breaks\n\n{table(headings, lines)}\n\nOf HumanEval's {rows[0]['functions']} "
        "programs, read and not run. The paper gives one figure, says neither N nor K_block, and counts no error introduced."
    )


def _tuning(found: dict[str, Result], results: Path) -> str:
    if "tuning" not in found:
        return ""
    result = found["tuning"]
    figures = [[name, f"{value:.4f}"] for name, value in result["held_out"].items()]
    return f"## Fine-tuning\n\n{result['record']['wall_seconds']:.0f} s.\n\n{table(['held out', ''], figures)}"


SECTIONS: tuple[Section, ...] = (_main, _figure, _sweep, _transfer, _corrections, _tuning)
