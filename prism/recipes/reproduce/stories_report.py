"""The study of known truth to look at and to read: figures and a page of tables, from the result files and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from prism.recipes.reproduce.frontier import BELOW, FRONTIER, draw_frontier, frontier_table, reached, told
from prism.recipes.reproduce.report import (
    STYLE,
    Figure,
    Result,
    Section,
    knowledge,
    knowledge_table,
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
from prism.recipes.reproduce.strengths import NEAR, best_of
from prism.recipes.reproduce.texts_report import (
    MAUVES,
    RIVALS,
    mauves,
    rivals_table,
    verdict_table,
    with_mauve,
    write_samples_page,
)

TUNED_OTHERWISE = {"heads": "with S at random", "likelihood": "with the likelihood loss"}
"""Results of weights that were tuned otherwise than the main ones, and how."""
TUNED = {
    "S-at-random": "a head, S at random",
    "likelihood": "no head, the likelihood loss",
    "likelihood-twice": "no head, the likelihood loss for twice as long",
}
"""What weights of other names than the main ones were tuned to."""
COLOURS = {"S-at-random": "maroon", "likelihood-twice": "black"}
"""In figures, of weights that would else look like others."""
MARKERS = {
    "prism (S-at-random)": "s",
    "prism-entropy (likelihood)": "x",
    "prism-likelihood (likelihood-twice)": "^",
    "prism-entropy (likelihood-twice)": "+",
}
AS_PUBLISHED = "as-published"
"""The one variant that differs from the first in more than one thing."""


def write_report(results: Path) -> Path:
    """`results/*.json` drawn and tabled in `results/README.md`, with the figures beside it."""
    about = (
        "# Text whose truth is known: results\n\nMade by `prism reproduce known-truth` from the JSON files beside this page; "
        "how each of them came about, and what was used, is told at the end. *Excess* is -log p under the truth, in nats a "
        "token, above what the truth's own texts have; *entropy* is that of a text's unigrams; MAUVE is by the truth's hidden "
        "state at the last token of a text, as published with GPT-2's, and by the mean of its states at all tokens, which we "
        "looked at only after the first had been seen. Intervals are 95 %, over samples."
    )
    return write_page(results, about, SECTIONS)


def _label(row: Result) -> str:
    return row["method"] if row["weights"] == "prism" else f"{row['method']} ({row['weights']})"


def _style(label: str) -> tuple[str, str, str]:
    """Colour, line and marker: the method's, and another colour or marker on other weights."""
    method, _, weights = label.partition(" ")
    colour, line = STYLE[method]
    return COLOURS.get(weights.strip("()"), colour), line, MARKERS.get(label, ".")


def _by_steps(found: dict[str, Result]) -> dict[int, Result]:
    """All that was measured with so many steps, on the weights of PRISM and on those tuned otherwise; every row knows the
    result it is `of`."""
    by_steps = {}
    for name, result in found.items():
        kind, _, steps = name.partition("_")
        if kind in ("sweep", "methods"):
            rows = [{**row, "of": name} for row in result["rows"]]
            rows += [
                {**row, "of": other}
                for other in TUNED_OTHERWISE
                for row in found.get(other, {}).get("rows", [])
                if row["steps"] == int(steps)
            ]
            by_steps[int(steps)] = {**result, "rows": rows}
    return dict(sorted(by_steps.items()))


def best_rows(result: Result, *, trained: bool = True) -> list[Result]:
    """Every method's best setting: the most likely text among the settings as diverse as the data. Without `trained`, of PRISM
    and the methods that need no training."""
    rows = [row for row in result["rows"] if trained or row["weights"] == "prism"]
    labels = dict.fromkeys(map(_label, rows))
    return [best_of([row for row in rows if _label(row) == label], result["truth"]["entropy"]) for label in labels]


