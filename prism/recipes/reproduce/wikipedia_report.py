"""The study of Wikipedia to look at and to read: figures, a page of tables and one of texts, from the result files and nothing
else."""

from __future__ import annotations

from pathlib import Path

from prism.recipes.reproduce.frontier import BELOW, FRONTIER, draw_frontier, frontier_table, reached, told
from prism.recipes.reproduce.report import (
    STYLE,
    Figure,
    Result,
    Section,
    knowledge,
    legend_beside,
    note,
    pick,
    provenance,
    setting,
    table,
    with_interval,
    with_room,
    write_page,
)
from prism.recipes.reproduce.strengths import NEAR
from prism.recipes.reproduce.texts_report import (
    MAUVES,
    RIVALS,
    mauves,
    rivals_table,
    verdict_table,
    with_mauve,
    write_samples_page,
)

HEADINGS = ["N", "method", "setting", "nats a token", "perplexity", "entropy", *MAUVES.values()]
HEADINGS += ["distinct 2-grams", "repeated 4-grams", "remasks", "s"]
WAYS = {
    "prism-confident": "the main way with S by confidence",
    "prism-published": "a block head and the whole backbone, S by confidence and λ = 0.5 as in the paper, k = 8 and n_y = 4 as "
    "in its released code (the paper has 32 and 1)",
    "prism-lora": "the same with LoRA in place of the whole backbone",
}
"""What the other ways to tune are, by the names they are shown by."""


def write_report(results: Path) -> Path:
    """`results/*.json` drawn and tabled in `results/README.md`, with figures and the texts of `samples.md` beside it."""
    about = (
        "# Wikipedia: results\n\nMade by `prism reproduce wikipedia` from the JSON files beside this page; how each of them "
        "came about, and what was used, is told at the end. *Nats a token* and *perplexity* are the judge's, over its own "
        "tokens; *entropy* is that of a text's unigrams, over the model's tokens. Intervals are 95 %, over samples."
    )
    return write_page(results, about, SECTIONS)


def compared(found: dict[str, Result], kind: str = "methods") -> dict[int, list[Result]]:
    """The rows of all results of a kind by their number of steps, the fewest first."""
    of = {name.removeprefix(f"{kind}_"): result for name, result in found.items() if name.startswith(f"{kind}_")}
    return dict(sorted((int(steps), with_mauve(found, result["rows"])) for steps, result in of.items()))


def line(row: Result) -> list[str]:
    """A row of a table, under `HEADINGS`."""
    return [
        str(row["steps"]),
        row["method"],
        setting(row),
        with_interval(row, "nll"),
        with_interval(row, "perplexity", ".1f"),
        with_interval(row, "entropy"),
        *mauves(row),
        f"{row['distinct_2']:.3f}",
        f"{row['repetition_4']:.3f}",
        f"{row['remasks']:.0f}",
        f"{row['seconds']:.0f}",
    ]


def _evidence(found: dict[str, Result], results: Path) -> str:
    if "evidence" not in found:
        return ""
    result = found["evidence"]
    lines = [
        [row["about"], f"{row['parameters']:,}", with_interval(row, "bound", ".4f"), f"{row['seconds']:.0f}"]
        for row in result["rows"]
    ]
    headings = ["beginning with", "parameters", "bound on held-out text, nats a token", "s"]
    return (
        f"## How to begin\n\nEvery one after {result['tokens'] / 1e6:.3g}M tokens; chosen was `{result['chosen']}`.\n\n"
        + table(headings, lines)
    )


def _training(found: dict[str, Result], results: Path) -> str:
    if "training" not in found:
        return ""
    result = found["training"]
    lines = [
        [
            name,
            f"{model['record']['model']['parameters']:,}",
            f"{model['tokens']:,}",
            f"{model['chosen']['step']:,}",
            f"{model['chosen']['loss']:.4f}",
            f"{model['record']['wall_seconds']:.0f}",
        ]
        for name, model in result["models"].items()
    ]
    headings = ["model", "parameters", "tokens seen", "step chosen", "held-out loss", "s, last part"]
    corpus = result["corpus"]["train"]
    epochs = result["models"]["adapted"]["tokens"] / corpus
    return (
        f"## How the models were made\n\nA corpus of {corpus / 1e6:.3g}M tokens, each seen {epochs:.2g} times. The loss of "
        "`adapted` is the bound in nats a token, that of `prism` its own.\n\n" + table(headings, lines)
    )


def _main(found: dict[str, Result], results: Path) -> str:
    by_steps = compared(found)
    if not by_steps or "data" not in found:
        return ""
    text = found["data"]
    ceiling = mauves(found.get("mauve", {}).get("data", {}))
    own = [
        with_interval(text, "nll"),
        with_interval(text, "perplexity", ".1f"),
        with_interval(text, "entropy"),
        *ceiling,
    ]
    rest = [f"{text['distinct_2']:.3f}", f"{text['repetition_4']:.3f}", "", ""]
    lines = [["", "*held-out text*", "", *own, *rest]]
    for rows in by_steps.values():
        lines += [line(row) for row in sorted(rows, key=lambda row: row["nll"])]
    return (
        f"## Every method's best setting on the same weights\n\n{text['samples']:,} texts a row, judged by "
        f"{text['judge']['name']} in {text['judge']['dtype']}. The setting of a method is the likeliest whose entropy is no "
        f"more than {NEAR} nats below the data's, chosen on other texts; with the most steps, PRISM and the best rival. The "
        "MAUVE of held-out text is against text the models learnt from.\n\n" + table(HEADINGS, lines)
    )


