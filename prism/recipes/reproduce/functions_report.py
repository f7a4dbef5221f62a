"""The study of functions to look at and to read: figures and a page of tables, from the result files and nothing else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from prism.recipes.reproduce.report import STYLE, Figure, Result, Section, note, pick, provenance, table, write_page

SHARES = {"sound": "sound %", "parses": "parses %", "defined": "no undefined names %", "trivial": "trivial %"}


def write_report(results: Path) -> Path:
    """`results/*.json` drawn and tabled in `results/README.md`, with the figures beside it."""
    about = (
        "# Python functions: results\n\nMade by `prism reproduce functions` from the JSON files beside this page. A body is "
        "sound if it parses, uses no undefined name and does something; nothing is run for it. Intervals are 95 %."
    )
    return write_page(results, about, SECTIONS)


def share(row: Result, name: str) -> str:
    low, high = row[f"{name}_interval"]
    return f"{100 * row[name]:.1f} [{100 * low:.1f}, {100 * high:.1f}]"


def gain(row: Result, name: str) -> str:
    low, high = row[f"{name}_interval"]
    return f"{100 * row[name]:+.1f} [{100 * low:+.1f}, {100 * high:+.1f}]"


def _rows(found: dict[str, Result], kind: str) -> list[Result]:
    """The rows of all results of a kind, the most steps first."""
    rows = [row for name, result in found.items() if name.startswith(f"{kind}_") for row in result["rows"]]
    return sorted(rows, key=lambda row: -row["steps"])


def _methods(found: dict[str, Result], results: Path) -> str:
    rows = _rows(found, "methods")
    sections = []
    for steps in dict.fromkeys(row["steps"] for row in rows):
        lines = [_line(row, gain(row, "gain")) for row in pick(rows, steps=steps)]
        if "originals" in found:
            lines.append(_line({"method": "the originals", "order": "", "remasks": 0, **found["originals"]}, ""))
        headings = [
            "method",
            "order",
            *SHARES.values(),
            "sound, over vanilla",
            "lines",
            "repeated %",
            "distinct %",
            "remasks",
        ]
        sections.append(f"## {steps} forward passes\n\n{table(headings, lines)}")
    return "\n\n".join(sections)


def _line(row: Result, over_vanilla: str) -> Sequence[str]:
    guards = [f"{row['lines']:.1f}", f"{100 * row['repeated_lines']:.0f}", f"{100 * row['distinct_bodies']:.0f}"]
    return [
        row["method"],
        row["order"],
        *(share(row, name) for name in SHARES),
        over_vanilla,
        *guards,
        f"{row['remasks']:.0f}",
    ]


def _rivals(found: dict[str, Result], results: Path) -> str:
    if "rivals" not in found:
        return ""
    rows, runs = found["rivals"]["rows"], found["rivals"]["runs"]
    lines = []
    for run in runs:
        lines += [_compared(row, row["weights"]) for row in pick(rows, steps=run["steps"], order=run["order"])]
        lines.append(_compared(run, ""))
    chosen = [row for row in rows if row["method"] != _policy(row)]
    lead = "PRISM has more, points"
    headings = ["N", "order", "functions", "method", "its weights", "parses %", lead, "sound %", lead]
    return (
        "## PRISM against every other with the fewest forward passes\n\nCounted methods take back their own amount, K tokens "
        "at every step or all less probable than p, chosen on validation functions; vanilla and published ReMDM have none. "
        "Differences are paired, function by function, on test functions that nothing was chosen by. *Before tuning*: written "
        "by the backbone as it was before PRISM tuned it. More of PRISM's bodies parse by more than the interval in "
        f"{_leads(rows, 1)} of {len(rows)} comparisons, and fewer in {_leads(rows, -1)}; against methods with an amount in "
        f"{_leads(chosen, 1)} and {_leads(chosen, -1)} of {len(chosen)}.{_of_packages(rows)}\n\n{table(headings, lines)}"
    )


def _leads(rows: Sequence[Result], sign: int, interval: str = "gain_parses_interval") -> int:
    """How many of these differences have that sign, be they what they may within their interval."""
    return sum(min(sign * bound for bound in row[interval]) > 0 for row in rows)


def _of_packages(rows: Sequence[Result]) -> str:
    interval = "gain_parses_of_packages_interval"
    if interval not in rows[0]:
        return ""
    return (
        " With whole packages drawn in place of functions, since those of one package are alike: in "
        f"{_leads(rows, 1, interval)} and {_leads(rows, -1, interval)} of all."
    )


def _compared(row: Result, weights: str) -> list[str]:
    """A line of the comparison; PRISM's own has no lead."""
    shown = [(share(row, name), gain(row, f"gain_{name}") if weights else "") for name in ("parses", "sound")]
    return [str(row["steps"]), row["order"], f"{row['functions']:,}", row["method"], weights, *shown[0], *shown[1]]