def main_table(found: dict[str, Result]) -> str:
    """Every method's best setting at the fewest steps, the likeliest first."""
    lines = []
    for steps, result in list(_by_steps(found).items())[:2]:
        for row in sorted(with_mauve(found, best_rows(result)), key=lambda row: row["nll"]):
            lines.append(
                [
                    steps,
                    _label(row),
                    setting(row),
                    f"{row['nfe']:.0f}",
                    with_interval(row, "excess"),
                    with_interval(row, "entropy"),
                    *mauves(row),
                    f"{row['repetition_4']:.3f}",
                    f"{row['remasks']:.0f}",
                ]
            )
        truth, ceiling = result["truth"], found.get("mauve", {}).get("truth", {})
        lines.append(
            [
                *("", "*the truth itself*", "", "", "0"),
                with_interval(truth, "entropy"),
                *mauves(ceiling),
                f"{truth['repetition_4']:.3f}",
            ]
        )
    headings = ["N", "method", "setting", "forward passes", "excess", "entropy", *MAUVES.values()]
    headings += ["repeated 4-grams", "remasks"]
    return table(headings, [[*line, *[""] * (len(headings) - len(line))] for line in lines])


def _main(found: dict[str, Result], results: Path) -> str:
    if not _by_steps(found):
        return ""
    there = {how: _on_another_backbone(found, name) for name, how in TUNED_OTHERWISE.items() if name in found}
    elsewhere = "".join(f" Tuned {how}:{sentence}" for how, sentence in there.items() if sentence)
    return (
        "## Every method's best setting on the same weights\n\nAmong the settings tried, the most likely text whose entropy is "
        f"no more than {NEAR} nats below the data's; of a method that has none, its most diverse. "
        f"It was chosen by these same texts.{elsewhere}\n\n{main_table(found)}"
    )


def _verdict(found: dict[str, Result], results: Path) -> str:
    by_steps = {steps: result for steps, result in _by_steps(found).items() if f"sweep_{steps}" in found}
    if not by_steps:
        return ""
    rows = {steps: with_mauve(found, best_rows(result, trained=False)) for steps, result in by_steps.items()}
    entropy = next(iter(by_steps.values()))["truth"]["entropy"]
    regardless = [
        [steps, row["method"], setting(row), with_interval(row, "excess"), with_interval(row, "entropy")]
        for steps, result in by_steps.items()
        for row in _likeliest(result)
    ]
    return (
        "## PRISM against every method that needs no training\n\nEach at the best of its settings that are no more than "
        f"{NEAR} nats less diverse than the data:\n\n{verdict_table(rows, entropy)}\n\nWhoever does not mind "
        "the loss of diversity finds likelier texts; the four likeliest methods then are:\n\n"
        + table(["N", "method", "setting", "excess", "entropy"], regardless)
        + _beside_rivals(found, by_steps)
    )


def _beside_rivals(found: dict[str, Result], by_steps: dict[int, Result]) -> str:
    """The second reading of equal diversity, by the rival's entropy: among the swept settings, and with other orders."""
    swept = {steps: with_mauve(found, pick(result["rows"], weights="prism")) for steps, result in by_steps.items()}
    told = (
        f"\n\nEach rival at its likeliest setting of all, and PRISM at its likeliest within {NEAR} nats of that rival's "
        f"entropy, chosen by these same texts. {RIVALS}\n\n" + rivals_table(swept, "excess", "excess")
    )
    if "ordered" not in found:
        return told
    ordered: Sequence[Result] = found["ordered"]["rows"]
    methods = {row["method"] for row in ordered}
    both = {
        steps: [row for row in (*rows, *pick(ordered, steps=steps)) if row["method"] in methods]
        for steps, rows in swept.items()
    }
    return (
        f"{told}\n\nThe same where masks may also be committed in order of confidence (see below), for the methods that were "
        f"tried so:\n\n{rivals_table(both, 'excess', 'excess')}"
    )


