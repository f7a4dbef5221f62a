"""The Sudoku study to look at and to read: figures and a page of tables, from the result files and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from prism.evaluation.statistics import rate
from prism.recipes.reproduce.report import STYLE, Figure, Result, Section, pick, table, write_page

SETS = {"own": "our puzzles", "paper": "the paper's puzzles"}


def write_report(results: Path) -> Path:
    """`results/*.json` drawn and tabled in `results/README.md`, with the figures beside it."""
    about = (
        "# Sudoku: results\n\nMade by `prism reproduce sudoku` from the JSON files beside this page; every one of them holds "
        "the record of its run. Intervals are 95 %."
    )
    return write_page(results, about, SECTIONS)


def percent(row: Result) -> str:
    low, high = row["success_interval"]
    return f"{100 * row['success_rate']:.1f} [{100 * low:.1f}, {100 * high:.1f}]"


def main_table(found: dict[str, Result]) -> str:
    """Every method at the most steps, in both orders; failures are those of random order, as a share of vanilla's."""
    rows = found[_most_steps(found)]["rows"]
    lines = []
    for kind in dict.fromkeys(row["puzzles"] for row in rows):
        for row in pick(rows, puzzles=kind, order="random", weights="prism"):
            margin = pick(rows, puzzles=kind, order="margin", weights="prism", method=row["method"])[0]
            vanilla = pick(rows, puzzles=kind, order="random", weights="prism", method="vanilla")[0]
            left = (1 - row["success_rate"]) / max(1e-9, 1 - vanilla["success_rate"])
            lines.append(
                [
                    SETS.get(kind, kind),
                    row["method"],
                    percent(row),
                    f"{100 * left:.0f} %",
                    percent(margin),
                    f"{row['remasks']:.0f}",
                    f"{row['seconds_per_1000_boards']:.2f}",
                ]
            )
    headings = [
        "puzzles",
        "method",
        "solved %, random order",
        "of vanilla's failures",
        "solved %, margin order",
        "remasks",
        "s / 1000 boards",
    ]
    return table(headings, lines)


def _most_steps(found: dict[str, Result]) -> str:
    return max(
        (name for name in found if name.startswith("methods_")), key=lambda name: int(name.split("_")[1]), default=""
    )


def _main(found: dict[str, Result], results: Path) -> str:
    name = _most_steps(found)
    if not name:
        return ""
    return f"## All methods on the same weights, {name.split('_')[1]} forward passes\n\n{main_table(found)}"


def _fine_tuning(found: dict[str, Result], results: Path) -> str:
    if "fine_tuning" not in found:
        return ""
    result = found["fine_tuning"]
    points, kinds = result["points"], result["puzzles_per_point"]
    with Figure(results / "fine_tuning.svg", len(kinds)) as axes:
        for ax, (kind, count) in zip(axes, kinds.items(), strict=True):
            for policy in [name.split("/")[1] for name in points[0] if name.startswith(f"{kind}/")]:
                colour, line = STYLE[policy]
                values = [100 * point[f"{kind}/{policy}"] for point in points]
                ax.plot([point["epoch"] for point in points], values, line, color=colour, label=policy, marker=".")
            ax.set(title=f"{SETS.get(kind, kind)} ({count})", xlabel="epochs of fine-tuning", ylabel="solved %")
        axes[0].legend(fontsize=8)
    chosen = result["chosen"]
    return (
        "## While fine-tuning (the paper's left figure)\n\nRandom order, a forward pass a blank, K = 4.\n\n"
        "![success over epochs](fine_tuning.svg)\n\n"
        f"Chosen on validation boards: step {chosen['step']}, quality loss {chosen['quality']:.4f}, "
        f"denoising loss {chosen['denoising']:.4f}. Fine-tuning took {result['record']['wall_seconds']:.0f} s, pretraining "
        f"{result['pretraining']['record']['wall_seconds']:.0f} s, on {result['record']['device']}."
    )


