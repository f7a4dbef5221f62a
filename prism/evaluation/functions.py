"""Written bodies of functions, judged without running them: are they Python, and do they use only names that exist?

Both are easily reached by writing little, so what guards against that stands beside them: bodies that do nothing are counted
apart, and length, variety and repetition are told. `sound` is the figure to compare by: parses, uses nothing undefined, does
something.
"""

from __future__ import annotations

import ast
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from operator import attrgetter
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from prism.data.code import parsed
from prism.data.function_rows import FunctionRows
from prism.data.functions import Def, Function, is_trivial
from prism.data.processes import helpers
from prism.evaluation.extraction import parses, undefined_names
from prism.evaluation.record import Stopwatch
from prism.evaluation.statistics import Interval, bootstrap_mean, rate
from prism.noise import Noise
from prism.sampling.draw import Draw
from prism.sampling.loop import Denoiser, Windowed, generate
from prism.sampling.policy import Policy
from prism.sampling.prepared import Prepared
from prism.state import start


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
    is_python, (known, original) = parses(program), _original(function)
    tree = parsed(program) if is_python else ast.Module([], [])
    functions = [node for node in tree.body if isinstance(node, Def)]  # whole programs may have helpers first
    written = next((node for node in functions if node.name == function.name), functions[0] if functions else None)
    return Verdict(
        parses=is_python,
        undefined=tuple(name for name in undefined_names(program) if name not in known),
        trivial=written is not None and is_trivial(written),
        exact=ast.dump(tree) == original,
        lines=len(lines),
        repeated=1 - len(set(lines)) / len(lines) if lines else 0.0,
    )


@lru_cache(maxsize=4096)
def _original(function: Function) -> tuple[frozenset[str], str]:
    """The names the original takes from its module, and its tree: the same for every body that is written in its place."""
    known = {*function.unknown, *undefined_names(function.text)}  # pyflakes also reads annotations in quotes
    return frozenset(known), ast.dump(parsed(function.text))


@dataclass(frozen=True)
class Cost:
    """What writing took."""

    forwards: Int[np.ndarray, " n"]
    remasks: Int[np.ndarray, " n"]
    flipflops: Int[np.ndarray, " n"]
    seconds: float

    def summary(self) -> dict[str, float]:
        remasks = float(self.remasks.sum())
        return {
            "nfe": float(self.forwards.mean()),
            "remasks": float(self.remasks.mean()),
            "flipflop_rate": float(self.flipflops.sum()) / remasks if remasks else 0.0,
            "seconds": self.seconds,
        }


@dataclass(frozen=True)
class FunctionsRun:
    """One way of writing and what became of each function."""

    functions: Sequence[Function]
    bodies: Sequence[str]
    verdicts: Sequence[Verdict]
    cost: Cost | None = None
    """None for bodies that came from elsewhere."""

    @staticmethod
    def of(functions: Sequence[Function], bodies: Sequence[str], cost: Cost | None = None) -> FunctionsRun:
        return FunctionsRun(functions, bodies, _judged(_pairs(functions, bodies)), cost)

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
            **({} if self.cost is None else self.cost.summary()),
        }


def _distinct_lines(bodies: Sequence[str]) -> float:
    """The share of different lines among all lines of all bodies."""
    lines = [line.strip() for body in bodies for line in body.splitlines() if line.strip()]
    return len(set(lines)) / len(lines) if lines else 0.0


Pair = tuple[Function, str]
"""A function and a body for it."""


def _pairs(functions: Sequence[Function], bodies: Sequence[str]) -> list[Pair]:
    if len(functions) != len(bodies) or not functions:
        raise ValueError(f"{len(bodies)} bodies for {len(functions)} functions; give one for each, and at least one.")
    return list(zip(functions, bodies, strict=True))


def _judged(pairs: Sequence[Pair]) -> list[Verdict]:
    return [judge(function, body) for function, body in pairs]


