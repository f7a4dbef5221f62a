"""What the pages about texts share: who is likelier and nearer to the data, and a page to read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import indent, wrap

from prism.recipes.reproduce.report import Result, table, with_interval
from prism.recipes.reproduce.strengths import NEAR

MAUVES = {"mauve": "MAUVE", "mauve_of_means": "MAUVE of means"}
"""By the last hidden state of a text, as published, and by the mean of them all."""


def with_mauve(found: dict[str, Result], rows: Sequence[Result]) -> list[Result]:
    """The rows, and the MAUVE of those that have one by now."""
    scores = {row["name"]: row for row in found.get("mauve", {}).get("rows", [])}
    return [scores.get(row["name"], {}) | row for row in rows]


def verdicts(rows: Sequence[Result], entropy: float) -> list[Result]:
    """PRISM against every rival with as many steps: whether its texts are likelier and nearer to the data, and whether it is
    no less diverse than allowed: within 0.1 nats of the data or of the rival."""
    prism = next(row for row in rows if row["method"] == "prism")
    return [
        {
            "rival": row["method"],
            "likelier": _above(row, prism, "nll"),
            **{name: _above(prism, row, name) if name in prism and name in row else "–" for name in MAUVES},
            "entropy": row["entropy"],
            "diverse": min(abs(prism["entropy"] - other) for other in (entropy, row["entropy"])) <= NEAR,
        }
        for row in rows
        if row is not prism
    ]


def _above(higher: Result, lower: Result, name: str) -> str:
    """Whether one figure lies above another, and whether their intervals leave no doubt."""
    if higher[name] <= lower[name]:
        return "no"
    return "yes" if higher[f"{name}_interval"][0] > lower[f"{name}_interval"][1] else "yes, intervals overlap"


def verdict_table(by_steps: Mapping[int, Sequence[Result]], entropy: float) -> str:
    """PRISM against every rival, of rows by their number of steps."""
    lines = [
        [
            steps,
            one["rival"],
            one["likelier"],
            *(one[name] for name in MAUVES),
            "yes" if one["diverse"] else "no",
            f"{one['entropy']:.3f}",
        ]
        for steps, rows in by_steps.items()
        for one in verdicts(rows, entropy)
    ]
    diverse = f"entropy within {NEAR} nats of the data's or the rival's"
    higher = [f"{title} higher" for title in MAUVES.values()]
    return table(["N", "PRISM against", "likelier", *higher, diverse, "the rival's entropy"], lines)


def mauves(row: Result) -> list[str]:
    """Both, under the titles of `MAUVES`."""
    return [with_interval(row, name) if name in row else "–" for name in MAUVES]


def write_samples_page(results: Path, title: str, runs: Sequence[tuple[str, Sequence[str]]]) -> str:
    """Texts by the title of their run, in `results/samples.md`; gives what links to it."""
    about = f"# {title}\n\nThe first of every run, as they came."
    page = "\n\n".join([about, *(_quoted(*run) for run in runs)])
    (results / "samples.md").write_text(page + "\n", encoding="utf-8")
    return "## To read\n\n[The first texts of every run.](samples.md)"


def _quoted(title: str, texts: Sequence[str]) -> str:
    """As blocks of code, so that nothing in a text is taken for markup."""
    wrapped = ("\n".join("\n".join(wrap(part, 110)) for part in text.splitlines()) for text in texts)
    return "\n\n".join([f"## {title}", *(indent(text, "    ", lambda part: True) for text in wrapped)])