def _steps(found: dict[str, Result], results: Path) -> str:
    rows = [row for name, result in found.items() if name.startswith("methods_") for row in result["rows"]]
    if not rows:
        return ""
    shown = (
        "vanilla",
        "random K=4",
        "remdm-cap",
        "remdm-conf-topk K=4",
        "p2-self K=4",
        "prism K=4",
        "prism-likelihood K=4",
    )
    kinds = list(dict.fromkeys(row["puzzles"] for row in rows))
    with Figure(results / "steps.svg", 2 * len(kinds)) as axes:
        panels = [(kind, order) for kind in kinds for order in ("random", "margin")]
        for ax, (kind, order) in zip(axes, panels, strict=True):
            for method in shown:
                weights = "likelihood" if method.startswith("prism-likelihood") else "prism"
                line = sorted(
                    pick(rows, puzzles=kind, order=order, method=method, weights=weights), key=lambda r: r["steps"]
                )
                colour, dash = STYLE[method.split()[0]]
                ax.plot(
                    [r["steps"] for r in line],
                    [100 * r["success_rate"] for r in line],
                    dash,
                    color=colour,
                    label=method,
                    marker=".",
                )
            ax.set(title=f"{SETS.get(kind, kind)}, {order} order", xlabel="forward passes", ylabel="solved %")
        axes[0].legend(fontsize=7)
    steps = sorted({row["steps"] for row in rows}, reverse=True)
    lines = []
    for kind, order, weights, method in dict.fromkeys(
        (r["puzzles"], r["order"], r["weights"], r["method"]) for r in rows
    ):
        cells = {r["steps"]: percent(r) for r in pick(rows, puzzles=kind, order=order, weights=weights, method=method)}
        label = method if weights == "prism" else f"{method} ({weights}-tuned)"
        lines.append([SETS.get(kind, kind), order, label, *(cells.get(n, "–") for n in steps)])
    headings = ["puzzles", "order", "method", *(f"N = {n}" for n in steps)]
    return f"## Fewer forward passes\n\n![success over forward passes](steps.svg)\n\n{table(headings, lines)}"


def _most_likely_digits(found: dict[str, Result], results: Path) -> str:
    if "most_likely_digits" not in found:
        return ""
    lines = [
        [
            SETS.get(r["puzzles"], r["puzzles"]),
            r["order"] or "–",
            r["method"],
            f"{r['nfe']:.1f}",
            f"{r['remasks']:.0f}",
            percent(r),
        ]
        for r in found["most_likely_digits"]["rows"]
    ]
    return (
        "## The most likely digit\n\nTemperature 0, at most a forward pass a blank. `prism-restart` writes what is sure, "
        "guesses when nothing is, and begins again when a guess has led nowhere.\n\n"
        + table(["puzzles", "order", "method", "forward passes", "remasks", "solved %"], lines)
    )


def _repeated(found: dict[str, Result], results: Path) -> str:
    if "repeated" not in found:
        return ""
    rows = found["repeated"]["rows"]
    lines = [
        [SETS.get(r["puzzles"], r["puzzles"]), f"{r['temperature']:g}", r["method"]]
        + [_hundredths(r[figure]) for figure in ("success", "of_vanilla", "of_best_training_free")]
        for r in rows
    ]
    headings = ["puzzles", "temperature", "method", "solved %", "failures, % of vanilla's", "% of the best untrained's"]
    return (
        f"## The same puzzles {len(rows[0]['solved_by_seed'])} times\n\nRandom order, {rows[0]['steps']} forward passes, other "
        "random numbers each time; intervals are over puzzles. The best untrained is the remasker, of those that need no "
        "training, that fails least.\n\n" + table(headings, lines)
    )


def _hundredths(figure: Result) -> str:
    return f"{100 * figure['value']:.1f} [{100 * figure['low']:.1f}, {100 * figure['high']:.1f}]"