class Jury:
    """`FunctionsRun.of` in processes of its own, so that a GPU writes the next bodies while these are read. They end when
    nobody holds the jury any more."""

    def __init__(self, workers: int) -> None:
        self.workers, self._pool = workers, helpers(workers, __name__)
        weakref.finalize(self, self._pool.shutdown)  # at once: at the end of Python it may find its pipes half closed

    def call(self, functions: Sequence[Function], bodies: Sequence[str], cost: Cost | None = None) -> Judging:
        """To judge these bodies; does not wait."""
        pairs = _pairs(functions, bodies)
        share = -(-len(pairs) // self.workers)
        parts = [self._pool.submit(_judged, pairs[first : first + share]) for first in range(0, len(pairs), share)]
        return Judging(functions, bodies, parts, cost)


@dataclass(frozen=True)
class Judging:
    """A run whose verdicts are on their way."""

    functions: Sequence[Function]
    bodies: Sequence[str]
    parts: Sequence[Future[list[Verdict]]]
    cost: Cost | None

    def run(self) -> FunctionsRun:
        """Once all are there."""
        verdicts = list(chain.from_iterable(part.result() for part in self.parts))
        return FunctionsRun(self.functions, self.bodies, verdicts, self.cost)


def write_bodies(
    model: Denoiser,
    tokenizer: Any,
    rows: FunctionRows,
    policy: Policy,
    *,
    steps: int,
    mask_id: int,
    seed: int = 0,
    draw: Draw | None = None,
    block: int | None = None,
    batch: int = 64,
    device: torch.device | str = "cpu",
) -> tuple[list[str], Cost]:
    """A body for every row, which gives the prompt and the room there is. A body ends at the first end of text; what it says
    does not depend on the batch size or on its neighbours.

    They are written in batches of one size, `batch` or all there are, because every other shape is compiled and recorded anew.
    With a cache those are written together that have equally many blocks: everything is computed when a block of any of them
    begins, and a body would profit from the blocks of others.
    """
    clock, size = Stopwatch(), min(batch, len(rows))
    settings: dict[str, Any] = {"steps": steps, "draw": draw, "block": block}
    prepared = Prepared(model, policy, **settings) if Prepared.serves(model) else None
    keys = Noise.rows(seed, len(rows)).keys
    bodies, costs = [""] * len(rows), np.zeros((3, len(rows)), int)
    for places in _together(rows, size, block if isinstance(model, Windowed) else None):
        filled = torch.cat([places, places[-1:].expand(size - len(places))])  # the last row stands in for missing ones
        some, noise = rows[filled].to(torch.device(device)), Noise(keys[filled].to(device))
        state = start(some.tokens.long().masked_fill(some.bodies, mask_id), mask_id)
        result = prepared(state, noise) if prepared else generate(model, state, policy, noise=noise, **settings)
        for place, tokens, prompt in zip(places.tolist(), result.tokens.tolist(), some.prompts.tolist(), strict=False):
            written = tokens[prompt:]
            written = written[: written.index(rows.end)] if rows.end in written else written
            bodies[place] = tokenizer.decode(written, clean_up_tokenization_spaces=False)
        counts = torch.stack([result.forwards, result.remasks, result.flipflops])
        costs[:, places.numpy()] = counts[:, : len(places)].cpu().numpy()
    forwards, remasks, flipflops = costs
    return bodies, Cost(forwards, remasks, flipflops, clock.seconds)


def _together(rows: FunctionRows, size: int, block: int | None) -> Iterator[Int[Tensor, " n"]]:
    """The places of rows that are written at once: `size` of them or the rest; with `block`, those of equally many blocks."""
    places, lengths = torch.arange(len(rows)), rows.bodies.sum(1)
    blocks = torch.zeros_like(lengths) if block is None else (lengths + block - 1) // block
    for count in blocks.unique():
        yield from places[blocks == count].split(size)