def _race(found: dict[str, Result], results: Path) -> str:
    by_steps = {steps: found[f"race_{steps}"] for steps in _by_steps(found) if f"race_{steps}" in found}
    if not by_steps:
        return ""
    rows = {steps: with_mauve(found, result["rows"]) for steps, result in by_steps.items()}
    lines = [
        [
            steps,
            _label(row),
            setting(row),
            with_interval(row, "excess"),
            with_interval(row, "entropy"),
            *mauves(row),
        ]
        for steps, some in rows.items()
        for row in some
    ]
    first = next(iter(by_steps.values()))
    against = {steps: [row for row in some if row["weights"] == "prism"] for steps, some in rows.items()}
    headings = ["N", "method", "setting", "excess", "entropy", *MAUVES.values()]
    return (
        f"## The best of them again\n\nNew texts, {first['rows'][0]['samples']:,} of each, so that nothing was chosen by them. "
        "MAUVE, with more texts, is told by more clusters and comes out lower.\n\n"
        + table(headings, lines)
        + f"\n\n{verdict_table(against, first['truth']['entropy'])}"
    )


def _likeliest(result: Result, count: int = 4) -> list[Result]:
    """The likeliest methods, each at its likeliest setting, whatever its entropy."""
    best: dict[str, Result] = {}
    for row in sorted(result["rows"], key=lambda row: row["nll"]):
        if row["weights"] == "prism":
            best.setdefault(row["method"], row)
    return list(best.values())[:count]


def _texts(found: dict[str, Result], results: Path) -> str:
    if "texts" not in found:
        return ""
    told = found["texts"]["runs"]
    rows = [row for result in _by_steps(found).values() for row in best_rows(result) if row["name"] in told]
    runs = [(f"{_label(row)}, {row['steps']} forward passes, {setting(row)}", told[row["name"]]) for row in rows]
    return write_samples_page(
        results, "Text whose truth is known: texts", [("The truth", found["texts"]["truth"]), *runs]
    )


def _steps(found: dict[str, Result], results: Path) -> str:
    by_steps = _by_steps(found)
    if not by_steps:
        return ""
    lines: dict[str, list[tuple[int, Result]]] = {}
    for steps, result in by_steps.items():
        for row in with_mauve(found, best_rows(result)):
            lines.setdefault(_label(row), []).append((steps, row))
    titles = {"excess": "excess, nats a token", "entropy": "entropy, nats", **MAUVES}
    rows = [row for points in lines.values() for _, row in points]
    shown = {name: title for name, title in titles.items() if any(name in row for row in rows)}
    with Figure(results / "steps.svg", len(shown), with_room(len(shown))) as axes:
        for label, points in lines.items():
            colour, line, marker = _style(label)
            for ax, what in zip(axes, shown, strict=True):
                known = [(steps, row[what]) for steps, row in points if what in row]
                if known:
                    ax.plot(*zip(*known, strict=True), line, color=colour, label=label, marker=marker, markersize=5)
                ax.set(xlabel="N", ylabel=shown[what], xscale="log")
                ax.set_xticks(list(by_steps), [str(steps) for steps in by_steps])
                ax.minorticks_off()
        truth = next(iter(by_steps.values()))["truth"]["entropy"]
        axes[1].axhline(truth, color="0.7", linewidth=0.8)
        legend_beside(axes)
    more = [steps for steps in by_steps if f"methods_{steps}" in found]
    others = {steps: _on_another_backbone(found, f"methods_{steps}") for steps in more}
    return (
        "## More forward passes\n\nWhere not every setting was tried, the one that was best with fewer, taking a token back "
        "as often in a run, whatever its entropy then."
        + "".join(f" N = {steps}:{sentence}" for steps, sentence in others.items() if sentence)
        + "\n\n![excess, entropy and MAUVE over forward passes](steps.svg)"
        + (f"\n\n{_steps_table(found, {steps: by_steps[steps] for steps in more})}" if more else "")
    )


def _steps_table(found: dict[str, Result], by_steps: dict[int, Result]) -> str:
    """Where not every setting was tried; which training of the backbone a row is of, and which head."""
    lines = [
        [
            steps,
            row["method"],
            _tuned_to(found, row),
            _backbone(found, row["of"]),
            setting(row),
            with_interval(row, "excess"),
            with_interval(row, "entropy"),
            *mauves(row),
        ]
        for steps, result in by_steps.items()
        for row in sorted(with_mauve(found, best_rows(result)), key=lambda row: float(row["nll"]))
    ]
    here = found.get("training", {}).get("models", {}).get("pretrained")
    main = f"; that of the tables above has {here['chosen']['loss']:.4f}" if here else ""
    headings = ["N", "method", "tuned", "backbone", "setting", "excess", "entropy", *MAUVES.values()]
    return (
        f"A backbone is named by the day it was trained and its held-out loss{main}. Methods that need no head run on the "
        f"backbone as it was trained.\n\n{table(headings, lines)}"
    )