def _equal_remasks(found: dict[str, Result], results: Path) -> str:
    if "equal_remasks" not in found:
        return ""
    result = found["equal_remasks"]
    lines = [
        [
            SETS.get(r["puzzles"], r["puzzles"]),
            r["method"],
            "–" if r["eta"] is None else f"{r['eta']:.3f}",
            f"{r['remasks']:.0f}",
            percent(r),
        ]
        for r in result["rows"]
    ]
    return (
        f"## At the same number of remasks\n\nη set so that each takes back {result['target']:.0f} tokens a board, "
        "as PRISM with K = 4 does (or as many as it can); random order, a forward pass a blank.\n\n"
        + table(["puzzles", "method", "η", "remasks", "solved %"], lines)
    )


def _cost(found: dict[str, Result], results: Path) -> str:
    if "cost" not in found:
        return ""
    result = found["cost"]
    extra = ", ".join(
        f"{name} {100 * share:+.1f} %" for name, share in result["extra_over_vanilla"].items() if name != "vanilla"
    )
    return (
        f"## What a step costs\n\nTime over vanilla's, {result['boards']} boards at once, {result['steps']} steps, "
        f"medians of runs taking turns: {extra} ({result['record']['device']})."
    )


def _knowledge(found: dict[str, Result], results: Path) -> str:
    if "knowledge" not in found:
        return ""
    result = found["knowledge"]
    runs = result["runs"]
    labels = {
        "quality": "PRISM's quality",
        "own": "own probability (P2-self)",
        "confidence": "at commit time (ReMDM-conf)",
        "likelihood": "hidden likelihood (one more pass each)",
    }
    with Figure(results / "knowledge.svg", 3) as axes:
        for ax, (kind, title) in zip(
            axes,
            (("against_likelihood", "quality and f(token | rest)"), ("against_truth", "quality and truth")),
            strict=False,
        ):
            for name, run in runs.items():
                curve = run[kind]
                ax.plot(
                    curve["predicted"],
                    curve["observed"],
                    ".-",
                    color=STYLE[name][0],
                    label=f"{name} run, ECE {curve['ece']:.3f}",
                )
            ax.plot([0, 1], [0, 1], ":", color="0.7")
            ax.set(title=title, xlabel="quality", ylabel="observed")
            ax.legend(fontsize=7)
        for score, label in labels.items():
            ax = axes[2]
            values = runs["vanilla"]["auroc"][score]["by_fifth_filled"]
            places = [20 * (i + 1) for i in range(5)]
            ax.plot(
                [p for p, v in zip(places, values, strict=True) if v is not None],
                [v for v in values if v is not None],
                ".-",
                label=label,
            )
        axes[2].set(title="finding wrong cells (vanilla run)", xlabel="% of the blanks filled, up to", ylabel="AUROC")
        axes[2].legend(fontsize=7)
    _draw_board(result["board"], results / "board.svg")
    lines = [
        [
            name,
            run["tokens"],
            f"{100 * run['right']:.1f}",
            f"{run['against_likelihood']['ece']:.3f}",
            f"{run['against_truth']['ece']:.3f}",
        ]
        + [f"{run['auroc'][score]['all']:.3f}" for score in labels]
        for name, run in runs.items()
    ]
    headings = [
        "run",
        "cells",
        "right %",
        "ECE to f(token given rest)",
        "ECE to truth",
        *(f"AUROC: {label}" for label in labels.values()),
    ]
    return (
        "## Does the head know?\n\n![calibration](knowledge.svg)\n\n"
        + table(headings, lines)
        + "\n\nA board on the way of the vanilla sampler, coloured "
        "by quality; wrong digits are ringed (the paper's right figure).\n\n![a board coloured by quality](board.svg)"
    )


def _transfer(found: dict[str, Result], results: Path) -> str:
    if "transfer" not in found:
        return ""
    lines = [
        [
            SETS.get(r["puzzles"], r["puzzles"]),
            r["order"],
            r["who"],
            r["method"],
            r["steps"],
            f"{r['nfe']:.0f}",
            percent(r),
        ]
        for r in found["transfer"]["rows"]
    ]
    return (
        "## A corrector for a stranger\n\nA is the tuned model; B are backbones of another seed and of another size, "
        "pretrained more briefly, that PRISM never touched. Judged by A, every step takes two forward passes.\n\n"
        + table(["puzzles", "order", "who", "method", "steps", "forward passes", "solved %"], lines)
    )