def _heads(found: dict[str, Result], results: Path) -> str:
    if "heads" not in found:
        return ""
    lines = [
        [
            row["weights"],
            row["method"],
            row["order"],
            row["steps"],
            *(share(row, name) for name in SHARES),
            gain(row, "gain"),
        ]
        for row in found["heads"]["rows"]
    ]
    headings = ["weights", "method", "order", "N", *SHARES.values(), "sound, over vanilla"]
    ways = "".join(f"\n- *{name}*: {about}" for name, about in found["heads"]["ways"].items())
    return (
        "## Ways to tune\n\nWhere only the head learnt, others write as they did before tuning; over vanilla with the same "
        f"weights.\n{ways}\n\n{table(headings, lines)}"
    )


def _asked(found: dict[str, Result], results: Path) -> str:
    if "asked" not in found:
        return ""
    runs, rows = found["asked"]["runs"], found["asked"]["rows"]
    told = [
        [row["steps"], row["order"], row["method"], f"{row['nfe']:.0f}", share(row, "parses"), share(row, "sound")]
        for row in runs
    ]
    against = [
        [row["steps"], row["order"], row["method"], gain(row, "gain_parses"), gain(row, "gain_sound")] for row in rows
    ]
    won = sum(row["gain_parses_interval"][0] > 0 for row in rows)
    return (
        "## What a perfect head would do\n\nIn place of the head's quality the model's own likelihood of each token when it is "
        "hidden, which is what the head estimates: asked with a forward pass a token, at every step. Forward passes are "
        "counted as if every token of a row were asked about.\n\n"
        f"{table(['N', 'order', 'method', 'forward passes', 'parses %', 'sound %'], told)}\n\nAgainst every method with its "
        "head or score, each with its own amount; paired, function by function. More parse, outside the "
        f"interval, in {won} of {len(rows)} comparisons.\n\n"
        f"{table(['N', 'order', 'against', 'more that parse, points', 'more that are sound, points'], against)}"
    )


def _steps(found: dict[str, Result], results: Path) -> str:
    rows = _rows(found, "methods")
    if not rows:
        return ""
    orders = list(dict.fromkeys(row["order"] for row in rows))
    with Figure(results / "steps.svg", len(orders)) as axes:
        for ax, order in zip(axes, orders, strict=True):
            for policy in dict.fromkeys(_policy(row) for row in rows):
                line = [row for row in pick(rows, order=order) if _policy(row) == policy]
                colour, dash = STYLE[policy]
                values = [100 * row["sound"] for row in line]
                ax.plot([row["steps"] for row in line], values, dash, color=colour, label=policy, marker=".")
            ax.set(title=f"{order} order", xlabel="forward passes", ylabel="sound bodies %")
        axes[0].legend(fontsize=7)
    return "## Sound bodies by the number of forward passes\n\n![sound bodies over steps](steps.svg)"


def _policy(row: Result) -> str:
    """The method without its amount, which differs from one number of steps to the next."""
    return str(row["method"]).split()[0]


def _corrections(found: dict[str, Result], results: Path) -> str:
    rows = _rows(found, "corrections")
    if not rows:
        return ""
    lines = [
        [
            row["steps"],
            row["order"],
            f"[{row['method']}]({row['page']})",
            _repaired(row),
            row["changes"]["broken"],
            row["changes"]["defined"],
            row["changes"]["undefined"],
            row["over_corrections"],
            gain(row, "gain_sound"),
        ]
        for row in rows
    ]
    headings = ["steps", "order", "against vanilla", "syntax errors repaired", "introduced", "undefined names gone"]
    headings += ["introduced", "over-corrections", "sound, gain"]
    return f"## What correction mends and what it breaks\n\nOf {rows[0]['functions']:,} functions.\n\n{table(headings, lines)}"


def _repaired(row: Result) -> str:
    return f"{row['changes']['repaired']} of {row['syntax_errors_before']}"


def _sweep(found: dict[str, Result], results: Path) -> str:
    if "sweep" not in found:
        return ""
    rows = found["sweep"]["rows"]
    about = (
        "Of every method the amount (in bold) with which most bodies of validation functions parse is the one that the other "
        "tables tell of, on test functions. It is chosen for each order and number of steps, and for each model's weights; "
        "these are the tuned ones'."
    )
    tables = [
        _swept(rows, "k", "K", "K, tokens taken back a step", results / "sweep.svg"),
        _swept(rows, "doubt", "p", "p, below which a token is taken back", results / "doubts.svg"),
    ]
    return "\n\n".join(["## How much to take back", about, *filter(None, tables)])


