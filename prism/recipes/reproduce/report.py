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


def found_in(results: Path) -> dict[str, Result]:
    """The results of a folder by name."""
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(results.glob("*.json"))}


def write_page(results: Path, about: str, sections: Sequence[Section]) -> Path:
    """`results/README.md`: what it is about, and what the sections find in `results/*.json`."""
    found = found_in(results)
    page, parts = results / "README.md", [about, *(section(found, results) for section in sections)]
    page.write_text("\n\n".join(filter(None, parts)) + "\n", encoding="utf-8")
    return page


def table(headings: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    assert all(len(row) == len(headings) for row in rows), f"a row of another width than {headings}"
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join(f"| {' | '.join(str(cell) for cell in line)} |" for line in lines)


def pick(rows: Sequence[Result], **wanted: object) -> list[Result]:
    return [row for row in rows if all(row[name] == value for name, value in wanted.items())]


def with_interval(row: Result, name: str, decimals: str = ".3f") -> str:
    low, high = row[f"{name}_interval"]
    return f"{row[name]:{decimals}} [{low:{decimals}}, {high:{decimals}}]"


def setting(row: Result) -> str:
    """How a row was sampled."""
    given = row["sampling"]
    parts = [f"p={row['nucleus']:g}"]
    parts += [f"η={given['eta']:.3g}"] if given.get("eta") is not None else []
    parts += [f"from {given['on']:g}"] if given.get("on") is not None else []
    parts += [f"by {given['order']}"] if given.get("order") is not None else []
    return ", ".join(parts)


def note(found: dict[str, Result], results: Path) -> str:
    """What a reader should know before the first figure, if anyone wrote it down."""
    return str(found.get("provenance", {}).get("note", ""))


def provenance(found: dict[str, Result], results: Path) -> str:
    """What the files say of their runs; and of `provenance.json`, written by people where there is something to tell: what was
    done by hand, and whose models and data were used."""
    told = found.get("provenance", {})
    made = {name: records for name, result in found.items() if (records := _records(result))}
    if not made:
        return ""
    by_hand = told.get("by_hand", {})
    headings = ["file", "made", "on", "commit", *(["by hand"] if by_hand else [])]
    lines = [
        [
            f"`{name}.json`",
            " and ".join(dict.fromkeys(record["date"][:16].replace("T", " ") for record in records)),
            " and ".join(dict.fromkeys(record["device"] for record in records)),
            " and ".join(dict.fromkeys(_commit(record["commit"]) for record in records)),
            *([by_hand.get(name, "")] if by_hand else []),
        ]
        for name, records in made.items()
    ]
    unknown = [name for name, records in made.items() if any(record["commit"] is None for record in records)]
    changed = [
        name for name, records in made.items() if any((record["commit"] or "").endswith("+") for record in records)
    ]
    sentences = [
        "Every file holds the settings, versions, device and date of its run.",
        _listed("No commit is recorded (the code was run outside of a checkout) in", unknown),
        _listed("Run from a commit with changes that were not committed", changed),
        _listed("Put together or changed by hand", [name for name in made if name in by_hand]),
    ]
    page = "## Where the figures come from\n\n" + " ".join(filter(None, sentences))
    page += "\n\n" + table(headings, lines)
    sources = [[one["what"], one["which"], one["licence"]] for one in told.get("sources", [])]
    return page + (f"\n\n{table(['used', 'which', 'licence'], sources)}" if sources else "")


def _records(result: Result) -> list[Result]:
    """Of the run that made a result, or of those that made the models it tells of."""
    return [result["record"]] if "record" in result else [one["record"] for one in result.get("models", {}).values()]


def _commit(commit: str | None) -> str:
    if commit is None:
        return "not recorded"
    return f"`{commit[:7]}`" + (" with changes" if commit.endswith("+") else "")


def _listed(title: str, names: Sequence[str]) -> str:
    return f"{title}: {', '.join(f'`{name}`' for name in names)}." if names else ""


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


def with_room(panels: int) -> tuple[float, float]:
    """The size of a figure that has a `legend_beside` its panels."""
    return 4.2 * panels + 2.4, 4.6


def legend_beside(axes: Sequence[Axes]) -> None:
    """One for all panels, to the right of them, where it hides no data."""
    handles: dict[str, Any] = {}
    for ax in axes:
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    axes[0].figure.legend(list(handles.values()), list(handles), loc="outside right center", fontsize=7)


def knowledge(found: dict[str, Result], results: Path) -> str:
    """What a study of text found with `knowledge_of`."""
    if "knowledge" not in found:
        return ""
    knowledge_figure(found["knowledge"], results / "knowledge.svg")
    return f"## Does the head know?\n\n![calibration](knowledge.svg)\n\n{knowledge_table(found['knowledge'])}"


def knowledge_figure(result: Result, path: Path) -> None:
    """Of the first run: reliability by time, and quality beside entropy; between them, where true texts were at hand,
    reliability on tokens drawn into those."""
    method, run = next(iter(result["runs"].items()))
    drawn = result.get("detection")
    with Figure(path, 2 if drawn is None else 3) as axes:
        for number, (name, curve) in enumerate(fifths(run)):
            label = f"{name} written, ECE {curve['ece']:.3f}"
            axes[0].plot(curve["predicted"], curve["observed"], ".-", color=str(0.8 - 0.2 * number), label=label)
        title = "without remasking" if method == "vanilla" else f"while {method} writes"
        axes[0].set(title=title, xlabel="quality", ylabel="f(token | rest)")
        if drawn is not None:
            curve = drawn["against_truth"]
            axes[1].plot(curve["predicted"], curve["observed"], ".-", color="tab:red", label=f"ECE {curve['ece']:.3f}")
            axes[1].set(title="tokens drawn into true texts", xlabel="quality", ylabel="share that are the text's own")
        for ax in axes[:-1]:
            ax.plot([0, 1], [0, 1], ":", color="0.7")
            ax.legend(fontsize=6)
        scatter = run["scatter"]
        axes[-1].scatter(scatter["quality"], scatter["entropy"], s=2, alpha=0.4, color="tab:red")
        axes[-1].set(title="quality and entropy", xlabel="quality", ylabel="entropy of f, nats")


def fifths(run: Result) -> list[tuple[str, Result]]:
    """Of the way from all masks to none: those the run had tokens in, by name."""
    named = [(f"{20 * n}–{20 * n + 20} %", curve) for n, curve in enumerate(run["by_fifth_filled"])]
    return [(name, curve) for name, curve in named if curve["count"]]


def knowledge_table(result: Result) -> str:
    """In figures: how far quality is from the likelihood it stands for, in all and by time, and whether it finds what is
    wrong."""
    lines = [
        [
            name,
            f"{run['against_likelihood']['ece']:.3f}",
            ", ".join(f"{curve['ece']:.3f}" if curve["count"] else "–" for curve in run["by_fifth_filled"]),
            run["tokens"],
        ]
        for name, run in result["runs"].items()
    ]
    fifths = "the same in each fifth of the run, from all masks to none"
    scores = ", ".join(f"{name} {value:.3f}" for name, value in result["detection"]["auroc"].items())
    return (
        table(["run", "ECE against f(token given the rest)", fifths, "tokens"], lines)
        + f"\n\nAUROC of finding the tokens that are not the text's own: {scores}."
    )