def _tuned_to(found: dict[str, Result], row: Result) -> str:
    """What a row's method needed beyond the backbone."""
    if row["weights"] != "prism":
        return TUNED[row["weights"]]
    if row["method"] != "prism":
        return "–"
    model = found.get("training", {}).get("models", {}).get("prism")
    return "a head" + (_rule(model["loss"]) if model else "")


def _backbone(found: dict[str, Result], name: str) -> str:
    made = found[name]["record"]["model"].get("backbone")
    return f"{made['trained'][:10]}, {made['held_out_loss']:.4f}" if made else "–"


def _frontier(found: dict[str, Result], results: Path) -> str:
    swept = {
        steps: {label: [row for row in result["rows"] if _label(row) == label] for label in map(_label, result["rows"])}
        for steps, result in _by_steps(found).items()
        if f"sweep_{steps}" in found
    }
    if not swept:
        return ""
    entropy = found[f"sweep_{next(iter(swept))}"]["truth"]["entropy"]
    with Figure(results / "frontier.svg", len(swept), with_room(len(swept))) as axes:
        for ax, (steps, methods) in zip(axes, swept.items(), strict=True):
            for label, rows in methods.items():
                draw_frontier(ax, rows, _style(label)[0], label, "excess", MARKERS.get(label, "o"))
            ax.plot(entropy, 0, "*", color="black", label="the truth")
            ax.set(title=f"{steps} forward passes", xlabel="entropy, nats", ylabel="excess, nats a token")
        legend_beside(axes)
    return (
        "## Likelihood and diversity\n\nEvery setting tried; likelihood can be bought with diversity, so both are shown. "
        f"{FRONTIER}\n\n![excess against entropy](frontier.svg)\n\n{frontier_table(swept, entropy, BELOW)}"
    )


def _knowledge_at_random(found: dict[str, Result], results: Path) -> str:
    if "knowledge_at_random" not in found:
        return ""
    elsewhere = _on_another_backbone(found, "knowledge_at_random")
    return f"The head that learnt with S at random:{elsewhere}\n\n{knowledge_table(found['knowledge_at_random'])}"


def _listed(name: str, title: str, about: str) -> Section:
    def section(found: dict[str, Result], results: Path) -> str:
        if name not in found:
            return ""
        rows: Sequence[Result] = found[name]["rows"]
        lines = [
            [
                _way(row),
                row["method"],
                setting(row),
                row["steps"],
                with_interval(row, "excess"),
                with_interval(row, "entropy"),
                f"{row['remasks']:.0f}",
            ]
            for row in rows
        ]
        headings = ["weights", "method", "setting", "N", "excess", "entropy", "remasks"]
        return f"## {title}\n\n{about}{_on_another_backbone(found, name)}\n\n{table(headings, lines)}"

    return section


def _ablations(found: dict[str, Result], results: Path) -> str:
    if "ablations" not in found:
        return ""
    rows: Sequence[Result] = found["ablations"]["rows"]
    first = pick(rows, weights="variant-S-at-random", method="prism")
    lines = [
        [
            _way(row),
            row["steps"],
            row["method"],
            setting(row),
            with_interval(row, "excess"),
            with_interval(row, "entropy"),
            f"{row['nll']:.3f}",
            told(reached(pick(first, steps=row["steps"]), row["entropy"])),
        ]
        for row in rows
    ]
    headings = [
        "weights",
        "N",
        "method",
        "setting",
        "excess",
        "entropy",
        "nats a token",
        "S at random at this entropy",
    ]
    return (
        f"## Other ways to tune\n\n{_ways(rows)} At one strength they are not equally diverse: the last column is what the "
        "first reaches, in nats a token, at the entropy of that row."
        f"{_on_another_backbone(found, 'ablations')}\n\n{table(headings, lines)}"
    )


