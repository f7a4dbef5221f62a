"""What self-correction does to code: pairs of bodies for the same prompts, written without it and with it.

The paper shows by examples that PRISM mends syntax; here every pair is counted, mended and broken alike, and shown as a diff.
"""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np

from prism.data.code import Task
from prism.data.functions import Function
from prism.evaluation.extraction import extract, syntax_error
from prism.evaluation.functions import FunctionsRun, Verdict
from prism.evaluation.record import SURROGATES_ESCAPED
from prism.evaluation.statistics import paired_difference


class Change(Enum):
    """What became of a body; the first that holds."""

    REPAIRED = "a syntax error repaired"
    BROKEN = "a syntax error introduced"
    DEFINED = "undefined names gone"
    UNDEFINED = "undefined names introduced"
    EMPTIED = "a body that did something made trivial"
    FILLED = "a trivial body made to do something"
    SPOILT = "the original changed into something else"
    SAME = "not one character changed"
    OTHER = "changed, and as good or bad as before"

    @property
    def over_correction(self) -> bool:
        """Whether something was lost that had been right."""
        return self in (Change.BROKEN, Change.UNDEFINED, Change.EMPTIED, Change.SPOILT)


@dataclass(frozen=True)
class Correction:
    """One prompt, written twice."""

    function: Function
    before: str
    after: str
    was: Verdict
    became: Verdict

    @property
    def change(self) -> Change:
        was, became = self.was, self.became
        found = {
            Change.REPAIRED: became.parses and not was.parses,
            Change.BROKEN: was.parses and not became.parses,
            Change.DEFINED: was.parses and bool(was.undefined) and became.defined,
            Change.UNDEFINED: was.defined and bool(became.undefined),
            Change.EMPTIED: became.trivial and was.parses and not was.trivial,
            Change.FILLED: was.trivial and became.parses and not became.trivial,
            Change.SPOILT: was.exact and not became.exact,
            Change.SAME: self.before == self.after,
        }
        return next((change for change, holds in found.items() if holds), Change.OTHER)

    def diff(self) -> str:
        """The whole function in the unified form."""
        before, after = (f"{self.function.prompt}{body}".splitlines() for body in (self.before, self.after))
        longest = max(len(before), len(after))
        return "\n".join(difflib.unified_diff(before, after, "before", "after", lineterm="", n=longest))


def corrections(before: FunctionsRun, after: FunctionsRun) -> list[Correction]:
    """The pairs of two runs over the same functions."""
    if list(before.functions) != list(after.functions):
        raise ValueError("The two runs wrote different functions; compare runs over the same ones in the same order.")
    parts = (before.functions, before.bodies, after.bodies, before.verdicts, after.verdicts)
    return [Correction(*pair) for pair in zip(*parts, strict=True)]


def solutions(tasks: Sequence[Task], completions: Mapping[str, Sequence[str]]) -> FunctionsRun:
    """The first completion of every task of a benchmark as such a run: whole programs beside the published solutions."""
    missing = [task.id for task in tasks if not completions.get(task.id)]
    if missing:
        raise ValueError(f"{len(missing)} of {len(tasks)} tasks have no completion, {missing[0]} the first.")
    functions = [Function(task.id, "", task.entry_point, 1, "", task.solution, documented=True) for task in tasks]
    return FunctionsRun.of(functions, [extract(completions[task.id][0], task) for task in tasks])


def summary(pairs: Sequence[Correction]) -> dict[str, Any]:
    """What a results file holds."""
    changes = Counter(pair.change for pair in pairs)
    gains = {
        name: paired_difference(
            np.array([getattr(pair.became, name) for pair in pairs], float),
            np.array([getattr(pair.was, name) for pair in pairs], float),
        )
        for name in ("parses", "defined", "sound")
    }
    repaired = [pair for pair in pairs if pair.change is Change.REPAIRED]
    broken = [pair for pair in pairs if pair.change is Change.BROKEN]
    return {
        "functions": len(pairs),
        "syntax_errors_before": sum(not pair.was.parses for pair in pairs),
        "syntax_errors_after": sum(not pair.became.parses for pair in pairs),
        "changes": {change.name.lower(): changes[change] for change in Change},
        "over_corrections": sum(changes[change] for change in Change if change.over_correction),
        **{f"gain_{name}": gain.value for name, gain in gains.items()},
        **{f"gain_{name}_interval": [gain.low, gain.high] for name, gain in gains.items()},
        "errors_repaired": dict(_kinds(pair.function.prompt + pair.before for pair in repaired)),
        "errors_introduced": dict(_kinds(pair.function.prompt + pair.after for pair in broken)),
    }


def by_task(pairs: Sequence[Correction]) -> list[dict[str, Any]]:
    """What became of each function."""
    return [
        {
            "package": pair.function.package,
            "function": pair.function.name,
            "line": pair.function.line,
            "change": pair.change.name.lower(),
            "over_correction": pair.change.over_correction,
        }
        for pair in pairs
    ]


def _kinds(programs: Iterable[str]) -> list[tuple[str, int]]:
    """Complaints without what they quote, the commonest first."""
    errors = (syntax_error(program) or "" for program in programs)
    return Counter(re.sub(r"'[^']*'|\d+", "…", error) for error in errors).most_common()


def page(title: str, pairs: Sequence[Correction], most: int = 20) -> str:
    """Markdown: the counts, then up to `most` pairs of each kind of change as diffs."""
    counts = Counter(pair.change for pair in pairs)
    lines = [
        f"# {title}",
        "",
        f"{len(pairs):,} functions, each written twice.",
        "",
        "| change | functions | |",
        "|---|---|---|",
    ]
    for change in Change:
        lines.append(f"| {change.value} | {counts[change]} | {'over-correction' * change.over_correction} |")
    for change in (change for change in Change if change is not Change.SAME and counts[change]):
        chosen = [pair for pair in pairs if pair.change is change]
        lines += ["", f"## {change.value.capitalize()}: {counts[change]}"]
        if len(chosen) > most:
            lines += ["", f"The first {most}:"]
        for pair in chosen[:most]:
            lines += [
                "",
                f"### {pair.function.package}: {pair.function.name}",
                "",
                *_complaints(pair),
                *_fenced(pair.diff()),
            ]
    text = "\n".join(lines) + "\n"
    return text.encode("utf-8", SURROGATES_ESCAPED).decode("utf-8")


def _complaints(pair: Correction) -> list[str]:
    said = []
    for word, body, verdict in (("before", pair.before, pair.was), ("after", pair.after, pair.became)):
        if not verdict.parses:
            said.append(f"{word}: {syntax_error(pair.function.prompt + body)}")
        elif verdict.undefined:
            said.append(f"{word}: undefined {', '.join(verdict.undefined)}")
    return [f"*{'; '.join(said)}*", ""] if said else []


def _fenced(diff: str) -> list[str]:
    fence = "```"
    while fence in diff:
        fence += "`"
    return [f"{fence}diff", diff, fence]