def _swept(rows: list[Result], name: str, symbol: str, axis: str, figure: Path) -> str:
    """Bodies that parse over one kind of amount, drawn and tabled. Nothing taken back is vanilla, whatever the method."""
    swept = [row for row in rows if row[name]]
    if not swept:
        return ""
    runs = list(dict.fromkeys((row["steps"], row["order"]) for row in swept))
    values = [0, *sorted({row[name] for row in swept})]
    lines: list[list[object]] = []
    panels = {}
    for steps, order in runs:
        here, none = pick(swept, steps=steps, order=order), pick(rows, steps=steps, order=order, k=0, doubt=0)
        panels[f"N = {steps}, {order} order"] = none + here
        for policy in dict.fromkeys(row["policy"] for row in here):
            line = none + pick(here, policy=policy)
            told = {row[name]: _bold(share(row, "parses"), row["chosen"]) for row in line}
            lines.append([steps, order, policy, *(told.get(value, "–") for value in values)])
    _draw_over(name, axis, panels, figure)
    headings = ["N", "order", "method", *(f"{symbol} = {value}" if value else "vanilla" for value in values)]
    return f"![bodies that parse over {symbol}]({figure.name})\n\n{table(headings, lines)}"


def _draw_over(name: str, axis: str, panels: dict[str, list[Result]], figure: Path) -> None:
    """Bodies that parse over an amount, a curve for each method; the one that takes nothing back begins every curve."""
    with Figure(figure, len(panels)) as axes:
        for ax, (title, rows) in zip(axes, panels.items(), strict=True):
            ax.sharey(axes[0])
            none, some = ([row for row in rows if bool(row[name]) is taken] for taken in (False, True))
            for policy in dict.fromkeys(row["policy"] for row in some):
                line = none + sorted(pick(some, policy=policy), key=lambda row: row[name])
                colour, dash = STYLE[policy]
                ax.plot(
                    [row[name] for row in line], [100 * row["parses"] for row in line], dash, color=colour, label=policy
                )
            values = sorted({row[name] for row in rows})
            ax.set(title=title, xlabel=axis, ylabel="bodies that parse %", xticks=values)
        axes[0].legend(fontsize=7)


def _bold(words: str, strong: bool) -> str:
    return f"**{words}**" if strong else words


def _transfer(found: dict[str, Result], results: Path) -> str:
    if "transfer" not in found:
        return ""
    rows = found["transfer"]["rows"]
    orders = list(dict.fromkeys(row["order"] for row in rows))
    with Figure(results / "transfer.svg", len(orders), (4.6 * len(orders), 4.2)) as axes:
        for ax, order in zip(axes, orders, strict=True):
            bars = pick(rows, order=order)[::-1]
            names = [f"{row['who']}\n{row['method']}, {row['nfe']:.0f} passes" for row in bars]
            reach = [[abs(row["sound"] - bound) * 100 for bound in row["sound_interval"]] for row in bars]
            colours = [STYLE[_policy(row)][0] for row in bars]
            ax.barh(names, [100 * row["sound"] for row in bars], xerr=list(zip(*reach, strict=True)), color=colours)
            ax.tick_params(axis="y", labelsize=6)
            ax.set(title=f"{order} order", xlabel="sound bodies %")
    lines = [
        [
            row["order"],
            row["who"],
            row["method"],
            row["steps"],
            f"{row['nfe']:.0f}",
            share(row, "sound"),
            gain(row, "gain"),
            _repaired(row),
            row["changes"]["broken"],
        ]
        for row in rows
    ]
    headings = ["order", "who", "method", "steps", "forward passes", "sound %", "over the same writer's vanilla"]
    headings += ["syntax errors repaired", "introduced"]
    return (
        "## A corrector for a backbone it was not tuned with\n\nA is the model with PRISM's head; B is what its backbone was "
        "before it learnt for the last time. Judged by A, every step takes two forward passes: beside the same number of steps "
        f"stands the same number of passes.\n\n![transfer](transfer.svg)\n\n{table(headings, lines)}"
    )