def _way(row: Result) -> str:
    """The name of a variant; one had another in files of before."""
    return str(row["weights"]).removeprefix("variant-").replace("the-papers", AS_PUBLISHED)


def _ways(rows: Sequence[Result]) -> str:
    """Which variants there are, what each is, and of which there is not all."""
    ours, rivals = ([row for row in rows if (row["method"] == "prism") == own] for own in (True, False))
    first, *others = dict.fromkeys(map(_way, ours))
    sentences = [
        f"Short fine-tunings of the same backbone: `{first}` is a frozen one with an odds head, k = 8, n_y = 4 (the released "
        "code's; the paper has 32 and 1) and S at random."
    ]
    changed = [name for name in others if name != AS_PUBLISHED]
    if changed:
        sentences.append(f"With one thing changed: {', '.join(f'`{name}`' for name in changed)}.")
    if AS_PUBLISHED in others:
        sentences.append(
            f"`{AS_PUBLISHED}`: a block head, the whole backbone, λ = 0.5 and S by confidence as in the paper, k and n_y as in "
            "the released code."
        )
    if rivals:
        beside: dict[str, list[str]] = {}
        for row in rivals:
            beside.setdefault(_way(row), []).append(str(row["steps"]))
        where = ", ".join(f"`{name}` (N = {', '.join(dict.fromkeys(steps))})" for name, steps in beside.items())
        sentences.append(f"P2-self needs no head; it was run on the backbone of {where}.")
    for name in others:
        for steps in dict.fromkeys(row["steps"] for row in ours):
            of_first, of_this = (sum(_way(row) == way for row in pick(ours, steps=steps)) for way in (first, name))
            if of_this < of_first:
                sentences.append(f"Of `{name}` with N = {steps}, {of_this} of {of_first} settings were measured.")
    return " ".join(sentences)


def _on_another_backbone(found: dict[str, Result], name: str) -> str:
    """Weights that were lost are trained anew: a sentence where a result is not of the backbone that the page is about."""
    made, here = found[name]["record"]["model"].get("backbone"), found.get("training", {}).get("models", {})
    if made is None or not here or made["trained"] == here["pretrained"]["record"]["date"]:
        return ""
    return (
        f" Measured on another training of the same backbone ({made['trained'][:10]}, held-out loss "
        f"{made['held_out_loss']:.4f})."
    )


def _rule(loss: Result) -> str:
    """Which masks S are drawn to make y from z, where the loss is PRISM's."""
    rules = {"RandomOrder": "S at random", "TopProbability": "S by confidence"}
    return f", {rules[loss['order']['class']]}" if "order" in loss else ""


def _training(found: dict[str, Result], results: Path) -> str:
    if "training" not in found:
        return ""
    result = found["training"]
    told = "; ".join(
        f"{name}: {model['record']['wall_seconds']:.0f} s, held-out loss {model['chosen']['loss']:.4f}{_rule(model['loss'])}"
        for name, model in (result["models"] | found.get("heads", {}).get("models", {})).items()
    )
    return (
        f"## How the models were made\n\nA corpus of {result['corpus']['tokens'] / 1e6:.0f}M tokens by the truth, whose "
        f"entropy is {result['truth']['nll']:.4f} nats a token. {told}."
    )


SECTIONS: tuple[Section, ...] = (
    note,
    _training,
    _main,
    _verdict,
    _race,
    _frontier,
    _steps,
    knowledge,
    _knowledge_at_random,
    _listed("equal_remasks", "At the same number of remasks", "Strengths set so that all take back about as many."),
    _listed(
        "ordered",
        "Committed in order of confidence",
        "As P2's joint ranking does: the same order for methods that otherwise commit in a random one.",
    ),
    _ablations,
    _listed(
        "phases", "When remasking begins", "PRISM from different moments on, and with η that does not fall with N."
    ),
    _texts,
    provenance,
)
