"""What the pages about texts share: who is likelier and nearer to the data, where the figures come from, and a page to read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import indent, wrap

from prism.recipes.reproduce.report import Result, setting, table, with_interval
from prism.recipes.reproduce.strengths import NEAR

MAUVES = {"mauve": "MAUVE", "mauve_of_means": "MAUVE of means"}
"""By the last hidden state of a text, as published, and by the mean of them all."""
RIVALS = (
    "Within that, PRISM may be the less diverse of the two: at one entropy they are compared further below. MAUVE is told "
    "where it was measured of both."
)
"""What to know of a `rivals_table`."""


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
    (low, high), (other_low, other_high) = (row[f"{name}_interval"] for row in (higher, lower))
    answer = "yes" if higher[name] > lower[name] else "no"
    return answer if low > other_high or high < other_low else f"{answer}, intervals overlap"


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


def beside_rivals(rows: Sequence[Result]) -> list[tuple[Result, Result | None]]:
    """Every rival at its likeliest setting of all, whatever its entropy, and PRISM's likeliest that is as diverse as that."""
    best: dict[str, Result] = {}
    for row in sorted(rows, key=lambda row: float(row["nll"])):
        best.setdefault(row["method"], row)
    ours = [row for row in rows if row["method"] == "prism"]
    pairs = []
    for rival in (row for name, row in best.items() if name != "prism"):
        near = [row for row in ours if abs(row["entropy"] - rival["entropy"]) <= NEAR]
        pairs.append((rival, min(near, key=lambda row: float(row["nll"]), default=None)))
    return pairs


def rivals_table(by_steps: Mapping[int, Sequence[Result]], name: str, title: str) -> str:
    """PRISM within 0.1 nats of the entropy of every rival's likeliest texts; `name` is what likelihood is shown by."""
    lines = []
    for steps, rows in by_steps.items():
        for rival, ours in beside_rivals(rows):
            theirs = [rival["method"], setting(rival), with_interval(rival, name), f"{rival['entropy']:.3f}"]
            if ours is None:
                away = (row["entropy"] for row in rows if row["method"] == "prism")
                nearest = min(away, key=lambda entropy: abs(entropy - rival["entropy"]))
                mine = [f"none, the nearest has {nearest:.3f}", *["–"] * (3 + len(MAUVES))]
            else:
                higher = [_above(ours, rival, one) if one in ours and one in rival else "–" for one in MAUVES]
                mine = [setting(ours), with_interval(ours, name), f"{ours['entropy']:.3f}"]
                mine += [_above(rival, ours, name), *higher]
            lines.append([steps, *theirs, *mine])
    headings = ["N", "rival", "its likeliest setting", title, "entropy", f"PRISM within {NEAR} nats of that entropy"]
    headings += [title, "entropy", "PRISM likelier", *(f"{one} higher" for one in MAUVES.values())]
    return table(headings, lines)


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