def _variants(name: str, title: str, text: str) -> Callable[[dict[str, Result], Path], str]:
    def section(found: dict[str, Result], results: Path) -> str:
        rows = [row for file, result in found.items() if file.startswith(name) for row in result["rows"]]
        if not rows:
            return ""
        columns = list(dict.fromkeys((row["order"], row["steps"], row["method"]) for row in rows))
        lines, variants = [], list(dict.fromkeys(row["variant"] for row in rows))
        for variant in variants:
            own = pick(rows, variant=variant)
            cells = [_pooled(pick(own, order=order, steps=n, method=method)) for order, n, method in columns]
            losses = own[0]["held_out"]
            lines.append(
                [
                    variant,
                    f"{losses['quality']:.4f}",
                    f"{losses['denoising']:.4f}" if "denoising" in losses else "–",
                    *cells,
                ]
            )
        headings = [
            "variant",
            "quality loss",
            "denoising loss",
            *(f"{method}, {order}, N = {n}" for order, n, method in columns),
        ]
        return f"## {title}\n\n{text}\n\n" + table(headings, lines)

    return section


def _pooled(rows: Sequence[Result]) -> str:
    """Success over all sets of puzzles together."""
    found = rate(sum(row["solved"] for row in rows), sum(row["boards"] for row in rows))
    return f"{100 * found.value:.1f} [{100 * found.low:.1f}, {100 * found.high:.1f}]"


def _draw_board(board: Result, path: Path) -> None:
    if not board:
        return
    with Figure(path, 1, size=(3.4, 3.4)) as (ax,):
        for cell in range(81):
            x, y = cell % 9, 8 - cell // 9
            digit, clue = board["digits"][cell], board["clues"][cell]
            if digit and not clue:
                ax.add_patch(_rectangle(x, y, _blend(board["quality"][cell])))
                ax.text(x + 0.95, y + 0.06, f"{board['quality'][cell]:.2f}", ha="right", va="bottom", fontsize=4)
            if board["wrong"][cell]:
                ax.plot(
                    x + 0.5,
                    y + 0.5,
                    "o",
                    markersize=20,
                    markerfacecolor="none",
                    markeredgecolor="black",
                    markeredgewidth=1.5,
                )
            ax.text(
                x + 0.5,
                y + 0.5,
                str(digit or ""),
                ha="center",
                va="center",
                fontsize=11,
                weight="bold" if clue else "normal",
            )
        for line in range(10):
            width = 1.6 if line % 3 == 0 else 0.4
            ax.plot([0, 9], [line, line], "k", linewidth=width)
            ax.plot([line, line], [0, 9], "k", linewidth=width)
        ax.set_aspect("equal")
        ax.axis("off")


def _rectangle(x: int, y: int, colour: tuple[float, float, float]) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle((x, y), 1, 1, facecolor=colour, linewidth=0)


def _blend(quality: float) -> tuple[float, float, float]:
    """Red for 0, white in the middle, blue for 1, pale enough to read a digit on."""
    from matplotlib import colormaps

    red, green, blue, _ = colormaps["coolwarm_r"](0.1 + 0.8 * quality)
    return red, green, blue


SECTIONS: tuple[Section, ...] = (
    _main,
    _fine_tuning,
    _steps,
    _most_likely_digits,
    _repeated,
    _equal_remasks,
    _cost,
    _knowledge,
    _variants(
        "ablation_",
        "One thing changed at a time",
        "Short fine-tunings of the same backbone; solved % over all puzzles.",
    ),
    _transfer,
    _variants(
        "augmentation",
        "With and without symmetries",
        "The same short pretraining and fine-tuning; solved % over all puzzles.",
    ),
)
