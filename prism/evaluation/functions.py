"""Written bodies of functions, judged without running them: are they Python, and do they use only names that exist?

Both are easily reached by writing little, so what guards against that stands beside them: bodies that do nothing are counted
apart, and length, variety and repetition are told. `sound` is the figure to compare by: parses, uses nothing undefined, does
something.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import numpy as np

from prism.data.code import parsed
from prism.data.functions import Def, Function, is_trivial
from prism.evaluation.extraction import parses, undefined_names
from prism.evaluation.statistics import Interval, bootstrap_mean, rate


@dataclass(frozen=True)
class Verdict:
    """What can be said of one body."""

    parses: bool
    undefined: tuple[str, ...]
    """Names used and nowhere defined, but for those that the original takes from its module; none where it does not parse."""
    trivial: bool
    """It parses and does nothing: passes, returns None, or is not there at all."""
    exact: bool
    """It is the original, but for layout and comments."""
    lines: int
    """That are not blank."""
    repeated: float
    """The share of those that it has written before."""

    @property
    def defined(self) -> bool:
        return self.parses and not self.undefined

    @property
    def sound(self) -> bool:
        return self.defined and not self.trivial


def judge(function: Function, body: str) -> Verdict:
    """The body as it was written after the function's prompt; nothing is repaired or cut off."""
    program, lines = function.prompt + body, [line.strip() for line in body.splitlines() if line.strip()]
    tree = parsed(program) if parses(program) else ast.Module([], [])
    written = next((node for node in tree.body if isinstance(node, Def)), None)  # only imports stand before it
    known = {*function.unknown, *undefined_names(function.text)}  # pyflakes also reads annotations in quotes
    return Verdict(
        parses=parses(program),
        undefined=tuple(name for name in undefined_names(program) if name not in known),
        trivial=written is not None and is_trivial(written),
        exact=ast.dump(tree) == ast.dump(parsed(function.text)),
        lines=len(lines),
        repeated=1 - len(set(lines)) / len(lines) if lines else 0.0,
    )


@dataclass(frozen=True)
class FunctionsRun:
    """One way of writing and what became of each function."""

    functions: Sequence[Function]
    bodies: Sequence[str]
    verdicts: Sequence[Verdict]

    @staticmethod
    def of(functions: Sequence[Function], bodies: Sequence[str]) -> FunctionsRun:
        if len(functions) != len(bodies) or not functions:
            raise ValueError(
                f"{len(bodies)} bodies for {len(functions)} functions; give one for each, and at least one."
            )
        return FunctionsRun(functions, bodies, [judge(f, body) for f, body in zip(functions, bodies, strict=True)])

    def share(self, having: Callable[[Verdict], bool]) -> Interval:
        return rate(sum(map(having, self.verdicts)), len(self.verdicts))

    def summary(self) -> dict[str, Any]:
        """What a results file holds."""
        shares = {name: self.share(attrgetter(name)) for name in ("parses", "defined", "sound", "trivial", "exact")}
        lines = bootstrap_mean(np.array([verdict.lines for verdict in self.verdicts], float))
        originals = [len([line for line in f.body.splitlines() if line.strip()]) for f in self.functions]
        return {
            "functions": len(self.verdicts),
            **{name: share.value for name, share in shares.items()},
            **{f"{name}_interval": [share.low, share.high] for name, share in shares.items()},
            "lines": lines.value,
            "lines_interval": [lines.low, lines.high],
            "lines_of_the_originals": float(np.mean(originals)),
            "distinct_bodies": len({body.strip() for body in self.bodies}) / len(self.bodies),
            "distinct_lines": _distinct_lines(self.bodies),
            "repeated_lines": float(np.mean([verdict.repeated for verdict in self.verdicts])),
        }


def _distinct_lines(bodies: Sequence[str]) -> float:
    """The share of different lines among all lines of all bodies."""
    lines = [line.strip() for body in bodies for line in body.splitlines() if line.strip()]
    return len(set(lines)) / len(lines) if lines else 0.0