def _verdict(found: dict[str, Result], results: Path) -> str:
    by_steps = {steps: rows for steps, rows in compared(found).items() if f"sweep_{steps}" in found}
    if not by_steps or "data" not in found:
        return ""
    return (
        f"## PRISM against every other\n\n{verdict_table(by_steps, found['data']['entropy'])}\n\nEach rival at its likeliest "
        f"setting of all that were tried, and PRISM at its likeliest within {NEAR} nats of that rival's entropy; few texts "
        f"each, and chosen by these same texts. {RIVALS}\n\n{rivals_table(compared(found, 'sweep'), 'nll', 'nats a token')}"
    )


def _frontier(found: dict[str, Result], results: Path) -> str:
    swept = {
        steps: {method: pick(rows, method=method) for method in dict.fromkeys(row["method"] for row in rows)}
        for steps, rows in compared(found, "sweep").items()
    }
    if not swept or "data" not in found:
        return ""
    text = found["data"]
    with Figure(results / "frontier.svg", len(swept), with_room(len(swept))) as axes:
        for ax, (steps, methods) in zip(axes, swept.items(), strict=True):
            for method, rows in methods.items():
                draw_frontier(ax, rows, STYLE[method][0], method, "nll")
            ax.plot(text["entropy"], text["nll"], "*", color="black", label="held-out text")
            ax.axvspan(text["entropy"] - NEAR, text["entropy"] + NEAR, color="0.93")
            ax.set(title=f"{steps} forward passes", xlabel="entropy, nats", ylabel="nats a token")
        legend_beside(axes)
    return (
        "## Likelihood and diversity\n\nEvery setting tried, with few texts each; likelihood can be bought with diversity, so "
        f"both are shown. {FRONTIER}\n\n![nats a token against entropy](frontier.svg)\n\n"
        + frontier_table(swept, text["entropy"], BELOW)
    )


def _steps(found: dict[str, Result], results: Path) -> str:
    by_steps = compared(found)
    if not by_steps:
        return ""
    shown = [
        name for name in ("nll", "entropy", *MAUVES) if any(name in row for rows in by_steps.values() for row in rows)
    ]
    with Figure(results / "steps.svg", len(shown), with_room(len(shown))) as axes:
        for ax, name in zip(axes, shown, strict=True):
            for method in dict.fromkeys(row["method"] for rows in by_steps.values() for row in rows):
                points = [
                    (steps, row[name])
                    for steps, rows in by_steps.items()
                    for row in rows
                    if row["method"] == method and name in row
                ]
                colour, style = STYLE[method]
                ax.plot(*zip(*points, strict=True), style, color=colour, label=method, marker=".")
            if name in found.get("data", {}):
                ax.axhline(found["data"][name], color="0.7", linewidth=0.8)
            title = {"nll": "nats a token", "entropy": "entropy, nats", **MAUVES}[name]
            ax.set(xlabel="forward passes", ylabel=title, xscale="log")
            ax.set_xticks(list(by_steps), [str(steps) for steps in by_steps])
            ax.minorticks_off()
        legend_beside(axes)
    return (
        "## More forward passes\n\nThe grey line is held-out text.\n\n"
        "![likelihood, entropy and MAUVE over forward passes](steps.svg)"
    )


def _ablations(found: dict[str, Result], results: Path) -> str:
    if "ablations" not in found:
        return ""
    main = {steps: pick(rows, method="prism") for steps, rows in compared(found, "sweep").items()}
    lines = []
    for row in with_mauve(found, found["ablations"]["rows"]):
        as_diverse = reached(main[row["steps"]], row["entropy"]) if row["steps"] in main else None
        lines.append([_way(row), *line(row), told(as_diverse)])
    there = dict.fromkeys(map(_way, found["ablations"]["rows"]))
    ways = "; ".join(f"`{name}`, {about}" for name, about in WAYS.items() if name in there)
    beside = dict.fromkeys(_way(row) for row in found["ablations"]["rows"] if row["method"] == "p2-self")
    rival = f" P2-self also on the weights of {', '.join(f'`{name}`' for name in beside)}." if beside else ""
    first = {row["name"]: row for rows in compared(found).values() for row in rows}
    anew = "".join(
        f" The row of `{_way(row)}` with N = {row['steps']} was written anew, its MAUVE is that of the row above "
        f"({first[row['name']]['perplexity']:.1f})."
        for row in found["ablations"]["rows"]
        if row["name"] in first and row["nll"] != first[row["name"]]["nll"]
    )
    return (
        f"## PRISM in other ways\n\nOn as many tokens: {ways}.{rival}{anew} All at the strengths that were best on the main "
        "weights, where they are not equally diverse: the last column is what PRISM on the main weights reaches, in nats a "
        "token, at the entropy of that row (see above).\n\n"
        + table(["weights", *HEADINGS, "the main way at this entropy"], lines)
    )


def _way(row: Result) -> str:
    """Files call it the paper's, which it is not in k and n_y."""
    return str(row["weights"]).replace("prism-paper", "prism-published")


def _texts(found: dict[str, Result], results: Path) -> str:
    """The page of texts, and a link to it."""
    by_steps = compared(found)
    if not by_steps or "data" not in found:
        return ""
    runs = [
        (f"{row['method']}, {steps} forward passes, {setting(row)}", row["texts"])
        for steps, rows in by_steps.items()
        for row in rows
    ]
    return write_samples_page(results, "Wikipedia: texts", [("Held-out text", found["data"]["texts"]), *runs])


SECTIONS: tuple[Section, ...] = (
    note,
    _evidence,
    _training,
    _main,
    _verdict,
    _frontier,
    _steps,
    knowledge,
    _ablations,
    _texts,
    provenance,
)