def _blocks(found: dict[str, Result], results: Path) -> str:
    if "blocks" not in found:
        return ""
    rows = sorted(found["blocks"]["rows"], key=lambda row: -row["steps"])
    lines = [[row["steps"], row["policy"], _in_block(row), *_tellings(row)] for row in rows]
    headings = ["steps", "method", "taken back", "sound %", "parses %", "sound, over vanilla", "remasks"]
    about = (
        f"Blocks of {found['blocks']['block']} tokens, in each of which a method takes back K_block, or all less probable than "
        "p; masks are committed by confidence."
    )
    drawn = ""
    if len({row["k_block"] for row in rows}) > 2:
        counted = [row for row in rows if row["k_block"] or row["policy"] == "vanilla"]
        panels = {f"N = {steps}": pick(counted, steps=steps) for steps in dict.fromkeys(row["steps"] for row in rows)}
        _draw_over("k_block", "K_block, tokens taken back in each block", panels, results / "blocks.svg")
        drawn = "![bodies that parse over K_block](blocks.svg)\n\n"
    return f"## Written from left to right\n\n{about}\n\n{drawn}{table(headings, lines)}"


def _caches(found: dict[str, Result], results: Path) -> str:
    if "caches" not in found:
        return ""
    rows = found["caches"]["rows"]
    lines = [[row["policy"], _in_block(row), row["cache"], *_tellings(row)] for row in rows]
    headings = ["method", "taken back", "cache", "sound %", "parses %", "sound, over no cache", "remasks"]
    about = (
        f"The same blocks, {rows[0]['steps']} forward passes, with a cache that computes everything when a block begins and "
        "then only the block (dual) or the block and what follows (prefix)."
    )
    return f"## What a cache costs\n\n{about}\n\n{table(headings, lines)}"


def _in_block(row: Result) -> str:
    doubt = row.get("doubt", 0)
    return f"K_block = {row['k_block']}" if row["k_block"] else f"p < {doubt:g}" if doubt else "–"


def _tellings(row: Result) -> list[str]:
    return [share(row, "sound"), share(row, "parses"), gain(row, "gain"), f"{row['remasks']:.0f}"]


def _solved(found: dict[str, Result], results: Path) -> str:
    rows = sorted(_rows(found, "solved"), key=lambda row: row["tasks_of"])
    if not rows:
        return ""
    lines = [
        [
            row["tasks_of"],
            row["steps"],
            row["order"],
            row["method"],
            f"{row['asked']} of {row['tasks']}",
            share(row, "pass@1"),
            row["syntax_errors"],
            row["undefined_names"],
        ]
        for row in rows
    ]
    headings = ["tasks of", "steps", "order", "method", "asked", "solved %", "syntax errors", "with undefined names"]
    about = (
        "Signature and docstring are given; MBPP's words stand as the docstring of the published solution's signature. "
        "Programs were run in a sandbox, one for each task. A task whose prompt is longer than "
        "the model reads is not asked, and not solved."
    )
    return f"## Tasks solved\n\n{about}\n\n{table(headings, lines)}"


def _training(found: dict[str, Result], results: Path) -> str:
    if "training" not in found:
        return ""
    lines = [
        [name, story["chosen"]["step"], f"{story['chosen']['loss']:.4f}", f"{story['record']['wall_seconds']:.0f}"]
        for name, story in found["training"]["models"].items()
    ]
    return f"## Training\n\n{table(['model', 'step chosen', 'held-out loss', 'seconds'], lines)}"


def _corpus(found: dict[str, Result], results: Path) -> str:
    if "corpus" not in found:
        return ""
    told = found["corpus"]
    packages, functions = Counter[str](), Counter[str]()
    for about in told["packages"].values():
        packages[about["licence"]] += 1
        functions[about["licence"]] += about["functions"]
    lines = [[licence, count, f"{functions[licence]:,}"] for licence, count in packages.most_common()]
    sides = ", ".join(f"{split['functions']:,} for {side}" for side, split in told["splits"].items())
    dropped = ", ".join(f"{count:,} {why}" for why, count in told["dropped"].items())
    about = (
        f"{len(told['packages']):,} packages, each on one side (functions: {sides}); {len(told['left_out']):,} were left out, "
        f"whose metadata names no permissive licence. Dropped as like another or a published solution: {dropped}. Packages, "
        "versions and licences, one by one: [corpus.json](corpus.json)."
    )
    return f"## Whose functions they are\n\n{about}\n\n{table(['licence', 'packages', 'functions'], lines)}"


SECTIONS: tuple[Section, ...] = (
    note,
    _rivals,
    _methods,
    _steps,
    _sweep,
    _heads,
    _asked,
    _blocks,
    _caches,
    _solved,
    _corrections,
    _transfer,
    _training,
    _corpus,
    provenance,
)
